"""NeuronRelease: a secret network whose answers have noise on one output neuron."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noiseproof.guarantees import Reproducible
from noiseproof.predictions.neuron import NeuronNoise, NoiseAhead
from noiseproof.releases import PredictionRelease, Saved, describe_network

if TYPE_CHECKING:
    from noiseproof.data.dataset import Public
    from noiseproof.guarantees import Card, Randomness
    from noiseproof.guarantees.events import DpEvent
    from noiseproof.networks.network import Network


class NeuronRelease(PredictionRelease):
    """Answers of Algorithm 1 (Lu et al. 2022). Nothing is proven of them: see `NeuronNoise` and the card."""

    def __init__(
        self,
        module: nn.Module,
        network: Network,
        noise: NeuronNoise,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        *,
        queries: int,
        rng: Randomness,
        asked: int = 0,
    ) -> None:
        super().__init__(card, public, settings, queries=queries, rng=rng, asked=asked)
        self._module = module.eval()
        self._network = network
        self.noise = noise
        self._ahead: NoiseAhead | None = None

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What the authors claim that one answer costs: nothing here is proven."""
        from noiseproof.guarantees.events import GaussianDpEvent, PureDpEvent

        each = self.noise.epsilon
        return (PureDpEvent(each) if self.noise.law == "laplace" else GaussianDpEvent(1 / each),)

    def _answer(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        ahead = self._ahead
        if ahead is None or ahead.rng is not rng:
            ahead = self._ahead = NoiseAhead(self.noise, rng) if isinstance(rng, Reproducible) else None
        source = rng if ahead is None else ahead
        with torch.no_grad():
            return self.noise.answers(self._module(features.float()), source)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The secret weights: the bundle stays on the trusted side."""
        return {name: value.detach().cpu() for name, value in self._module.state_dict().items()}

    def description(self) -> dict[str, Any]:
        """The network's recipe, the noise, and the queries that are gone."""
        return {**super().description(), "network": describe_network(self._network), "noise": asdict(self.noise)}

    @classmethod
    def restore(cls, saved: Saved) -> NeuronRelease:
        """The same answers, with as many queries left as when it was saved."""
        module = saved.network.build()
        module.load_state_dict(dict(saved.tensors))
        noise = NeuronNoise(**saved.description["noise"])
        return cls(module, saved.network, noise, saved.card, saved.public, saved.settings, **cls._spent(saved))
