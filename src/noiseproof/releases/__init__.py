"""What leaves the trusted side: release kinds, each with its card, and bundles, which are releases on disk."""

from noiseproof.releases.bundles import load as load_bundle
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
    "ModelRelease",
    "PredictionRelease",
    "Release",
    "Saved",
    "accuracy",
    "check_features",
    "describe_network",
    "load_bundle",
    "logits",
    "restore_network",
]
