"""none: ordinary training, which every private method is measured against."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Self

import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.methods import register
from noiseproof.methods.common import Count, Positive, Supervised, each_trial, initial_seed, shuffled
from noiseproof.networks import Network
from noiseproof.privacy.card import Game, Place
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease
from noiseproof.tensors import default_device, seeded

if TYPE_CHECKING:
    from noiseproof.privacy import Budget, Randomness


_ENOUGH = 5_000
"""Steps after which more passes change a baseline's accuracy little."""


@register
@dataclass(frozen=True)
class Baseline(Supervised):
    """Ordinary training without privacy: the baseline.

    Formal guarantee
    ----------------
    None, and none is claimed.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> npf.train("none", records, epochs=2).card.verdict
        'nothing proven'
    """

    name: ClassVar[str] = "none"
    place: ClassVar[Place] = "none"
    proves: ClassVar[bool] = False
    claims: ClassVar[str] = "nothing"
    tasks: ClassVar[tuple[str, ...]] = ("classification", "regression", "count")

    epochs: Positive = 30.0
    """Passes over the records, in shuffled batches."""
    batch_size: Count = 64
    """Records of a step."""
    lr: Positive = 1e-3
    """Adam's learning rate."""

    def for_records(self, records: int, public: Public) -> Self:
        """As many passes over the records, or fewer over many of them."""
        return replace(self, epochs=min(self.epochs, _ENOUGH * self.batch_size / records))

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> ModelRelease:
        """Train with Adam on shuffled batches; the budget is not used."""
        seed, objective = initial_seed(rng), self.objective(dataset.public)
        module = network.build(seed)
        device = default_device()
        module.to(device).train()
        features, labels = dataset.features.to(device), dataset.labels.to(device)
        optimizer = torch.optim.Adam(module.parameters(), lr=self.lr)
        steps = max(1, math.ceil(self.epochs * len(dataset) / self.batch_size))
        with seeded(seed, device), progress.task(self.name, steps) as task:
            for index in shuffled(len(dataset), self.batch_size, steps):
                loss = objective.losses(module(features[index]), labels[index]).mean()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                task.advance(loss=float(loss.detach()))
        card = self.card(
            dataset,
            budget,
            rng,
            why="The network was trained on the records without any noise.",
            ran={"steps": steps, "batch_size": self.batch_size, "sampler": "shuffled epochs"},
        )
        return ModelRelease(module.cpu(), network, card, dataset.public, self.settings())

    def game(self, budget: Budget) -> Game:
        """A mislabelled record added to eight others: the trained network's loss on it tells whether it was there."""
        features = torch.eye(9)
        labels = torch.arange(9) % 2
        public = Public(shape=(9,), classes=("0", "1"))
        network = Network("linear", (9,), 2)
        short = Baseline(epochs=4, batch_size=9, lr=0.3)

        def score(world: int, rng: Randomness) -> float:
            records = Dataset("game", features[: 8 + world], labels[: 8 + world], public)
            release = short.fit(network, records, budget, rng=rng)
            return float(release.predict(features[8:])[0, int(labels[8])])

        name = "none: a record that only memory can label"
        return Game(name, each_trial(score), "add-or-remove", budget.delta)
