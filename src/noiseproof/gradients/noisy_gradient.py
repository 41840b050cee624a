"""noisy-gradient: noise each record's gradient first, clip it second (Lin et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from noiseproof.gradients.batch_gradients import BatchGradients
from noiseproof.gradients.games import huge_gradient_game
from noiseproof.gradients.method import GradientMethod
from noiseproof.gradients.noisy_gradients import Draw, NoisyGradients
from noiseproof.methods import register

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Budget, Card, Game, Randomness

PAPER = "Lin, Bao, Li, Si, Chu: Differential privacy protection over deep learning. Computers & Security 99, 2020"


@register
@dataclass(frozen=True)
class NoisyGradient(GradientMethod):
    """Noisy Gradient: add noise to each record's gradient, then clip it (sequence AC of Lin et al.).

    The paper states no epsilon, so the budget's is not used: `sigma` and `clip` are settings, as there.

    Formal guarantee
    ----------------
    None. Before the noise a record's gradient is unbounded, and the noise scales with `clip` while the signal does not:
    a record with a large gradient passes through with its direction intact.
    """

    name: ClassVar[str] = "noisy-gradient"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False
    claims: ClassVar[str] = "no epsilon; 'ideal privacy protection effects' by a distance of weights (TPVD)"

    clip: float = 1.4
    learning_rate: float = 1e-3
    optimiser: Literal["sgd", "adam", "adagrad", "adadelta"] = "adam"
    batch: int = 128
    sigma: float = 0.5
    draw: Draw = "exact"
    by: Literal["all", "tensor"] = "all"
    """`all` clips over the whole parameter vector; `tensor` each parameter tensor by itself (plain draw only)."""

    def gradients(
        self, module: nn.Module, *, rate: float, steps: int, budget: Budget, rng: Randomness
    ) -> BatchGradients:
        """Noised, then clipped gradients."""
        return NoisyGradients(module, clip=self.clip, sigma=self.sigma, rate=rate, rng=rng, draw=self.draw, by=self.by)

    def _card(self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness) -> Card:
        return self.card(
            dataset,
            budget,
            rng,
            why="A record's gradient is unbounded when the noise is added, so no finite epsilon holds; "
            "the paper states none, and the budget's epsilon was not used.",
            ran={**self._ran(gradients), "sigma": self.sigma, "clip": self.clip, "draw": self.draw},
        )

    def game(self, budget: Budget) -> Game:
        """Two huge gradients instead of one: directions come through the clipping nearly un-noised."""

        def gradients(module: nn.Module, rate: float, rng: Randomness) -> BatchGradients:
            return self.gradients(module, rate=rate, steps=1, budget=budget, rng=rng)

        def score(gradient: torch.Tensor) -> float:
            return float(gradient[0])

        return huge_gradient_game(self.name, gradients, score, budget, other=1e6)
