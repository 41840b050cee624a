"""Algorithm 1 of Lu et al. (2022): noise on one output neuron, which the exponential mechanism picks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from noiseproof import kernels
from noiseproof.predictions.composition import Law, part_epsilon

if TYPE_CHECKING:
    from noiseproof.guarantees import Randomness, Reproducible


@dataclass(frozen=True)
class NeuronNoise:
    """The noise of one answer of claimed `epsilon`: which neuron, and how much. Vectorised over a batch of queries.

    Formal guarantee
    ----------------
    Claimed: epsilon-DP (Laplace) or epsilon-GDP (Gaussian) for one removed record (theorem 6). It does not hold for
    three classes and more, whatever the noise: the classes that got none keep their exact ratios, so one answer tells
    two trainings apart. For two classes, *given that no neuron moves by more than `neuron`* (which nothing proves), an
    answer is 2 epsilon / 5-DP (Laplace) or 2 epsilon / 3-GDP (Gaussian): only the difference of the two neurons is
    seen, it moves by at most twice `neuron`, and which one gets the (symmetric) noise does not matter.
    """

    epsilon: float
    classes: int
    neuron: float
    """d-z: how far one output neuron is said to move."""
    probability: float
    """d-p: how far one probability is said to move."""
    law: Law

    @property
    def part(self) -> float:
        """The epsilon of the choice, and of the noise."""
        return part_epsilon(self.epsilon, self.classes, self.law)

    @property
    def scale(self) -> float:
        """The noise's scale: Laplace's, or the standard deviation."""
        return self.neuron / self.part

    def answers(self, logits: torch.Tensor, rng: Randomness | NoiseAhead) -> torch.Tensor:
        """Noisy class probabilities (queries, classes), from the network's logits."""
        if isinstance(rng, NoiseAhead):
            return self._seeded_answers(logits, *rng.take(len(logits), logits.dtype))
        # Classes along the first dimension: over that torch's softmax is many times faster than over a short last one.
        columns = logits.t().contiguous()
        chosen = rng.choose(torch.softmax(columns, 0).mul_(self._keenness).t())[None, :]
        add = rng.add_laplace if self.law == "laplace" else rng.add_gaussian
        columns.scatter_(0, chosen, add(columns.gather(0, chosen), self.scale))
        return torch.softmax(columns, 0).t()

    def _seeded_answers(self, logits: torch.Tensor, uniforms: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """The answers with draws that were made before: uniforms that choose the neurons, and noise for them."""
        if self.classes <= kernels.MOST_CLASSES and kernels.suit(logits):
            return kernels.answers(logits, self._keenness, uniforms, noise)
        columns = logits.t().contiguous()
        preferences = torch.softmax(columns, 0).mul_(self._keenness)
        below = torch.softmax(preferences, 0).cumsum_(0) < uniforms
        columns.scatter_add_(0, below.sum(0, keepdim=True), noise)
        return torch.softmax(columns, 0).t()

    @cached_property
    def _keenness(self) -> float:
        return self.part / (2 * self.probability)


class NoiseAhead:
    """The draws of a seeded randomness for many answers at once, so that a small batch costs little more than its forward.

    For research only: noise that waits in memory, or that is added as an ordinary number, is not `Secure`'s.
    """

    _COUNT = 1 << 14

    def __init__(self, noise: NeuronNoise, rng: Reproducible) -> None:
        self._noise, self.rng = noise, rng
        self._uniforms = self._draws = torch.empty(1, 0)
        self._used = 0

    def take(self, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Uniforms below 1 and draws of the noise, (1, count) each."""
        if self._uniforms.dtype != dtype or self._used + count > self._uniforms.shape[1]:
            self._draw(max(count, self._COUNT), dtype)
        first = self._used
        self._used += count
        return self._uniforms.narrow(1, first, count), self._draws.narrow(1, first, count)

    def _draw(self, count: int, dtype: torch.dtype) -> None:
        # No uniform may be above the last cumulative weight, which is 1 but for rounding.
        below_one = 1 - 2 * self._noise.classes * torch.finfo(dtype).eps
        self._uniforms = self.rng.uniform((1, count)).to(dtype).clamp_(max=below_one)
        add = self.rng.add_laplace if self._noise.law == "laplace" else self.rng.add_gaussian
        self._draws = add(torch.zeros(1, count, dtype=dtype), self._noise.scale)
        self._used = 0


def limit_accuracy(accuracy: float, second: float, classes: int) -> float:
    """The accuracy as epsilon goes to 0, where the baseline's best guess is right at `accuracy` and its second at `second`.

    The neuron is any with equal chances and its noise swamps everything: half the time it wins, and is right once in
    `classes`; half the time it is last, and the best of the others answers, which is the second best if the best one
    was hit. So 1/2 (1/C) + 1/2 ((1 - 1/C) accuracy + (1/C) second), for two classes one half.
    """
    share = 1 / classes
    return (share + (1 - share) * accuracy + share * second) / 2
