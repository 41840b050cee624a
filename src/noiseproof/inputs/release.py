"""Releases at the inputs: networks that are not built by a recipe's name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noiseproof.inputs.embedding import FunctionalLinear
from noiseproof.inputs.normalisation import bounded
from noiseproof.networks import Network
from noiseproof.releases import ModelRelease, restore_network

if TYPE_CHECKING:
    from noiseproof.data.dataset import Public
    from noiseproof.guarantees import Card


class BoundedRelease(ModelRelease):
    """A trained network whose hidden units are bounded; its recipe is that of the network without the bounds."""

    @classmethod
    def restore(
        cls,
        tensors: Mapping[str, torch.Tensor],
        description: Mapping[str, Any],
        *,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        module: nn.Module | None = None,
    ) -> BoundedRelease:
        """The same network with the same weights and bounds."""
        network = restore_network(description["network"], module)
        built = bounded(network.build())
        built.load_state_dict(dict(tensors))
        return cls(built, network, card, public, settings)


class FunctionalRelease(ModelRelease):
    """A linear network on a public feature map, whose weights may be public."""

    def __init__(self, module: FunctionalLinear, card: Card, public: Public, settings: Mapping[str, Any]) -> None:
        network = Network("custom", public.shape, len(public.classes), module=module)
        super().__init__(module, network, card, public, settings)
        self._options = module.options

    def description(self) -> dict[str, Any]:
        """The feature map."""
        return {"embedding": dict(self._options)}

    @classmethod
    def restore(
        cls,
        tensors: Mapping[str, torch.Tensor],
        description: Mapping[str, Any],
        *,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        module: nn.Module | None = None,
    ) -> FunctionalRelease:
        """The same weights on the same map."""
        built = FunctionalLinear(public.shape, len(public.classes), **description["embedding"])
        built.load_state_dict(dict(tensors))
        return cls(built, card, public, settings)
