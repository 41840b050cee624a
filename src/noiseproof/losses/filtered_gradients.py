"""Filtered gradients: DP-SGD's gradient whose noise may be chosen as training goes, each step paid for by a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.gradients.private_gradients import PrivateGradients
from noiseproof.losses.tuning import NoiseTuning

if TYPE_CHECKING:
    from noiseproof.guarantees import Filter, Randomness


class FilteredGradients(PrivateGradients):
    """`PrivateGradients` at the noise that `tuning` says now; a step that the filter refuses releases nothing.

    Formal guarantee
    ----------------
    All that is released is (epsilon, delta)-DP of the filter's budget, whatever `tuning` made of earlier releases: each
    step is a Poisson-sampled Gaussian mechanism that was paid for before its gradient became visible (`Filter`).
    Assumptions: those of `PrivateGradients`.
    """

    def __init__(
        self, module: nn.Module, filter: Filter, tuning: NoiseTuning, *, clip: float, rate: float, rng: Randomness
    ) -> None:
        super().__init__(module, clip=clip, sigma=1.0, rate=rate, rng=rng)
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
