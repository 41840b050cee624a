"""Adaptive gradients: DP-SGD whose clipping norm follows a private quantile of the gradient norms (Andrew et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.gradients.engine import RecordGradients, clip_weights
from noiseproof.gradients.private_gradients import PrivateGradients
from noiseproof.guarantees import Gaussian

if TYPE_CHECKING:
    from noiseproof.guarantees import Randomness


class AdaptiveGradients(PrivateGradients):
    """`PrivateGradients` that moves its clipping norm towards a quantile of the norms, at no cost in epsilon.

    Every step also releases a noisy count of the records whose gradient was not clipped; the norm is then multiplied by
    exp(-rate * (noisy share - quantile)).

    Formal guarantee
    ----------------
    The pair (sum, count) is *one* Gaussian mechanism with noise multiplier sigma: the sum of clipped gradients has
    sensitivity `clip` and noise `z clip`, the sum of (unclipped - 1/2) has sensitivity 1/2 and noise `count_sigma`, and
    `sigma^-2 = z^-2 + (2 count_sigma)^-2`. So the accounted event is that of DP-SGD at sigma; z is a little larger.
    Unit: record; neighbours: add-or-remove (replace-one: both sensitivities double alike, the accountant is told).
    The clipping norm of a step is a function of earlier releases only. Andrew, Thakkar, McMahan, Ramaswamy 2021, Thm 1.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        clip: float,
        sigma: float,
        rate: float,
        rng: Randomness | None = None,
        quantile: float = 0.5,
        count_sigma: float,
        speed: float = 0.2,
    ) -> None:
        super().__init__(module, clip=clip, sigma=sigma, rate=rate, rng=rng)
        if not 0 < quantile < 1:
            raise SettingError(f"the quantile must lie in (0, 1), not {quantile}.")
        if 2 * count_sigma <= sigma:
            raise SettingError(
                f"the count's noise must exceed sigma / 2 = {sigma / 2:.4g}, not {count_sigma:.4g}; "
                "else no noise on the gradients could keep the promise."
            )
        self.sum_sigma = (sigma**-2 - (2 * count_sigma) ** -2) ** -0.5
        self._norm = float(clip)
        self._quantile, self._count_sigma, self._speed = quantile, count_sigma, speed
        self._count = 0.0

    @property
    def clip(self) -> float:
        """The clipping norm of the step that comes next."""
        return self._norm

    def state(self) -> dict[str, float]:
        """Also the clipping norm that it has come to."""
        return {**super().state(), "norm": self._norm}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on from a state that `state` gave."""
        super().restore(state)
        self._norm = state["norm"]

    def _accumulate(self, gradients: RecordGradients) -> None:
        squared = gradients.squared_norms()
        self._add(gradients.weighted_vector(clip_weights(squared, self._norm, 1 / self.expected_batch)))
        self._count += float((squared <= self._norm**2).sum()) - len(squared) / 2

    def _finish(self) -> torch.Tensor:
        mean = self._noised_mean(self._norm, self.sum_sigma)
        spread = Gaussian(0.5, 2 * self._count_sigma).scale(self._rng, 1)
        counted = mean.new_tensor([self._count], dtype=torch.float64)
        count = self.ranks.noised(counted, lambda part: self._rng.add_gaussian(part, spread))
        share = float(count) / self.expected_batch + 0.5
        self._count = 0.0
        self._norm *= math.exp(-self._speed * (share - self._quantile))
        return mean
