"""Releases made like another one, from other records: what shadow models of a noised training have to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from noiseproof import methods
from noiseproof.attacks.attack import TINY, Predicts
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError
from noiseproof.methods import Method, recipes
from noiseproof.networks import Network
from noiseproof.parallel import tasks
from noiseproof.privacy import Budget, Reproducible
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease


@dataclass(frozen=True)
class Retraining:
    """How a model was trained: method, settings, noise, network and recipe.

    Formal guarantee
    ----------------
    None: what it trains is seeded and stays with the attacker, whose records it is made from.
    """

    method: Method
    network: Network
    budget: Budget
    recipe: recipes.Recipe | None = None

    @classmethod
    def of(cls, release: object) -> Retraining | None:
        """That of a model whose method is installed and whose network can be built again; None for anything else."""
        if not isinstance(release, ModelRelease) or release.network.module is not None:
            return None
        card, settings = release.card, dict(release.settings)
        if settings.get("noise_multiplier", 0) is None:
            # Calibrated to the budget, at the target's own number of records: the noise that ran is what shadows need.
            settings["noise_multiplier"] = card.ran.get("noise_multiplier")
        promise = card.claimed or card.proven
        budget = Budget(promise.epsilon, promise.delta, card.neighbours) if promise else Budget(1.0, 1e-5)
        try:
            method = methods.build(card.method, settings)
            recipe = recipes.get(card.ran["recipe"]) if "recipe" in card.ran else None
        except SettingError:  # a method or recipe of somebody else's, or of an earlier version
            return None
        return cls(method, release.network, budget, recipe)

    def fit(self, dataset: Dataset, seed: int) -> Predicts:
        """Train on these records as the release was trained on its own."""
        if self.recipe is None:
            made = self.method.fit(self.network, dataset, self.budget, rng=Reproducible(seed))
        else:
            mapped, network = self.recipe.map(dataset), self.recipe.trained(dataset.public)
            made = self.method.fit(network, mapped, self.budget, rng=Reproducible(seed))
            made = self.recipe.around(made, dataset.public)
        assert isinstance(made, ModelRelease)
        return made

    def fit_many(
        self, pool: Dataset, members: Sequence[torch.Tensor], seeds: Sequence[int], progress: Progress = SILENT
    ) -> Retrained:
        """One model for each set of members of the pool; within a `placed` block on its processes or its cluster."""
        work = list(zip(members, seeds, strict=True))
        jobs = None if tasks.spread_out() else 1
        return Retrained(
            tasks.collect(_fit, work, common=(self, pool), jobs=jobs, progress=progress, description="shadow models")
        )


def _fit(training: Retraining, pool: Dataset, task: tuple[torch.Tensor, int]) -> Predicts:
    return training.fit(pool.take(task[0].to(pool.labels.device)), task[1])


@dataclass(frozen=True)
class Retrained:
    """Several models that are asked together, as a `StackedNetwork` is."""

    models: Sequence[Predicts]

    def __len__(self) -> int:
        return len(self.models)

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """The logarithms of their probabilities, (models, records, classes)."""
        return torch.stack([model.predict(features) for model in self.models]).clamp(min=TINY).log()
