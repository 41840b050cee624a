"""quantile-flat: clip to a quantile of the batch's own gradient norms (Lin et al. 2020, algorithm 2, flat)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import nn

from noiseproof.gradients.batch_gradients import BatchGradients
from noiseproof.gradients.games import huge_gradient_game
from noiseproof.gradients.method import GradientMethod
from noiseproof.gradients.noisy_gradient import PAPER
from noiseproof.gradients.quantile_gradients import QuantileGradients
from noiseproof.methods import register

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Budget, Card, Game, Randomness


@register
@dataclass(frozen=True)
class QuantileFlat(GradientMethod):
    """DP-SGD clipped to the un-noised median of the batch's gradient norms (Lin et al., algorithm 2).

    The paper states no epsilon, so the budget's is not used. The setting `clip` is not used either: the data set it.

    Formal guarantee
    ----------------
    None: the clipping norm, and with it the noise, is a function of the private gradients.
    """

    name: ClassVar[str] = "quantile-flat"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False
    claims: ClassVar[str] = "no epsilon; the noise of DP-SGD at the batch's own quantile"
    by: ClassVar[Literal["all", "layer"]] = "all"

    learning_rate: float = 1e-3
    optimiser: Literal["sgd", "adam", "adagrad", "adadelta"] = "adam"
    batch: int = 128
    sigma: float = 0.5
    quantile: float = 0.5

    def gradients(
        self, module: nn.Module, *, rate: float, steps: int, budget: Budget, rng: Randomness
    ) -> BatchGradients:
        """Sums clipped to the batch's quantile and noised."""
        return QuantileGradients(module, sigma=self.sigma, rate=rate, rng=rng, quantile=self.quantile, by=self.by)

    def _micro_batch(self) -> int | None:
        # The quantile is of the whole batch's norms.
        return None

    def _card(self, gradients: BatchGradients, dataset: Dataset, budget: Budget, rng: Randomness) -> Card:
        return self.card(
            dataset,
            budget,
            rng,
            why="The clipping norm is a quantile of private gradient norms, released un-noised through the noise's scale; "
            "the paper states no epsilon, and the budget's was not used.",
            ran={**self._ran(gradients), "sigma": self.sigma, "quantile": self.quantile, "by": self.by},
        )

    def game(self, budget: Budget) -> Game:
        """A canary with a huge gradient: it moves the quantile, and the noise tells how far."""

        def gradients(module: nn.Module, rate: float, rng: Randomness) -> BatchGradients:
            return self.gradients(module, rate=rate, steps=1, budget=budget, rng=rng)

        def score(gradient: torch.Tensor) -> float:
            return float(torch.linalg.vector_norm(gradient))

        return huge_gradient_game(self.name, gradients, score, budget, other=1.0)
