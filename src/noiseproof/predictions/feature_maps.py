"""Public feature maps of bounded norm for `logits` and `votes`: functions of one record, fitted on nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from noiseproof.data.features import Chain, FeatureMap, GroupNormMap, RandomFourierMap, ScatteringMap, UnitNormMap
from noiseproof.errors import SettingError

MapName = Literal["auto", "raw", "fourier", "scattering"]
"""`raw`: the features themselves. `fourier`: random Fourier features. `scattering`: wavelets, for pictures."""


@dataclass(frozen=True)
class BoundedMap:
    """A named map, float64, no longer than 1: longer vectors are shortened to length 1.

    `auto` is `scattering` for pictures whose sides are multiples of 4 from 16 on, else `fourier` for up to 128 features
    and `raw` for more (random Fourier features of many sparse bits need to be very many): the shape, which is public,
    decides.

    Formal guarantee
    ----------------
    None is needed: a record's features depend on that record and on public numbers alone.
    """

    name: MapName
    shape: tuple[int, ...]
    width: int = 1000
    length: float = 0.6
    """Of `fourier`: number of features, and the kernel's length scale between records of norm 1."""

    def __post_init__(self) -> None:
        if self.name not in ("auto", "raw", "fourier", "scattering"):
            raise SettingError(f"a feature map is auto, raw, fourier or scattering, not {self.name!r}.")
        if self.width < 1 or not self.length > 0:
            raise SettingError(f"fourier features need a width and a length above 0, not {self.width}, {self.length}.")
        self._map().shape(self.shape)  # refuses shapes that the map cannot take

    @property
    def chosen(self) -> MapName:
        """The map that `auto` stands for."""
        if self.name != "auto":
            return self.name
        picture = len(self.shape) == 3 and min(self.shape[1:]) >= 16 and not any(side % 4 for side in self.shape[1:])
        if picture:
            return "scattering"
        return "fourier" if math.prod(self.shape) <= 128 else "raw"

    def _map(self) -> FeatureMap:
        if self.chosen == "raw":
            return UnitNormMap()
        if self.chosen == "fourier":
            return Chain((UnitNormMap(), RandomFourierMap(self.width, self.length)))
        return Chain((ScatteringMap(), GroupNormMap(), UnitNormMap()))

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        """The mapped records, (records, width) in float64."""
        mapped = self._map()(features.float()).double()
        norms = torch.linalg.vector_norm(mapped, dim=1, keepdim=True)
        return mapped / norms.clamp(min=1.0)
