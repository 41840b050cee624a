"""The plans of the two scales: how many records, shadow models, epochs and repeats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from papers.lu import published
from papers.study import Scale


@dataclass(frozen=True)
class Plan:
    """What one scale runs. The paper's sizes where a number is None."""

    scale: Scale
    repeats: int
    epochs: int = 100
    attack_epochs: int = 100
    batch_size: int = 100
    most_records: int | None = None
    shadows: int | None = None
    epsilons: tuple[float, ...] = published.EPSILONS
    delta: float = 1e-5
    """Of the proven siblings."""
    notes: tuple[str, ...] = ()

    def records(self, row: str, there: int) -> int:
        """Records to train on, as many to test on, and at least twice as many for shadow models, of so many that are there."""
        planned = int(published.number(row, "records"))
        if self.most_records is not None:
            planned = min(planned, self.most_records)
        return min(planned, there // 4)

    def shadow_count(self, row: str) -> int:
        """How many shadow models."""
        return int(published.number(row, "shadows")) if self.shadows is None else self.shadows


PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        repeats=1,
        epochs=40,
        most_records=1_200,
        shadows=5,
        notes=("scale small: at most 1,200 records, 40 epochs, 5 shadow models and one repeat; expect other numbers.",),
    ),
    "paper": Plan(scale="paper", repeats=10),
}
