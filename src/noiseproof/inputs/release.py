"""Releases at the inputs: networks that are not built by a recipe's name alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from torch import nn

from noiseproof.inputs.embedding import FunctionalLinear
from noiseproof.inputs.normalisation import bounded
from noiseproof.networks import Network
from noiseproof.releases import ModelRelease, Saved

if TYPE_CHECKING:
    from noiseproof.data.dataset import Public
    from noiseproof.guarantees import Card


class BoundedRelease(ModelRelease):
    """A trained network whose hidden units are bounded; its recipe is that of the network without the bounds."""

    @classmethod
    def _build(cls, network: Network) -> nn.Module:
        return bounded(super()._build(network))


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
    def restore(cls, saved: Saved) -> Self:
        """The same weights on the same map."""
        public = saved.public
        module = FunctionalLinear(public.shape, len(public.classes), **saved.description["embedding"])
        module.load_state_dict(dict(saved.tensors))
        return cls(module, saved.card, public, saved.settings)
