"""Embedding: a public feature map, scaled by feature and brought to norm 1, and the linear network on top of it."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import nn

from noiseproof.data.features import Chain, FeatureMap, GroupNormMap, RandomFourierMap, ScatteringMap, UnitNormMap
from noiseproof.errors import SettingError

MapName = Literal["auto", "raw", "fourier", "scattering"]
"""`raw`: the features themselves. `fourier`: random Fourier features. `scattering`: wavelets, for pictures. For any other
public map use `data.features.apply` first, and then `raw`."""

_LEAST = 1e-12


class Embedding(nn.Module):
    """phi: a public map of a record, a constant, a public scale for each feature, and norm 1 (L2, or L1).

    `auto` is `scattering` for pictures whose sides are multiples of 4 from 16 on, else `raw`: the shape, which is public,
    decides.

    Formal guarantee
    ----------------
    None is needed: phi depends on one record and on public numbers alone (or such as were released under DP), and its norm
    is at most 1 + 1e-5 in floating point.
    """

    scale: torch.Tensor

    def __init__(
        self, shape: tuple[int, ...], features: MapName = "auto", width: int = 1000, length: float = 0.6, norm: int = 2
    ) -> None:
        super().__init__()
        if features not in get_args(MapName):
            raise SettingError(f"a feature map is one of {', '.join(get_args(MapName))}, not {features!r}.")
        if width < 1 or not length > 0:
            raise SettingError(f"fourier features need a width and a length above 0, not {width} and {length}.")
        picture = len(shape) == 3 and min(shape[1:]) >= 16 and not any(side % 4 for side in shape[1:])
        self.name = features if features != "auto" else "scattering" if picture else "raw"
        self.norm = norm
        self._map: FeatureMap | None = None
        if self.name == "fourier":
            self._map = Chain((UnitNormMap(), RandomFourierMap(width, length)))
        elif self.name == "scattering":
            self._map = Chain((ScatteringMap(), GroupNormMap()))
        mapped = shape if self._map is None else self._map.shape(shape)
        self.width = math.prod(mapped) + 1
        self.register_buffer("scale", torch.ones(self.width))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """The records as (records, width), each of norm 1."""
        mapped = features.float() if self._map is None else self._map(features.float())
        flat = mapped.flatten(1)
        flat = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=1) * self.scale
        return flat / torch.linalg.vector_norm(flat, ord=self.norm, dim=1, keepdim=True).clamp(min=_LEAST)


class FunctionalLinear(nn.Module):
    """A linear network without a bias on an `Embedding`, whose constant stands for one."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        features: MapName = "auto",
        width: int = 1000,
        length: float = 0.6,
        norm: int = 2,
    ) -> None:
        super().__init__()
        self.options = {"features": features, "width": width, "length": length, "norm": norm}
        self.embedding = Embedding(input_shape, features, width, length, norm)
        self.linear = nn.Linear(self.embedding.width, classes, bias=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Logits of the records."""
        return self.linear(self.embedding(features))
