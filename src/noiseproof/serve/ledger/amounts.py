"""Amount: privacy spent or still allowed, in a measure that adds up, as whole numbers that add up exactly."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, get_args

from noiseproof.errors import SettingError, UnsupportedError

if TYPE_CHECKING:
    from noiseproof.privacy.events import DpEvent


Measure = Literal["pure", "gdp", "zcdp", "rdp"]
"""What composes by addition: epsilon of pure DP, mu^2 of Gaussian DP, rho of zCDP, Renyi divergences at orders."""

MEASURES: tuple[str, ...] = get_args(Measure)

SCALE = 10**12
"""Units in 1: whole numbers of 1e-12 add up exactly."""

LARGEST = 2**63 - 1
"""The largest capacity, in units, that a database counts: 9.2 million."""

ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0)
"""The orders at which Renyi divergences are kept."""


@dataclass(frozen=True)
class Amount:
    """A spend or a capacity: whole units of 1e-12 of its measure, one number for each order of `rdp`, else one.

    Formal guarantee
    ----------------
    If adaptively chosen answers cost amounts whose sum never exceeds a capacity, all of them together are, for the unit
    and the neighbours that the amounts were proven for: capacity-DP (`pure`; Rogers et al. 2016), sqrt(capacity)-GDP
    (`gdp`; Smith and Thakurta 2022), capacity-zCDP or (order, capacity)-RDP at *every* order (`zcdp`, `rdp`; Feldman
    and Zrnic 2021): a sum must fit at all orders, because the order to trust may not be chosen after the answers. Costs
    are rounded up and capacities down.
    """

    measure: Measure
    units: tuple[int, ...]
    orders: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise SettingError(f"the measure must be one of {', '.join(MEASURES)}, not {self.measure!r}.")
        if (self.measure == "rdp") != bool(self.orders) or len(self.units) != max(1, len(self.orders)):
            raise SettingError(
                f"{self.measure} does not go with {len(self.units)} values at {len(self.orders)} orders."
            )
        if min(self.units) < 0:
            raise SettingError("an amount cannot be below 0.")

    @classmethod
    def cost(cls, measure: Measure, *values: float, orders: tuple[float, ...] = ()) -> Amount:
        """An amount to be spent: rounded up to whole units."""
        return cls(measure, tuple(math.ceil(_exact(value) * SCALE) for value in values), orders)

    @classmethod
    def capacity(cls, measure: Measure, *values: float, orders: tuple[float, ...] = ()) -> Amount:
        """An amount that may be spent: rounded down to whole units."""
        return cls(measure, tuple(math.floor(_exact(value) * SCALE) for value in values), orders)

    @classmethod
    def of_event(cls, event: DpEvent, neighbours: str, *, answers: int = 1, delta: float = 0.0) -> Amount:
        """What an event costs under a neighbouring relation, in the measure in which `answers` of them cost least.

        Least is the epsilon at `delta`. Without a delta, what has bounded losses is charged its epsilon, and Gaussian
        noise mu^2, or Renyi divergences where it is on Poisson samples.
        """
        from noiseproof.privacy import renyi
        from noiseproof.privacy.accountants import pure_epsilon
        from noiseproof.privacy.steps import read

        steps = read(event, neighbours)
        if steps is None:
            raise UnsupportedError("an event that protects nothing has no price; it cannot be sold by the answer.")
        found = []
        pure = pure_epsilon(steps)
        if math.isfinite(pure):
            found.append(cls.cost("pure", pure))
        elif all(step.law == "gaussian" and step.rate == 1 for step in steps):
            found.append(cls.cost("gdp", math.fsum(step.count / step.scale**2 for step in steps)))
        elif not any(step.law == "gaussian" and step.rate < 1 for step in steps):
            found.append(cls.cost("zcdp", renyi.rho_of(steps)))
        orders: tuple[float, ...] = ORDERS
        if delta > 0 and steps:
            # The order that is best for all the answers, and larger ones, which are best while few of them are spent.
            best = renyi.epsilon_of([replace(step, count=step.count * answers) for step in steps], delta)[1]
            orders = tuple(max(best, 1.01) * 2.0**k for k in range(5))
            found.append(cls.cost("zcdp", renyi.rho_of(steps)))
        if not found or delta > 0:
            found.append(cls.cost("rdp", *(float(value) for value in renyi.curve(steps, orders)), orders=orders))
        totals = [(amount * answers).epsilon(delta) for amount in found]
        # The simplest measure that is as good as the best.
        return next(a for a, total in zip(found, totals, strict=True) if total <= min(totals) * (1 + 1e-3))

    @property
    def kind(self) -> tuple[Measure, tuple[float, ...]]:
        """What two amounts must share to be added."""
        return self.measure, self.orders

    def __add__(self, other: Amount) -> Amount:
        return self.of(tuple(map(operator.add, self.units, self._like(other).units)))

    def __sub__(self, other: Amount) -> Amount:
        units = tuple(map(operator.sub, self.units, self._like(other).units))
        if min(units) < 0:
            raise SettingError("an amount cannot be below 0.")
        return self.of(units)

    def __mul__(self, count: int) -> Amount:
        if count < 0:
            raise SettingError("an amount cannot be below 0.")
        return self.of(tuple(units * count for units in self.units))

    def capped(self, most: Amount) -> Amount:
        """The smaller of the two at every order."""
        return self.of(tuple(map(min, self.units, self._like(most).units)))

    def at_least(self, least: Amount) -> Amount:
        """The larger of the two at every order."""
        return self.of(tuple(map(max, self.units, self._like(least).units)))

    def fits(self, capacity: Amount) -> bool:
        """Whether it is within `capacity`, at every order."""
        return all(map(operator.le, self.units, self._like(capacity).units))

    def times_within(self, capacity: Amount) -> int | None:
        """How often it can be spent from `capacity`; None if it costs nothing."""
        pairs = zip(self.units, self._like(capacity).units, strict=True)
        return min([b // a for a, b in pairs if a], default=None)

    def epsilon(self, delta: float) -> float:
        """The epsilon at delta that a spend of this amount allows for; infinite where there is none."""
        values = [units / SCALE for units in self.units]
        if self.measure == "pure":
            return values[0]
        if delta == 0:
            return math.inf if any(self.units) else 0.0
        if self.measure == "gdp":
            from noiseproof.privacy import gaussian_dp

            return gaussian_dp.epsilon_of(math.sqrt(values[0]), delta)
        from noiseproof.privacy import renyi

        if self.measure == "zcdp":
            return renyi.epsilon_of_rho(values[0], delta)
        import numpy as np

        return float(renyi.epsilon_at(np.array(self.orders), np.array(values), delta).min())

    def to_json(self) -> dict[str, Any]:
        """The amount in exact decimals."""
        document: dict[str, Any] = {"measure": self.measure, "amounts": [_decimal(units) for units in self.units]}
        return {**document, "orders": list(self.orders)} if self.orders else document

    def of(self, units: tuple[int, ...]) -> Amount:
        """Units of the same measure, none of them below 0, without looking at all of it again: a spend makes several."""
        if len(units) != len(self.units):
            raise SettingError(f"{self.measure} does not go with {len(units)} values at {len(self.orders)} orders.")
        made = object.__new__(Amount)
        made.__dict__.update(measure=self.measure, units=units, orders=self.orders)
        return made

    def _like(self, other: Amount) -> Amount:
        """The other, which must be counted in the same measure, at the same orders."""
        if self.measure != other.measure or self.orders != other.orders:
            raise SettingError(f"amounts of {self.measure} and of {other.measure} at other orders do not add up.")
        return other


def _exact(value: float) -> Fraction:
    """The decimal number that a float is written as: 0.001 is a thousandth, so that a thousand of them make 1."""
    if not (math.isfinite(value) and value >= 0):
        raise SettingError(f"an amount must be a finite number, 0 or more, not {value}.")
    return Fraction(Decimal(repr(float(value))))


def _decimal(units: int) -> str:
    whole, part = divmod(units, SCALE)
    return f"{whole}.{part:012d}".rstrip("0").rstrip(".")
