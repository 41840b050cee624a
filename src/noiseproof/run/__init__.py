"""Running methods: one training, or every method on your data at one budget."""

from __future__ import annotations

from noiseproof.run.comparison import SILENT_WATCH, Watch, compare
from noiseproof.run.plan import Plan, Task
from noiseproof.run.results import NEEDS, Comparison, Recommendation, Row, recommend, verdict_sentence
from noiseproof.run.training import train

__all__ = [
    "NEEDS",
    "SILENT_WATCH",
    "Comparison",
    "Plan",
    "Recommendation",
    "Row",
    "Task",
    "Watch",
    "compare",
    "recommend",
    "train",
    "verdict_sentence",
]
