"""zero-gan: noise really on the loss: one noised number a step, the loss's slope along a public direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from noiseproof.engine.persons import PersonSampler
from noiseproof.methods import register
from noiseproof.methods.common import Count, Positive
from noiseproof.methods.losses.critics import LinearCritic, LowFrequencies, features_for
from noiseproof.methods.losses.dp_gan import DpGan
from noiseproof.methods.losses.filtered import CriticTraining, Run
from noiseproof.methods.losses.gan import Gan, Model
from noiseproof.privacy import Budget, Game, Gaussian, Randomness
from noiseproof.privacy.events import sampled_gaussian
from noiseproof.progress import Task

_BLOCK = 2048
"""Weights of a critic up to which directions are made orthogonal."""
_STEP = 1e-2
"""h: how far the critic's weights are moved along the direction, and back."""


@register
@dataclass(frozen=True)
class ZeroGan(DpGan):
    """Zero-order GAN: per step one noised number, the slope of the discriminator's loss along a public direction.

    The discriminator is a critic linear in public features; a direction u is drawn, and of each record in the sample
    `clip((l(w + h u) - l(w - h u)) / 2h, C)` enters a sum that is noised once. The critic's best response in the span of the
    directions so far is then known, as is the generator's update.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP of the budget: every step releases a sum to which a record adds at most `clip`, with Gaussian
    noise, on all records or a Poisson sample; the rest as in `dp-gan`. Unit: record, or person, whose slope is the mean
    over their records. Neighbours: as the budget says. Tang et al. 2024 and Zhang et al. 2024 have this for training
    without generators.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("zero-gan", records, epsilon=3, rows=100, steps=5)
        >>> release.card.verdict
        'proven'
        >>> release.card.ran["numbers released"]
        5
    """

    name: ClassVar[str] = "zero-gan"
    models: ClassVar[tuple[Model, ...]] = ("auto", "features")
    linear: ClassVar[Mapping[str, Any]] = {**DpGan.linear, "steps": 560, "generator_steps": 2, "lr": 8e-3}
    """One number a step: twice as many steps as a critic of ten classes has weights for 28 frequencies."""

    max_grad_norm: Positive = 1.0
    """C: slopes along a direction are about normal with a spread of at most 1, so that few are cut."""
    width: Count = 100
    """Pairs of random Fourier features, for what is neither a table nor a picture."""

    def _critic(self, gan: Gan) -> LinearCritic:
        # One number a step: pairs of columns, or a thousand features, would be more directions than a budget can look along.
        shape = gan.coding.shape
        features = LowFrequencies(shape) if len(shape) == 3 else features_for(gan.coding, pairs=False, width=self.width)
        return LinearCritic(features, gan.classes).to(gan.device)

    def _looks(self, run: Run, critic: LinearCritic) -> Iterator[tuple[torch.Tensor, float]]:  # type: ignore[override]
        """Each step's direction, and the real records' noised mean slope along it."""
        gan = run.gan
        # Features are public functions of a record, the same at every step.
        mapped = critic.features(gan.coding.encode(run.dataset.features).to(gan.device))
        labels = run.dataset.labels.to(gan.device)
        groups = torch.arange(len(labels)) if run.dataset.groups is None else run.dataset.groups
        persons = PersonSampler(groups, self.max_records_per_person, run.rng)
        looks = directions(critic.weights.weight.shape, run.rng)
        while run.steps < run.limit and run.filter.fits(sampled_gaussian(run.sample_rate, run.tuning.sigma)):
            direction = next(looks).to(gan.device)
            index, owners = persons.draw(run.sample_rate)
            index = index.to(gan.device)
            slopes = critic_slopes(critic, direction, mapped[index], labels[index])
            slopes = owners.summed(slopes.cpu()) / owners.counts
            run.spend(sampled_gaussian(run.sample_rate, run.tuning.sigma))
            noised = noised_sum(slopes, self.max_grad_norm, run.tuning.sigma, run.rng)
            yield direction, float(noised) / run.expected_batch

    def _train(self, run: Run, task: Task) -> None:
        critic = self._critic(run.gan)
        training = DirectionTraining(run, critic, self.generated)
        for direction, slope in self._looks(run, critic):
            sigma = run.tuning.sigma
            training.learn(direction, slope, 1 / sigma**2)
            self._after_step(run, sigma, task, *training.update(run.updates))
        training.finish()

    def _ran(self, run: Run, budget: Budget) -> dict[str, Any]:
        return {**super()._ran(run, budget), "numbers released": run.steps}

    def _game(self, budget: Budget, canaries: int) -> Game:
        """`dp-gan`'s: a whole training, here of four numbers unless `steps` is set, and slopes that are all clipped.

        At the usual C a record adds less than it may wherever its slope is smaller; at a hundredth of it nearly none is.
        """
        steep = replace(self, steps=self.steps or 4, max_grad_norm=0.01)
        return super(ZeroGan, steep)._game(budget, canaries)

    def _evidence(  # type: ignore[override]
        self, look: tuple[torch.Tensor, float], critic: LinearCritic, canary: torch.Tensor
    ) -> float:
        direction, slope = look
        own = critic_slopes(critic, direction, critic.features(canary[None]), torch.ones(1, dtype=torch.int64))
        return slope * float(own.clamp(-self.max_grad_norm, self.max_grad_norm)) / self.max_grad_norm**2


