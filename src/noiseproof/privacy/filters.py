"""Filters: a budget that pays for adaptively chosen events and refuses the one that would exceed it.

An accountant reads a plan: its events' parameters must not depend on what came out before. Where they do, a filter is
what holds: it fixes beforehand one quantity that adds up, and admits an event only if the sum stays within what the
budget allows.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from noiseproof.errors import BudgetError, SettingError, UnsupportedError
from noiseproof.privacy import gaussian_dp, renyi
from noiseproof.privacy.accountants import Spent, pure_epsilon
from noiseproof.privacy.budget import Budget
from noiseproof.privacy.card import Proof
from noiseproof.privacy.events import DpEvent
from noiseproof.privacy.steps import Step, read


class _Sum(NamedTuple):
    """A quantity that adds up: what steps cost, what a budget (epsilon, delta) allows, and the epsilon of a sum."""

    price: Callable[[Sequence[Step]], float]
    limit: Callable[[float, float], float]
    epsilon: Callable[[float, float], float]


def _mu_squared(steps: Sequence[Step]) -> float:
    def mu(step: Step) -> float:
        if step.law == "gaussian":  # Poisson sampling does not help it here
            return (2 if step.exchange else 1) / step.scale
        return gaussian_dp.mu_of_pure(step.pure_epsilon)

    return math.fsum(step.count * mu(step) ** 2 for step in steps)


def _at_order(order: float) -> _Sum:
    """Renyi divergences of one order (Canonne, Kamath and Steinke 2020, proposition 12, in both directions)."""

    def limit(epsilon: float, delta: float) -> float:
        return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)

    return _Sum(
        price=lambda steps: float(renyi.curve(steps, [order])[0]),
        limit=limit,
        epsilon=lambda paid, delta: max(0.0, paid - limit(0.0, delta)) if paid else 0.0,
    )


_SUMS = {
    "zcdp": _Sum(renyi.rho_of, renyi.rho_within, renyi.epsilon_of_rho),
    "gdp": _Sum(
        _mu_squared,
        limit=lambda epsilon, delta: gaussian_dp.mu_within(epsilon, delta) ** 2,
        epsilon=lambda paid, delta: gaussian_dp.epsilon_of(math.sqrt(paid), delta),
    ),
    "pure": _Sum(pure_epsilon, limit=lambda epsilon, _: epsilon, epsilon=lambda paid, _: paid),
}

# Sums of a million terms are off by no more than this; ten tenths must fit into one.
_ROUNDING = 1e-12


class Filter:
    """A budget that adaptively chosen events are paid from, one after the other.

    *Formal guarantee.* Whatever is released after `spend` returned is, all together, (epsilon, delta)-DP of the budget
    for one record under its neighbouring relation, even if every event's parameters depend on all that was released
    before. It assumes that events describe what runs and that a release follows its spend. The sum that is kept, by
    `accountant`:

    - `rdp`: Renyi divergences at one order, fixed when the filter is made (Feldman and Zrnic 2021; Lecuyer 2021). The
      order is the best one for `planned`, an event of the kind to be expected, or for Gaussian noise.
    - `zcdp`: rho (the same theorem at every order at once). Sampled Gaussians count at full rate.
    - `gdp`: mu^2, of Gaussian noise exactly (Smith and Thakurta 2022). Sampled Gaussians count at full rate.
    - `pure`: epsilon, of events without delta (Rogers, Roth, Ullman and Vadhan 2016).

    A spend checks and pays under one lock, so that two threads cannot both take what is left.

    Args:
        budget: What may be spent at most.
        accountant: Which quantity is added up: `rdp`, `zcdp`, `gdp` or `pure`.
        planned: An event like those to be expected, by which `rdp` chooses its order.

    Raises:
        UnsupportedError: If no filter is known for the accountant.
        SettingError: If the budget's delta is 0 and the accountant needs one.

    Examples:
        >>> from noiseproof.privacy import Budget, Filter
        >>> from noiseproof.privacy.events import GaussianDpEvent
        >>> filter = Filter(Budget(epsilon=1.0), "gdp")
        >>> while filter.fits(GaussianDpEvent(20.0)):
        ...     spent = filter.spend(GaussianDpEvent(20.0))
        >>> spent.epsilon <= 1.0 == filter.proof().epsilon
        True
    """

    def __init__(self, budget: Budget, accountant: str = "rdp", *, planned: DpEvent | None = None) -> None:
        if accountant not in ("rdp", *_SUMS):
            raise UnsupportedError(
                f"no filter is known to hold for {accountant!r} when events are chosen adaptively; "
                f"use one of {', '.join(('rdp', *_SUMS))}."
            )
        if budget.delta == 0 and accountant != "pure":
            raise SettingError(f"a {accountant} filter needs a delta greater than 0; use a pure one at delta 0.")
        self.budget = budget
        self.accountant = accountant
        self.order = self._best_order(planned) if accountant == "rdp" else None
        self._sum = _at_order(self.order) if self.order is not None else _SUMS[accountant]
        self._limit = self._sum.limit(budget.epsilon, budget.delta)
        self._delta = 0.0 if accountant == "pure" else budget.delta
        self._lock = threading.Lock()
        self._paid = 0.0

    def fits(self, event: DpEvent) -> bool:
        """Whether the event could be paid now; changes nothing."""
        price = self._price(event)
        with self._lock:
            return self._affordable(price)

    def spend(self, event: DpEvent) -> Spent:
        """Pay for the event *before* its result is released, or raise `BudgetError` and pay nothing."""
        price = self._price(event)
        with self._lock:
            if not self._affordable(price):
                raise BudgetError(
                    f"a {type(event).__name__} does not fit into what is left of epsilon {self.budget.epsilon}; "
                    "nothing was spent."
                )
            self._paid += price
            return self._spent(self._paid)

    def proof(self, *assumptions: str) -> Proof:
        """What is proven of all that was and may yet be paid for: the budget, as it was given.

        *Formal guarantee.* That of the class, for whatever is released after a spend, however far the budget was used.
        `spent` is no such thing: where events depend on what came out before, so does its reading, and a smaller epsilon
        than the budget's, stated because less was spent, holds for no set of results fixed beforehand.
        """
        accountant = f"{self.accountant} filter"
        return Proof(epsilon=self.budget.epsilon, delta=self._delta, accountant=accountant, assumptions=assumptions)

    @property
    def spent(self) -> Spent:
        """How far the budget was used, as an (epsilon, delta): for watching, not for a card (see `proof`)."""
        with self._lock:
            return self._spent(self._paid)

    @property
    def left(self) -> float:
        """The share of the budget that is left, from 1 to 0, in what the filter adds up."""
        with self._lock:
            return max(0.0, 1 - self._paid / self._limit)

    def _affordable(self, price: float) -> bool:
        return self._paid + price <= self._limit * (1 + _ROUNDING)

    def _price(self, event: DpEvent) -> float:
        steps = read(event, self.budget.neighbours)
        return math.inf if steps is None else self._sum.price(steps)

    def _spent(self, paid: float) -> Spent:
        epsilon = min(self._sum.epsilon(paid, self._delta), self.budget.epsilon)
        return Spent(epsilon, self._delta, self.accountant, self.budget.neighbours)

    def _best_order(self, planned: DpEvent | None) -> float:
        """The order at which the budget buys the most of what is planned."""
        steps = read(planned, self.budget.neighbours) if planned is not None else (Step("gaussian", 1.0),)
        if not steps:
            raise SettingError(
                "what is planned must look at private data, with noise, for an order to be chosen by it."
            )
        return renyi.order_that_buys_most(
            steps, lambda order: _at_order(order).limit(self.budget.epsilon, self.budget.delta)
        )
