"""What shard-mean and shard-pg share: networks on disjoint shards, all from one public start."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees.card import Claim, Place, Proof
from noiseproof.methods import Method
from noiseproof.networks import Training
from noiseproof.parameters.layout import Layout
from noiseproof.parameters.training import train_collection
from noiseproof.progress import SILENT, Progress
from noiseproof.releases import ModelRelease

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Budget, Randomness
    from noiseproof.networks import Network

ASSUMPTIONS = (
    "a network's weights depend on its own shard alone, also in their last bits, though all are trained as one batch",
    "the number of shards is a setting: where it is derived from the number of records, that is public",
)
_MOST = 2000
"""More shards than this are not worth their memory."""


@dataclass(frozen=True)
class ShardMethod(Method):
    """A network on each of many disjoint shards; what they have in common is published with noise."""

    place: ClassVar[Place] = "parameters"
    proves: ClassVar[bool] = True
    claims: ClassVar[str] = "(epsilon, delta) for a record"

    shards: int | None = None
    """How many; None takes one for every `records_a_shard` records, 2000 at most."""
    records_a_shard: int = 5
    epochs: int = 10
    batch: int = 16
    learning_rate: float = 0.5
    gain: float = 4.0
    """What the published update is multiplied by, after the noise: a network that saw few records moves too little."""
    workers: int = 1

    def __post_init__(self) -> None:
        self._training()
        if self.shards is not None and self.shards < 2:
            raise SettingError(f"{self.name} needs at least 2 shards, not {self.shards}.")
        for name in ("records_a_shard", "workers"):
            if getattr(self, name) < 1:
                raise SettingError(f"{self.name}'s setting {name} must be at least 1, not {getattr(self, name)}.")
        if not 0 < self.gain < float("inf"):
            raise SettingError(f"{self.name}'s setting gain must be a finite number greater than 0, not {self.gain}.")

    def _training(self) -> Training:
        return Training(epochs=self.epochs, batch=self.batch, lr=self.learning_rate, optimiser="sgd")

    def count(self, records: int) -> int:
        """How many shards so many records are cut into."""
        if self.shards is not None:
            return self.shards
        return max(2, min(records // self.records_a_shard, _MOST))

    def fit(
        self,
        network: Network,
        dataset: Dataset,
        budget: Budget,
        *,
        rng: Randomness,
        progress: Progress = SILENT,
    ) -> ModelRelease:
        """Draw every record's shard, train a network on each, and publish the start plus their noised update."""
        count = self.count(len(dataset))
        seed = int(torch.randint(2**31, (1,), generator=rng.generator))
        drawn = (rng.uniform((len(dataset),)) * count).long().clamp_(max=count - 1)
        order = drawn.argsort(stable=True)
        shards = list(order.split(torch.bincount(drawn, minlength=count).tolist()))
        module = network.build(seed)
        layout = Layout.of_module(module)
        start = layout.flatten(dict(module.named_parameters()))
        collection = train_collection(
            network, dataset, count, self._training(), seed=seed, shards=shards, workers=self.workers, progress=progress
        )
        updates = collection.rows.sub_(start)
        # A network whose training diverged counts as one that did not move: its shard must not show.
        updates[~torch.isfinite(updates).all(1)] = 0.0
        update, proven, ran, notes = self._publish(updates, budget, rng, progress)
        layout.module(module, start + self.gain * update)
        claimed = Claim(
            epsilon=budget.epsilon,
            delta=budget.delta,
            neighbours=budget.neighbours,
            source="the budget that the noise was calibrated to",
        )
        facts = {"shards": count, "parameters": layout.size, "epochs": self.epochs, "gain": self.gain, **ran}
        card = self.card(dataset, budget, rng, claimed=claimed, proven=proven, ran=facts, notes=notes)
        return ModelRelease(module, network, card, dataset.public, self.settings())

    @abstractmethod
    def _publish(
        self, updates: torch.Tensor, budget: Budget, rng: Randomness, progress: Progress
    ) -> tuple[torch.Tensor, Proof, dict[str, Any], tuple[str, ...]]:
        """The update to publish, from one of each shard; what is proven of it, what ran, what a reader must know."""
