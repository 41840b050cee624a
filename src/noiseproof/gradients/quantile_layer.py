"""quantile-layer: clip each layer by a quantile of the batch's gradient norms (Lin et al. 2020, algorithm 2, per layer)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from noiseproof.gradients.quantile_flat import QuantileFlat
from noiseproof.methods import register


@register
@dataclass(frozen=True)
class QuantileLayer(QuantileFlat):
    """DP-SGD clipped layer by layer to the un-noised median norm over the root of the number of layers.

    Formal guarantee
    ----------------
    None: as `quantile-flat`.
    """

    name: ClassVar[str] = "quantile-layer"
    by: ClassVar[Literal["all", "layer"]] = "layer"
