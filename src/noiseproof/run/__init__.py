"""Running methods: one training, or every method on your data at one budget."""

from __future__ import annotations

from noiseproof.run.comparison import SILENT_WATCH, Watch, compare
from noiseproof.run.plan import Plan, RowKey
from noiseproof.run.results import NEEDS, Comparison, Recommendation, recommend
from noiseproof.run.row import Row
from noiseproof.run.training import Fitting, resolve, train

__all__ = [
    "NEEDS",
    "SILENT_WATCH",
    "Comparison",
    "Fitting",
    "Plan",
    "Recommendation",
    "Row",
    "RowKey",
    "Watch",
    "compare",
    "recommend",
    "resolve",
    "train",
]
