"""Feature maps as plain values, so that a bundle can say which one comes before its network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

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
from noiseproof.errors import SettingError

_KINDS: dict[str, type] = {
    "scattering": ScatteringMap,
    "mirror": MirrorMap,
    "group-norm": GroupNormMap,
    "rms-norm": RmsNormMap,
    "unit-norm": UnitNormMap,
    "fourier": RandomFourierMap,
    "bins": BinsMap,
}


def describe(feature_map: FeatureMap) -> list[dict[str, Any]]:
    """The maps that a map is made of, in order, each as `{"map": name, **settings}`."""
    if isinstance(feature_map, Chain):
        return [step for one in feature_map.maps for step in describe(one)]
    for name, kind in _KINDS.items():
        if type(feature_map) is kind:
            return [{"map": name, **asdict(feature_map)}]  # type: ignore[call-overload]
    raise SettingError(f"{type(feature_map).__name__} is no feature map of the package, so a bundle cannot name it.")


def restore(description: list[Mapping[str, Any]] | tuple[Mapping[str, Any], ...]) -> FeatureMap:
    """The map that `describe` described."""
    maps: list[FeatureMap] = []
    for step in description:
        settings = {name: tuple(v) if isinstance(v, list) else v for name, v in step.items() if name != "map"}
        if step.get("map") not in _KINDS:
            raise SettingError(f"there is no feature map {step.get('map')!r}; there are {', '.join(_KINDS)}.")
        try:
            maps.append(_KINDS[step["map"]](**settings))
        except TypeError:
            raise SettingError(
                f"the feature map {step['map']!r} does not have these settings: {', '.join(settings)}."
            ) from None
    return Chain(tuple(maps))
