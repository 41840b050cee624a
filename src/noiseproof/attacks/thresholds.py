"""`loss`: Yeom et al.'s attack, a threshold on the target's loss."""

from __future__ import annotations

from typing import ClassVar

import torch

from noiseproof.attacks.attack import Attack, Predicts, confidence
from noiseproof.attacks.result import best_threshold
from noiseproof.attacks.shadow import ShadowModels
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError


class LossAttack(Attack):
    """Yeom et al. (2018): records with a small loss are taken for members. The score is minus the loss.

    The threshold is the best one on shadow models where there are some; it needs no training otherwise.
    """

    name: ClassVar[str] = "loss"

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None:
            self.threshold, self.threshold_from = threshold, "shadow models"

    @classmethod
    def fit(cls, shadows: ShadowModels) -> LossAttack:
        """Choose the threshold that tells best what shadow models were trained on."""
        scores = shadows.confidences(shadows.pool)
        known = shadows.inside | shadows.outside
        return cls(best_threshold(scores[known], shadows.inside[known]))

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The logarithm of the probability given to the true label."""
        return confidence(target.predict(records.features).cpu(), records.labels.cpu())


# `label-only`: attacks that look at the predicted label alone.


class LabelOnlyAttack(Attack):
    """Is the record labelled right, and does the label survive noise? (Choquette-Choo et al. 2021)

    With no `copies` it is the gap attack: records that are labelled right are taken for members, and its advantage is
    the accuracy gap. With copies each record is asked again that many times with growing numbers of features exchanged
    for those of other records of `pool`, and the score is the share of right labels: members lie deeper in their class.
    Every copy is one more query a record.
    """

    name: ClassVar[str] = "label-only"

    def __init__(self, pool: Dataset | None = None, *, copies: int = 0, largest: float = 0.5, seed: int = 0) -> None:
        if copies < 0 or not 0 < largest <= 1:
            raise SettingError(f"copies must be at least 0 and largest in (0, 1], not {copies} and {largest}.")
        if copies and (pool is None or not len(pool)):
            raise SettingError("label-only with copies needs a pool of records to take features from.")
        self._pool, self._copies, self._largest, self._seed = pool, copies, largest, seed
        if not copies:
            self.threshold, self.threshold_from = 0.5, "right labels are taken for members"

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """Share of the copies, the record itself among them, that are labelled right."""
        right = self._right(target, records.features, records)
        generator = torch.Generator().manual_seed(self._seed)
        for copy in range(self._copies):
            rate = self._largest * (copy + 1) / self._copies
            right += self._right(target, self._exchanged(records.features, rate, generator), records)
        return right / (1 + self._copies)

    def _right(self, target: Predicts, features: torch.Tensor, records: Dataset) -> torch.Tensor:
        return (target.predict(features).argmax(1).cpu() == records.labels.cpu()).double()

    def _exchanged(self, features: torch.Tensor, rate: float, generator: torch.Generator) -> torch.Tensor:
        """The records with each feature, at that rate, taken from a random record of the pool: noise of any kind."""
        assert self._pool is not None
        others = self._pool.features[torch.randint(len(self._pool), (len(features),), generator=generator)]
        exchange = torch.rand(features.shape, generator=generator) < rate
        return torch.where(exchange.to(features.device), others.to(features.device), features)
