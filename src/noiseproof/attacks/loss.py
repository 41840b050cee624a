"""`loss`: Yeom et al.'s attack, a threshold on the target's loss."""

from __future__ import annotations

from typing import ClassVar

import torch

from noiseproof.attacks.attack import Attack
from noiseproof.attacks.roc import best_threshold
from noiseproof.attacks.shadow_models import ShadowModels
from noiseproof.attacks.target import Predicts, confidence
from noiseproof.data.dataset import Dataset


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
