"""Attack: what tells members from non-members by a release's answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from noiseproof.attacks.result import AttackResult
from noiseproof.attacks.split import AttackSplit
from noiseproof.attacks.target import Counted, Predicts
from noiseproof.data.dataset import Dataset


class Attack(ABC):
    """An attack that has learned all it will learn; it can be turned on any number of targets.

    It sees a target through `predict` only, so that a `PredictionRelease` is attacked through its noisy answers, each
    of which costs its budget.
    """

    name: ClassVar[str]
    threshold: float | None = None
    """Scores above it are taken for members; None where the attack has no threshold of its own."""
    threshold_from: str = "the other half of the scores"

    @abstractmethod
    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """One score a record: the larger, the more the record looks like a member."""

    def against(self, target: Predicts, split: AttackSplit, *, seed: int = 0, resamples: int = 1000) -> AttackResult:
        """Attack the target's members and non-members; `seed` is for the result's halves and bootstrap."""
        counted, records = Counted(target), split.records
        return AttackResult(
            attack=self.name,
            scores=self.scores(counted, records),
            member=split.membership,
            labels=records.labels,
            classes=records.public.classes,
            threshold=self.threshold,
            threshold_from=self.threshold_from,
            queries=counted.queries,
            seed=seed,
            resamples=resamples,
        )
