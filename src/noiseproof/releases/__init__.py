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
    check_features,
    describe_network,
    logits,
    restore_network,
)

__all__ = [
    "DataRelease",
    "Measures",
    "ModelRelease",
    "PredictionRelease",
    "Release",
    "Saved",
    "accuracy",
    "check_features",
    "combined",
    "describe_network",
    "evaluate",
    "load_bundle",
    "logits",
    "measure",
    "ranking",
    "restore_network",
]
