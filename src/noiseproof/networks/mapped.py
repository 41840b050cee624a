"""`mapped`: a public feature map with another network behind it, so that a release takes records as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from noiseproof.data.features import FeatureMap, restore
from noiseproof.networks.network import Network, register

_FLAT = ({"map": "unit-norm"},)


class Mapped(nn.Sequential):
    """A feature map, which has no parameters, and the network that was trained on its features.

    Formal guarantee
    ----------------
    None is needed for the map: it acts on each record alone (see `FeatureMap`), so that training this network on
    records is training the one behind it on features.
    """

    def __init__(self, feature_map: FeatureMap, behind: nn.Module) -> None:
        super().__init__(_MapLayer(feature_map), behind)


class _MapLayer(nn.Module):
    def __init__(self, feature_map: FeatureMap) -> None:
        super().__init__()
        self._map = feature_map

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        return self._map(records)


@register("mapped")
def mapped(
    input_shape: tuple[int, ...],
    classes: int,
    maps: Sequence[Mapping[str, Any]] = _FLAT,
    network: str = "linear",
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The maps (as `data.features.describe` names them), then the named network with its options."""
    feature_map = restore(tuple(maps))
    return Mapped(feature_map, behind(input_shape, classes, feature_map, network, options).build(torch.initial_seed()))


def behind(
    input_shape: tuple[int, ...],
    classes: int,
    feature_map: FeatureMap,
    network: str = "linear",
    options: Mapping[str, Any] | None = None,
) -> Network:
    """The network that takes the mapped features."""
    return Network(network, feature_map.shape(tuple(input_shape)), classes, dict(options or {}))
