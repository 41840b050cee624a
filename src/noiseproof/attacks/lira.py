"""`lira`: the likelihood ratio attack of Carlini et al. (2022), with a Gaussian for every record."""

from __future__ import annotations

import math
from typing import ClassVar

import torch

from noiseproof.attacks.attack import Attack, Predicts, logit_confidence
from noiseproof.attacks.shadow import ShadowModels
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError

# With fewer shadow models a record's own variance is estimated worse than the one that all records share.
_ENOUGH = 64
_SMALLEST = 1e-6


class LiraAttack(Attack):
    """Carlini et al. (2022): how much likelier is the target's confidence in a record's label if it was trained on it?

    Confidences on the logit scale are taken to be normal over trainings, with the record (in) and without (out), and
    shadow models give each record's means and variances.

    *Online*, the shadow models' pool is the attacked records themselves, each in half of the models: the score is the
    log likelihood ratio, and 0 its threshold. *Offline*, the pool is apart, only what happens without the record is
    known, and the score is how many standard deviations the target's confidence lies above it.

    `fixed_variance` shares one variance between all records; by default so below 64 shadow models.
    """

    name: ClassVar[str] = "lira"

    def __init__(self, shadows: ShadowModels, *, online: bool, fixed_variance: bool | None = None) -> None:
        if online and not (shadows.inside.any(0) & shadows.outside.any(0)).all():
            raise SettingError(
                "online LiRA needs shadow models on halves: each record in some of them and out of some."
            )
        self._shadows = shadows
        self._fixed = len(shadows) < _ENOUGH if fixed_variance is None else fixed_variance
        self.online = online
        if online:
            self.threshold, self.threshold_from = 0.0, "a likelihood ratio of 1"

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The log likelihood ratio (online), or the standardised confidence (offline)."""
        if self.online and not (
            len(records) == len(self._shadows.pool) and torch.equal(records.features, self._shadows.pool.features)
        ):
            raise SettingError("online LiRA can only attack the records that its shadow models were trained on.")
        shadow = self._shadows.confidences(records, logit=True)
        seen = logit_confidence(target.predict(records.features).cpu(), records.labels.cpu())
        if not self.online:
            mean, variance = self._normal(shadow, torch.ones_like(shadow, dtype=torch.bool))
            return (seen - mean) / variance.sqrt()
        likelihoods = []
        for side in (self._shadows.inside, self._shadows.outside):
            mean, variance = self._normal(shadow, side)
            likelihoods.append(-((seen - mean) ** 2) / (2 * variance) - variance.log() / 2 - math.log(2 * math.pi) / 2)
        return likelihoods[0] - likelihoods[1]

    def _normal(self, shadow: torch.Tensor, side: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Each record's mean and variance over the models of one side."""
        count = side.sum(0)
        mean = (shadow * side).sum(0) / count
        squares = ((shadow - mean) ** 2 * side).sum(0)
        # Means were estimated from the same models, which costs each record one degree of freedom.
        if self._fixed:
            variance = (squares.sum() / (count - 1).clamp(min=0).sum().clamp(min=1)).expand_as(mean)
        else:
            variance = squares / (count - 1).clamp(min=1)
        return mean, variance.clamp(min=_SMALLEST)
