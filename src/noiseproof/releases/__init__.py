"""What leaves the trusted side: release kinds, each with its card, and bundles, which are releases on disk."""

from noiseproof.releases.bundles import load as load_bundle
from noiseproof.releases.measures import Measures, combined, evaluate, measure, ranking
from noiseproof.releases.release import (
    DataRelease,
    ModelRelease,
    PredictionRelease,
    Release,
    Saved,
    accuracy,
    logits,
)

__all__ = [
    "DataRelease",
    "Measures",
    "ModelRelease",
    "PredictionRelease",
    "Release",
    "Saved",
    "accuracy",
    "combined",
    "evaluate",
    "load_bundle",
    "logits",
    "measure",
    "ranking",
]
