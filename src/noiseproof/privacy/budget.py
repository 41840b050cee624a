"""Budget: how much privacy may be spent, and on what terms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from noiseproof.errors import SettingError

Neighbours = Literal["add-or-remove", "replace-one"]
"""When are two data sets neighbours: one record more or less, or one record exchanged for another."""

NEIGHBOURS: tuple[str, ...] = get_args(Neighbours)

ACCOUNTANTS = ("pld", "rdp", "zcdp", "gdp", "advanced", "naive")
"""The accountants' names; `noiseproof.privacy.accountants` has them, and needs numpy."""


def check_epsilon(epsilon: float) -> float:
    """The epsilon, if it is one; else a `SettingError`."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise SettingError(f"epsilon must be a finite number greater than 0, not {epsilon}.")
    return float(epsilon)


def check_delta(delta: float) -> float:
    """The delta, if it is one; else a `SettingError`."""
    if not 0 <= delta < 1:
        raise SettingError(f"delta must lie in [0, 1), not {delta}; choose one well below 1 / records, such as 1e-5.")
    return float(delta)


def check_neighbours(neighbours: str) -> Neighbours:
    """The neighbouring relation, if it is one; else a `SettingError`."""
    if neighbours not in NEIGHBOURS:
        raise SettingError(f"neighbours must be one of {', '.join(NEIGHBOURS)}, not {neighbours!r}.")
    return neighbours  # type: ignore[return-value]


@dataclass(frozen=True)
class Budget:
    """An (epsilon, delta) that a release may spend, under a stated neighbouring relation, for one record.

    Raises:
        SettingError: If a value is out of its range.

    Examples:
        >>> from noiseproof.privacy import Budget
        >>> budget = Budget(epsilon=3.0, delta=1e-5)
        >>> budget.less(epsilon=1.0).epsilon
        2.0
    """

    epsilon: float
    """The most that may be spent: finite and above 0."""
    delta: float = 1e-5
    """The most that may be spent, in [0, 1); choose one well below 1 / records."""
    neighbours: Neighbours = "add-or-remove"
    """Which data sets are neighbours: one record more or less, or one record exchanged for another."""
    queries: int = 1
    """How many answers a `PredictionRelease` must be able to give within the budget; other releases ignore it."""

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        check_neighbours(self.neighbours)
        if self.queries < 1:
            raise SettingError(f"queries must be at least 1, not {self.queries}.")

    def less(self, epsilon: float, delta: float = 0.0) -> Budget:
        """What is left of it after a spend, by basic composition.

        Args:
            epsilon: What was spent.
            delta: What was spent.

        Returns:
            The rest, on the same terms.

        Raises:
            SettingError: If nothing would be left.
        """
        if epsilon >= self.epsilon or (delta and delta >= self.delta):
            raise SettingError(
                f"the budget of epsilon {self.epsilon:g} and delta {self.delta:g} leaves nothing after ({epsilon:g}, {delta:g}) "
                "was spent on bounds; give a larger one."
            )
        return replace(self, epsilon=self.epsilon - epsilon, delta=self.delta - delta)