def directions(shape: torch.Size, rng: Randomness) -> Iterator[torch.Tensor]:
    """Public directions without end: orthogonal ones as long as there are any, and as long as normal ones are on average.

    What a release says along one direction is then not mixed with what others say.
    """
    size = math.prod(shape)
    while True:
        block = torch.randn(size if size <= _BLOCK else 1, size, generator=rng.generator)
        if size <= _BLOCK:
            block = math.sqrt(size) * torch.linalg.qr(block).Q.T
        yield from block.view(-1, *shape)


def critic_slopes(
    critic: LinearCritic, direction: torch.Tensor, mapped: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """(l(w + h u) - l(w - h u)) / 2h of every record, given its features, by two looks at its loss."""
    weights = critic.weights.weight
    kept = weights.detach().clone()
    with torch.no_grad():
        try:
            weights.copy_(kept + _STEP * direction)
            above = -critic.scores(mapped, labels)
            weights.copy_(kept - _STEP * direction)
            below = -critic.scores(mapped, labels)
        finally:
            weights.copy_(kept)
    return (above - below) / (2 * _STEP)


def noised_sum(slopes: torch.Tensor, max_grad_norm: float, noise_multiplier: float, rng: Randomness) -> torch.Tensor:
    """The sum of clipped slopes plus Normal(0, sigma^2 clip^2): the one number that a step releases.

    Formal guarantee
    ----------------
    The Gaussian mechanism with noise multiplier `sigma`: a record adds at most `clip` to the sum.
    """
    total = slopes.double().nan_to_num(nan=0.0).clamp(-max_grad_norm, max_grad_norm).sum().reshape(1)
    return Gaussian(max_grad_norm, noise_multiplier).release(total, rng)[0]


class DirectionTraining(CriticTraining):
    """A generator's updates against the best critic in the span of the directions that were looked along."""

    def __init__(self, run: Run, critic: LinearCritic, generated: int) -> None:
        super().__init__(run, critic, generated)
        self._releases: list[tuple[torch.Tensor, float, float]] = []

    def learn(self, direction: torch.Tensor, slope: float, exactness: float) -> None:
        """Take in a release: the real records' mean slope, and how exact it is."""
        self._releases.append((direction.flatten(), slope, exactness))
        directions, slopes, weights = zip(*self._releases, strict=True)
        self._directions = torch.stack(directions)
        self._slopes = torch.tensor(slopes, device=direction.device)
        weighed = torch.tensor(weights, device=direction.device)
        self._weights = weighed / weighed.sum()

    def best(self, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best critic in the span, and minus its loss."""
        # The loss is minus the score: a direction's slope over the generated records.
        missing = self._slopes + self._directions @ means.flatten()
        best = -(self._weights * missing) @ self._directions
        return best.view_as(means), (self._weights * missing.square()).sum()
