"""The recipes there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noiseproof.data.dataset import Public
from noiseproof.data.features import (
    BinsMap,
    Chain,
    FeatureMap,
    GroupNormMap,
    MirrorMap,
    RmsNormMap,
    ScatteringMap,
    UnitNormMap,
)
from noiseproof.data.tables import layout
from noiseproof.errors import SettingError
from noiseproof.recipes.recipe import Recipe

_SIDE = 16
"""Pictures of fewer pixels a side have too few places for two scales of wavelets."""


def recipes() -> Mapping[str, Recipe]:
    """Every recipe by name."""
    return _SHELF


def names() -> tuple[str, ...]:
    """The names of all recipes."""
    return tuple(_SHELF)


def get(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in _SHELF:
        raise SettingError(f"there is no recipe {name!r}; there are {', '.join(_SHELF)}, and auto and none.")
    return _SHELF[name]


def _picture(public: Public) -> bool:
    sides = public.shape[1:]
    return len(public.shape) == 3 and min(sides) >= _SIDE and not any(side % 4 for side in sides)


def _scattering_map(public: Public) -> FeatureMap:
    return Chain((ScatteringMap(), GroupNormMap(), RmsNormMap()))


def _mirror_map(public: Public) -> FeatureMap:
    return Chain((ScatteringMap(), MirrorMap(), GroupNormMap(), RmsNormMap()))


def _scattering_settings(records: int, epsilon: float) -> dict[str, Any]:
    # How far steps may lead depends on how much there is to learn from: epsilon times records. Many short steps are better
    # than few long ones; for so many the noise on a mean hardly falls with the rate, while the time grows with it.
    rate, clip, plenty = 0.1, 0.1, epsilon * records / 60_000
    steps = 440 if plenty <= 1 else 880
    length = 0.09 * min(4 / 3, max(0.01, plenty))
    return {
        "batch": max(1, round(rate * records)),
        "epochs": round(steps * rate, 2),
        "clip": clip,
        "learning_rate": round(length / clip, 4),
        "averaging": 0.2,
        "precondition": 0.15,
        "micro_batch": 2048,
    }


def _bins_map(public: Public) -> FeatureMap:
    numbers = tuple(place.start for column, place in layout(public.columns) if column.numeric)
    return Chain((BinsMap(places=numbers), UnitNormMap()))


def _bins_settings(records: int, epsilon: float) -> dict[str, Any]:
    return {
        "batch": max(1, records // 4),
        "epochs": 25,
        "clip": 1.0,
        "learning_rate": 4.0,
        "averaging": 0.5,
        "micro_batch": 8192,
    }


def _unit_map(public: Public) -> FeatureMap:
    return UnitNormMap()


def _unit_settings(records: int, epsilon: float) -> dict[str, Any]:
    return {
        "batch": records,
        "epochs": 100,
        "clip": 1.0,
        "learning_rate": 3.0,
        "averaging": 0.1,
        "micro_batch": 8192,
    }


_SHELF = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "scattering",
            "Pictures: wavelet scattering, each record normalised, a private preconditioner, softmax regression.",
            _scattering_map,
            _scattering_settings,
            _picture,
            f"pictures whose sides are multiples of 4 from {_SIDE} on",
            keep=True,
        ),
        Recipe(
            "scattering-mirror",
            "Pictures whose class does not depend on left and right: as scattering, the same for mirror images.",
            _mirror_map,
            _scattering_settings,
            _picture,
            f"pictures whose sides are multiples of 4 from {_SIDE} on",
            keep=True,
        ),
        Recipe(
            "bins",
            "Tables: numbers in public bins, categories one-hot, records of norm 1, softmax regression.",
            _bins_map,
            _bins_settings,
            lambda public: public.kind == "table" and bool(public.columns),
            "tables",
        ),
        Recipe(
            "unit",
            "Vectors, such as bits: records of norm 1, softmax regression on all records at every step.",
            _unit_map,
            _unit_settings,
            lambda public: bool(public.shape),
            "records of any shape",
        ),
    )
}
