"""zero-gan: noise really on the loss: one noised number a step, the loss's slope along a public direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.methods import register
from noiseproof.methods.losses.critics import LinearCritic, features_for
from noiseproof.methods.losses.dp_gan import DpGan, Run
from noiseproof.methods.losses.games import zero_game
from noiseproof.methods.losses.gan import Gan, Model, cosine
from noiseproof.privacy import Gaussian
from noiseproof.privacy.events import sampled_gaussian

if TYPE_CHECKING:
    from noiseproof.privacy import Budget, Game, Randomness
    from noiseproof.progress import Task


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
    noise, on all records or a Poisson sample; the rest as in `dp-gan`. Unit: record. Neighbours: as the budget says.
    Tang et al. 2024 and Zhang et al. 2024 have this for training without generators.
    """

    name: ClassVar[str] = "zero-gan"
    claims: ClassVar[str] = "(epsilon, delta) for a record, by an RDP filter"

    max_grad_norm: float = 2.0
    """C: slopes along a standard normal direction are normal with a spread of at most 1, so that few are cut."""
    width: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model not in ("auto", "features"):
            raise SettingError("zero-gan's discriminator is linear in public features; its model is auto or features.")

    def _steps(self, model: Model) -> int:
        return self.steps or 300

    def _updates(self, model: Model) -> int:
        return self.generator_steps or 3

    def _train(self, run: Run, model: Model, task: Task) -> None:
        gan = run.gan
        # One number a step: pairs of columns would be more directions than any budget can look along.
        features = features_for(gan.coding, pairs=False, width=self.width)
        critic = LinearCritic(features, gan.classes).to(gan.device)
        training = DirectionTraining(gan, critic, self.lr or 4e-3, self.generated)
        records = gan.coding.encode(run.dataset.features).to(gan.device)
        labels = run.dataset.labels.to(gan.device)
        limit, updates = self._steps(model), self._updates(model)
        expected = run.sample_rate * len(run.dataset)
        while run.steps < limit and run.filter.fits(sampled_gaussian(run.sample_rate, run.tuning.sigma)):
            sigma = run.tuning.sigma
            direction = torch.randn(critic.weights.weight.shape, generator=run.rng.generator).to(gan.device)
            index = run.rng.poisson_sample(len(labels), run.sample_rate).to(gan.device)
            slopes = critic_slopes(critic, direction, records[index], labels[index])
            run.spend(sampled_gaussian(run.sample_rate, sigma))
            noised = noised_sum(slopes, self.max_grad_norm, sigma, run.rng)
            training.learn(direction, float(noised) / expected, 1 / sigma**2)
            judged, fooled = training.update(updates, limit * updates)
            self._after_step(run, sigma, task, judged, fooled)
        if training.done < limit * updates and run.steps:
            training.update(limit * updates - training.done, limit * updates)

    def _ran(self, run: Run, model: Model, budget: Budget) -> dict[str, Any]:
        return {**super()._ran(run, model, budget), "numbers released": run.steps}

    def game(self, budget: Budget) -> Game:
        """A canary whose loss is steep, in one step that sees every record."""
        return zero_game(self, budget)


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


class DirectionTraining:
    """A generator's updates against the best critic in the span of the directions that were looked along."""

    def __init__(self, gan: Gan, critic: LinearCritic, lr: float, generated: int) -> None:
        self.done = 0
        self._gan, self._critic = gan, critic
        self._rate, self._generated = lr, generated
        self._directions: list[torch.Tensor] = []
        self._real: list[float] = []
        self._exactness: list[float] = []
        self._maker = torch.optim.Adam(gan.generator.parameters(), lr=lr)

    def learn(self, direction: torch.Tensor, slope: float, exactness: float) -> None:
        """Take in a release: the real records' mean slope, and how exact it is."""
        self._directions.append(direction.flatten())
        self._real.append(slope)
        self._exactness.append(exactness)

    def update(self, updates: int, total: int) -> tuple[float, float]:
        """Update the generator so many times; the critic's loss and the generator's, at the last of them."""
        gan = self._gan
        directions = torch.stack(self._directions)
        real = torch.tensor(self._real, device=gan.device)
        weights = torch.tensor(self._exactness, device=gan.device)
        weights = weights / weights.sum()
        for _ in range(updates):
            labels = gan.labels(self._generated)
            means = self._critic.means(gan.generate(labels), labels)
            # The loss is minus the score: a direction's slope over the generated records.
            missing = real + directions @ means.flatten()
            best = -(weights * missing).detach() @ directions
            loss = -(best * means.flatten()).sum()
            self._maker.zero_grad(set_to_none=True)
            loss.backward()
            cosine(self._maker, self._rate, self.done, total)
            self._maker.step()
            self.done += 1
        with torch.no_grad():
            self._critic.weights.weight.copy_(best.view_as(self._critic.weights.weight))
        return -float((weights * missing.detach().square()).sum()), float(loss.detach())
