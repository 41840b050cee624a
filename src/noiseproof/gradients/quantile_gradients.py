"""Quantile gradients: clip to a quantile of the batch's own gradient norms, then noise (Lin et al. 2020, algorithm 2)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.gradients.batch_gradients import BatchGradients
from noiseproof.gradients.engine import RecordGradients, clip_weights
from noiseproof.guarantees.events import DpEvent, NonPrivateDpEvent

if TYPE_CHECKING:
    from noiseproof.guarantees import Randomness


class QuantileGradients(BatchGradients):
    """DP-SGD with the clipping norm read off each batch without noise: flat, or one norm a layer.

    Per layer, each of m layers is clipped to C / sqrt(m), so that the whole stays within the quantile C (the printed
    C(j) = ||gradient|| / m is a slip).

    Formal guarantee
    ----------------
    None: the quantile is a function of the private gradients and enters the result un-noised. The log holds
    `NonPrivateDpEvent`s.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        sigma: float,
        rate: float,
        rng: Randomness,
        quantile: float = 0.5,
        by: Literal["all", "layer"] = "all",
    ) -> None:
        super().__init__(module, rate=rate, rng=rng)
        if not 0 < quantile < 1:
            raise SettingError(f"the quantile must lie in (0, 1), not {quantile}.")
        self.sigma, self.clip = sigma, math.nan
        self._quantile, self._by = quantile, by
        self._batch: RecordGradients | None = None

    def _accumulate(self, gradients: RecordGradients) -> None:
        if self._batch is not None:
            raise SettingError("a quantile of the whole batch cannot be had from micro-batches; use micro_batch=None.")
        self._batch = gradients

    def _event(self) -> DpEvent:
        return NonPrivateDpEvent()

    def _finish(self) -> torch.Tensor:
        batch, self._batch = self._batch, None
        if batch is None:
            # No records, no norms, so no scale for the noise either: the algorithm has nothing to say of this case.
            return self._take_sum()
        self.clip = float(batch.squared_norms().sqrt().quantile(self._quantile))
        share = 1 / self.expected_batch
        if self._by == "all":
            mean = batch.clipped_vector(self.clip, share)
        else:
            squared = batch.squared_norms(by="layer")
            weights = clip_weights(squared, self.clip / math.sqrt(squared.shape[1]), share)
            mean = batch.weighted_vector(weights, by="layer")
        return self._rng.add_gaussian(mean, self.sigma * self.clip * share, out=mean)
