"""The main job: every method on your data at one budget, and what each promise is worth."""

from noiseproof.compare.comparison import SILENT_WATCH, Watch, compare
from noiseproof.compare.plan import Plan, Task
from noiseproof.compare.recommendation import NEEDS, Recommendation, recommend, verdict_sentence

__all__ = [
    "NEEDS",
    "SILENT_WATCH",
    "Plan",
    "Recommendation",
    "Task",
    "Watch",
    "compare",
    "recommend",
    "verdict_sentence",
]
