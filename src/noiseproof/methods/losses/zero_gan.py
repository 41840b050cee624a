"""zero-gan: noise really on the loss: one noised number a step, the loss's slope along a public direction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from noiseproof.engine.persons import Owners, PersonSampler
from noiseproof.methods import register
from noiseproof.methods.common import Count, Positive, proven_game, seeded_by
from noiseproof.methods.losses.critics import LinearCritic, LowFrequencies, features_for
from noiseproof.methods.losses.dp_gan import CriticTraining, DpGan, Run
from noiseproof.methods.losses.gan import Model
from noiseproof.privacy import Budget, Game, Gaussian, Randomness, accountants, calibration
from noiseproof.privacy.card import Unit
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
    """

    name: ClassVar[str] = "zero-gan"
    models: ClassVar[tuple[Model, ...]] = ("auto", "features")
    linear: ClassVar[Mapping[str, Any]] = {**DpGan.linear, "steps": 560, "generator_steps": 2, "lr": 8e-3}
    """One number a step: twice as many steps as a critic of ten classes has weights for 28 frequencies."""

    max_grad_norm: Positive = 1.0
    """C: slopes along a direction are about normal with a spread of at most 1, so that few are cut."""
    width: Count = 100
    """Pairs of random Fourier features, for what is neither a table nor a picture."""

    def _train(self, run: Run, task: Task) -> None:
        gan = run.gan
        # One number a step: pairs of columns, or a thousand features, would be more directions than a budget can look along.
        shape = gan.coding.shape
        features = LowFrequencies(shape) if len(shape) == 3 else features_for(gan.coding, pairs=False, width=self.width)
        critic = LinearCritic(features, gan.classes).to(gan.device)
        training = DirectionTraining(run, critic, self.generated)
        records = gan.coding.encode(run.dataset.features).to(gan.device)
        labels = run.dataset.labels.to(gan.device)
        groups = torch.arange(len(labels)) if run.dataset.groups is None else run.dataset.groups
        persons = PersonSampler(groups, self.max_records_per_person, run.rng)
        looks = directions(critic.weights.weight.shape, run.rng)
        while run.steps < run.limit and run.filter.fits(sampled_gaussian(run.sample_rate, run.tuning.sigma)):
            sigma = run.tuning.sigma
            direction = next(looks).to(gan.device)
            index, owners = persons.draw(run.sample_rate)
            slopes = critic_slopes(critic, direction, records[index.to(gan.device)], labels[index.to(gan.device)])
            slopes = owners.summed(slopes.cpu()) / owners.counts
            run.spend(sampled_gaussian(run.sample_rate, sigma))
            noised = noised_sum(slopes, self.max_grad_norm, sigma, run.rng)
            training.learn(direction, float(noised) / run.expected_batch, 1 / sigma**2)
            self._after_step(run, sigma, task, *training.update(run.updates))
        training.finish()

    def _ran(self, run: Run, budget: Budget) -> dict[str, Any]:
        return {**super()._ran(run, budget), "numbers released": run.steps}

    def game(self, budget: Budget) -> Game:
        """A canary whose loss is steep, in one step that sees every record: it adds `clip` to one noised number, or not."""
        return self._game(budget, 1)

    def _game(self, budget: Budget, canaries: int) -> Game:
        near, clip = budget.neighbours, self.max_grad_norm
        sigma = calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=near).sigma

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng = seeded_by(generator)
            slope = 1e3 * clip * (1 if world else -1)
            own = torch.tensor([0.0, *[slope] * canaries] if world or near == "replace-one" else [0.0])
            owners = Owners(torch.arange(len(own)).clamp(max=1), min(len(own), 2))
            slopes = owners.summed(own) / owners.counts
            return torch.stack([noised_sum(slopes, clip, sigma, rng).double() for _ in range(trials)])

        proven = accountants.epsilon(sampled_gaussian(1.0, sigma), budget.delta, neighbours=near).proof()
        name = f"{self.name}: a canary with a steep loss"
        unit: Unit = "person" if canaries > 1 else "record"
        source = "the accountant, for one step"
        return proven_game(name, play, budget, proven, source=source, gaussian=True, unit=unit)


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
    critic: LinearCritic, direction: torch.Tensor, records: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """(l(w + h u) - l(w - h u)) / 2h of every record, by two looks at its loss."""
    weights = critic.weights.weight
    kept = weights.detach().clone()
    with torch.no_grad():
        try:
            weights.copy_(kept + _STEP * direction)
            above = -critic(records, labels)
            weights.copy_(kept - _STEP * direction)
            below = -critic(records, labels)
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
