"""One training of dp-gan as it goes: steps that a filter pays for, and a generator's updates, which are free."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from noiseproof.data import Dataset
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.methods.losses.critics import LinearCritic
from noiseproof.methods.losses.gan import (
    Gan,
    Model,
    NoiseTuning,
)
from noiseproof.privacy import (
    EventLog,
    Filter,
    Randomness,
)
from noiseproof.privacy.events import DpEvent

StepCallback = Callable[[int, Gan], None]
"""Called after every discriminator step with their number and the generator (post-processing: it may be looked at)."""


@dataclass
class Run:
    """One training as it goes: the budget, the noise, what happened so far."""

    gan: Gan
    dataset: Dataset
    rng: Randomness
    model: Model
    limit: int
    """Discriminator steps to take, at most."""
    updates: int
    """Generator updates after each of them."""
    lr: float
    sample_rate: float
    filter: Filter
    tuning: NoiseTuning
    reference: Dataset | None = None
    callback: StepCallback | None = None
    steps: int = 0
    sigmas: tuple[float, float] = (0.0, 0.0)
    """The noise of the first step and of the last."""

    def __post_init__(self) -> None:
        self.events = EventLog()

    @property
    def expected_batch(self) -> float:
        """How many records, or persons, a step's sample has on average."""
        return self.sample_rate * self.dataset.persons

    def spend(self, event: DpEvent) -> None:
        """Pay for an event before its result is released."""
        self.filter.spend(event)
        self.events.append(event)


class FilteredGradients(PrivateGradients):
    """`PrivateGradients` at the noise that `tuning` says now; a step that the filter refuses releases nothing.

    Formal guarantee
    ----------------
    All that is released is (epsilon, delta)-DP of the filter's budget, whatever `tuning` made of earlier releases: each
    step is a Poisson-sampled Gaussian mechanism that was paid for before its gradient became visible (`Filter`).
    Assumptions: those of `PrivateGradients`.
    """

    def __init__(
        self,
        module: nn.Module,
        filter: Filter,
        tuning: NoiseTuning,
        *,
        max_grad_norm: float,
        sample_rate: float,
        rng: Randomness,
    ) -> None:
        super().__init__(module, max_grad_norm=max_grad_norm, noise_multiplier=1.0, sample_rate=sample_rate, rng=rng)
        self._filter, self._tuning = filter, tuning

    def sigma_at(self, step: int) -> float:
        """The noise multiplier of the step that comes next; only that one is known."""
        return self._tuning.sigma

    @property
    def affordable(self) -> bool:
        """Whether the step that comes next fits into what is left of the budget."""
        return self._filter.fits(self._event())

    def _finish(self) -> torch.Tensor:
        self._filter.spend(self._event())
        return super()._finish()


class CriticTraining:
    """A generator's updates against a linear critic that always answers its best: free of charge.

    What is known of the real records is the mean of their features: noised releases, weighted by their exactness.
    """

    def __init__(self, run: Run, critic: LinearCritic, generated: int) -> None:
        self._run, self._critic, self._generated = run, critic, generated
        self._done, self._total = 0, run.limit * run.updates
        self._weight, self._sum = 0.0, torch.zeros(())
        self._optimizer = torch.optim.Adam(run.gan.generator.parameters(), lr=run.lr)

    def add(self, noised: torch.Tensor, weight: float) -> None:
        """Take in a release whose noise has variance 1 / weight."""
        self._sum = self._sum.to(noised.device) + weight * noised.detach()
        self._weight += weight

    def best(self, means: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The critic's best weights against generated records of such mean features, and minus its loss."""
        best = self._sum / self._weight - means
        return best, best.square().sum()

    def update(self, updates: int) -> tuple[float, float]:
        """Update the generator so many times; the critic's loss and the generator's, at the last of them."""
        gan = self._run.gan
        for _ in range(updates):
            labels = gan.labels(self._generated)
            means = self._critic.means(gan.generate(labels), labels)
            best, gain = self.best(means.detach())
            loss = -(best * means).sum()
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            # The learning rate falls to zero along a cosine.
            fall = 0.5 * (1 + math.cos(math.pi * min(1.0, self._done / self._total)))
            for group in self._optimizer.param_groups:
                group["lr"] = self._run.lr * fall
            self._optimizer.step()
            self._done += 1
        with torch.no_grad():
            self._critic.weights.weight.copy_(best)
        return -float(gain), float(loss.detach())

    def finish(self) -> None:
        """Make up for updates that the budget's end kept from happening: they are free."""
        if self._run.steps and self._done < self._total:
            self.update(self._total - self._done)
