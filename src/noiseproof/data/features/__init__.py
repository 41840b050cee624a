"""Public feature maps: functions of one record at a time, fitted on nothing private."""

from noiseproof.data.features.apply import apply
from noiseproof.data.features.describe import describe, restore
from noiseproof.data.features.maps import (
    BinsMap,
    Chain,
    FeatureMap,
    GroupNormMap,
    MirrorMap,
    RandomFourierMap,
    RmsNormMap,
    ScatteringMap,
    UnitNormMap,
)
from noiseproof.data.features.scattering import Scattering

__all__ = [
    "BinsMap",
    "Chain",
    "FeatureMap",
    "GroupNormMap",
    "MirrorMap",
    "RandomFourierMap",
    "RmsNormMap",
    "Scattering",
    "ScatteringMap",
    "UnitNormMap",
    "apply",
    "describe",
    "restore",
]
