"""Accountants: what the events of a release add up to, as an epsilon at a delta.

Reading a number changes nothing: everything here is a function of events, and what was computed once is remembered.

| accountant | what it does | Poisson sampling |
| --- | --- | --- |
| `pld` | the privacy loss distribution of all steps, from above | exact |
| `rdp` | Renyi divergences, best order, tight conversion | exact |
| `zcdp` | concentrated DP: rho adds up | does not help Gaussians: they count at full rate |
| `gdp` | Gaussian DP: mu^2 adds up; exact for Gaussians | central limit, which is no bound |
| `advanced` | advanced composition of (epsilon, delta) steps | per step |
| `naive` | the sum of (epsilon, delta) steps | per step |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import gaussian_dp, pld, renyi
from noiseproof.privacy.budget import ACCOUNTANTS as ACCOUNTANTS
from noiseproof.privacy.budget import Neighbours, check_delta, check_neighbours
from noiseproof.privacy.card import Proof
from noiseproof.privacy.events import DpEvent
from noiseproof.privacy.steps import SelectionStep, Step, amplified, condense, merge_gaussians, read

_KINDS = 64
_FULL_RATE = "zCDP is not helped by sampling: every Gaussian step counts at full rate."
_CENTRAL_LIMIT = "approximate: not a bound (the central limit of Poisson-sampled Gaussian steps)."


@dataclass(frozen=True)
class Spent:
    """An (epsilon, delta) that events add up to, and who says so.

    Examples:
        >>> from noiseproof.privacy import Laplace, accountants
        >>> spend = accountants.epsilon(Laplace(sensitivity=1.0, epsilon=0.5).event, delta=0.0)
        >>> round(spend.epsilon, 3), spend.accountant, spend.bound
        (0.5, 'naive', True)
    """

    epsilon: float
    """What the events cost at `delta`; infinite where they are not private."""
    delta: float
    """The delta that epsilon is stated at."""
    accountant: str
    """The accountant that was really used."""
    neighbours: Neighbours
    """The neighbouring relation that it holds under."""
    bound: bool = True
    """Whether it is an upper bound; else it is an approximation that may lie below the truth and proves nothing."""
    note: str | None = None
    """What a reader must know of the accountant's treatment."""

    def proof(self, *assumptions: str) -> Proof:
        """This spend as a card's proof.

        Args:
            assumptions: What must be true for it to hold, in sentences.

        Returns:
            The proof.

        Raises:
            UnsupportedError: If it is no bound, or infinite.
        """
        if not self.bound:
            raise UnsupportedError(f"{self.accountant} gives an approximation here, which proves nothing; use pld.")
        if not math.isfinite(self.epsilon):
            raise UnsupportedError("an infinite epsilon is no proof; the card must say why nothing is proven.")
        return Proof(epsilon=self.epsilon, delta=self.delta, accountant=self.accountant, assumptions=assumptions)


def epsilon(event: DpEvent, delta: float, *, accountant: str = "pld", neighbours: str = "add-or-remove") -> Spent:
    """The epsilon that an event costs at delta.

    *Formal guarantee.* Where the result's `bound` is true, what the event describes is (epsilon, delta)-DP for one
    record under `neighbours`, assuming that it describes what ran: noise multipliers over the norm of one record's
    contribution, Poisson samples drawn afresh, steps chosen adaptively from earlier results but with parameters fixed
    beforehand. References: `pld`, `renyi`, `gaussian_dp`, `naive` and `advanced`.

    Args:
        event: What was done to private data.
        delta: The delta to state the epsilon at; at 0 only events without Gaussian noise have a finite one.
        accountant: One of `ACCOUNTANTS`.
        neighbours: The neighbouring relation, `add-or-remove` or `replace-one`.

    Returns:
        The epsilon with its delta, the accountant that gave it and what to know of it.

    Raises:
        SettingError: If a setting is impossible.
        UnsupportedError: If no sound treatment of an event is known here.

    Examples:
        >>> from noiseproof.privacy import accountants
        >>> from noiseproof.privacy.events import sampled_gaussian
        >>> round(accountants.epsilon(sampled_gaussian(0.01, 4.0, 10_000), 1e-5).epsilon, 2)
        0.95
    """
    return _spend(event, check_delta(delta), "epsilon", accountant, neighbours)


def delta(event: DpEvent, epsilon: float, *, accountant: str = "pld", neighbours: str = "add-or-remove") -> Spent:
    """The delta that an event costs at epsilon; guarantee and errors are those of `accountants.epsilon`.

    Args:
        event: What was done to private data.
        epsilon: The epsilon to state the delta at, 0 or more.
        accountant: One of `ACCOUNTANTS`.
        neighbours: The neighbouring relation, `add-or-remove` or `replace-one`.

    Returns:
        The delta with its epsilon, the accountant that gave it and what to know of it.

    Examples:
        >>> from noiseproof.privacy import accountants
        >>> from noiseproof.privacy.events import sampled_gaussian
        >>> accountants.delta(sampled_gaussian(0.01, 4.0, 10_000), epsilon=1.0).delta < 1e-5
        True
    """
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise SettingError(f"epsilon must be a finite number, 0 or more, not {epsilon}.")
    return _spend(event, float(epsilon), "delta", accountant, neighbours)


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """What a record's (epsilon, delta) is at least for a person with `size` records, whatever the mechanism.

    It is what is left where a mechanism does not know of persons: a person's mechanism at the same noise proves far more.

    *Formal guarantee.* (size epsilon, delta (e^(size epsilon) - 1) / (e^epsilon - 1))-DP for `size` records added,
    removed or exchanged together (Vadhan 2017, lemma 2.2). A delta of 1 or more says nothing.

    Args:
        epsilon: For one record.
        delta: For one record.
        size: How many records a person has at most.

    Returns:
        Epsilon and delta for the person.

    Raises:
        SettingError: If the size is below 1.

    Examples:
        >>> from noiseproof.privacy import accountants
        >>> accountants.group_privacy(0.5, 1e-9, 4)[0]
        2.0
    """
    if size < 1:
        raise SettingError(f"a person has at least 1 record, not {size}.")
    total = size * epsilon
    times = size if epsilon == 0 else math.expm1(min(total, 700.0)) / math.expm1(epsilon)
    return total, min(1.0, delta * times)


def _spend(
    event: DpEvent, given: float, wanted: Literal["epsilon", "delta"], accountant: str, neighbours: str
) -> Spent:
    if accountant not in ACCOUNTANTS:
        raise SettingError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, not {accountant!r}.")
    relation = check_neighbours(neighbours)
    steps = read(event, relation, groups=True)
    if steps is None:
        nothing = math.inf if wanted == "epsilon" else 1.0
        found: _Result = nothing, accountant, True, "an event in it protects nothing."
    else:
        found = _account(steps, given, wanted == "epsilon", accountant)
    value, used, bound, note = found
    pair = (value, given) if wanted == "epsilon" else (given, value)
    return Spent(*pair, used, relation, bound, note)


_Result = tuple[float, str, bool, str | None]


@lru_cache(maxsize=64)
def _account(steps: tuple[Step, ...], given: float, at_delta: bool, accountant: str) -> _Result:
    """The epsilon at a delta, or the delta at an epsilon; who found it, whether it is a bound, and a note."""
    whole, steps = steps, tuple(step.folded for step in steps)
    pure = pure_epsilon(steps)
    if not steps or (not at_delta and pure <= given):
        return 0.0, accountant, True, None
    if at_delta and given == 0:
        return pure, "naive", True, "Gaussian noise has no finite epsilon at delta 0." if math.isinf(pure) else None
    if accountant in ("naive", "advanced"):
        composed = naive if accountant == "naive" else advanced
        if at_delta:
            return composed(steps, given), accountant, True, None
        # By the logarithm, as delta may be tiny.
        exponent = gaussian_dp.border(lambda x: composed(steps, math.exp(x)) <= given, fails=-690.0, holds=0.0)
        return math.exp(exponent), accountant, True, None
    if accountant == "zcdp":
        convert = renyi.epsilon_of_rho if at_delta else renyi.delta_of_rho
        sampled = any(step.law == "gaussian" and step.rate < 1 for step in steps)
        return convert(renyi.rho_of(steps), given), accountant, True, _FULL_RATE if sampled else None
    gaussian = gaussian_dp.epsilon_of if at_delta else gaussian_dp.delta_of
    if accountant == "gdp":
        mu, bound, note = _mu(steps)
        return gaussian(mu, given), accountant, bound, note
    merged = merge_gaussians(steps) if accountant == "pld" else steps
    if accountant == "pld" and len(merged) == 1 and merged[0].law == "gaussian" and merged[0].rate == 1:
        return gaussian(1 / merged[0].scale, given), accountant, True, None
    by_renyi = (renyi.epsilon_of if at_delta else renyi.delta_of)(merged, given)[0]
    if at_delta:
        by_renyi = min(pure, by_renyi)
    if accountant == "rdp" or by_renyi == 0:
        return by_renyi, "rdp", True, None
    if any(isinstance(step, SelectionStep) for step in steps):
        return by_renyi, "rdp", True, "rdp, because a private selection has no tighter bound here."
    value, left = (pld.epsilon_of if at_delta else pld.delta_of)(merge_gaussians(whole), given, by_renyi)
    if by_renyi < value:
        return by_renyi, "rdp", True, "rdp, because the grid that time and memory allow is too coarse for pld."
    note = None
    if value > 0 and left > 10 * pld.TOLERANCE * value:
        note = f"overstated by about {100 * left / value:.2g}%, on the finest grid that time and memory allow."
    return value, "pld", True, note


def _mu(steps: tuple[Step, ...]) -> tuple[float, bool, str | None]:
    """The mu that the steps add up to, whether that is proven, and why not.

    Gaussians have 1 / sigma, what is epsilon-DP has `mu_of_pure`. No mu below 1 / sigma dominates a Poisson-sampled
    Gaussian, whose tail is as heavy as an unsampled one's; in the limit of many steps that each lose little, they tend
    to mu = rate sqrt(steps (e^(1 / sigma^2) - 1)) (Bu, Dong, Long and Su 2020), which may lie below the truth.
    """
    squares, bound, note = 0.0, True, None
    for step in steps:
        if step.law != "gaussian":
            squares += step.count * gaussian_dp.mu_of_pure(step.pure_epsilon) ** 2
        elif step.rate == 1:
            squares += step.count / step.scale**2
        elif step.exchange:
            squares += 4 * step.count / step.scale**2
            note = note or "no limit is known here for sampled steps under replace-one: they count at full rate."
        else:
            gain = math.expm1(step.scale**-2) if step.scale > 0.04 else math.inf
            squares += step.rate**2 * step.count * gain
            bound, note = False, _CENTRAL_LIMIT
    return math.sqrt(squares), bound, note


def pure_epsilon(steps: Sequence[Step]) -> float:
    """The epsilon of all steps at delta 0: the sum of the largest losses, infinite with Gaussian noise."""
    return math.fsum(step.count * step.pure_epsilon for step in steps)


def naive(steps: Sequence[Step], delta: float) -> float:
    """The sum of the steps' epsilons, with delta in equal parts for those that need one (Dwork and Roth 2014, 3.16)."""
    return math.fsum(count * epsilon for epsilon, count in _each(condense(steps, _KINDS), delta))


def advanced(steps: Sequence[Step], delta: float) -> float:
    """Advanced composition for steps that differ, with the best split of delta (Kairouz, Oh and Viswanath 2015, 3.5).

    With delta' for the composition and the rest in equal parts for the steps, the total is the least of the sum and of
    sum epsilon tanh(epsilon / 2) + sqrt(2 sum epsilon^2 log(min(1 / delta', e + sqrt(sum epsilon^2) / delta'))).
    """
    few = condense(steps, _KINDS)
    best = naive(steps, delta)
    # From nearly all for the composition to nearly all for the steps.
    for exponent in range(-12, 13):
        share = 1 / (1 + 2.0**exponent)
        each = _each(few, delta * (1 - share))
        squares = math.fsum(count * epsilon**2 for epsilon, count in each)
        drift = math.fsum(count * epsilon * math.tanh(epsilon / 2) for epsilon, count in each)
        if not math.isfinite(squares):
            continue
        odds = min(1 / (delta * share), math.e + math.sqrt(squares) / (delta * share))
        best = min(best, drift + math.sqrt(2 * squares * math.log(odds)))
    return best


def _each(steps: Sequence[Step], delta: float) -> list[tuple[float, int]]:
    """Every kind of step's epsilon, at its part of delta, and its count."""
    parts = sum(step.count for step in steps if step.law == "gaussian")
    return [(_single(step, delta / parts if parts else delta), step.count) for step in steps]


def _single(step: Step, delta: float) -> float:
    """The epsilon of one step at delta.

    A mechanism that is (epsilon, delta)-DP is (log(1 + rate (e^epsilon - 1)), rate delta)-DP on a Poisson sample under
    add-or-remove (Balle, Barthe and Gaboardi 2018), and (2 epsilon, (1 + e^epsilon) delta)-DP under replace-one, whose
    neighbours are two additions or removals apart. Without help from sampling, exchanged Gaussians are Gaussians of
    half sigma.
    """
    if step.law != "gaussian":
        return step.pure_epsilon
    if not step.exchange:
        return _sampled(step, delta)
    best = gaussian_dp.epsilon_of(2 / step.scale, delta)
    for halving in range(1, 100):
        part = delta / 2**halving
        once = _sampled(step, part)
        if once < 500 and (1 + math.exp(once)) * part <= delta:
            return min(best, 2 * once)
    return best


def _sampled(step: Step, delta: float) -> float:
    if delta >= step.rate:
        return 0.0
    return amplified(gaussian_dp.epsilon_of(1 / step.scale, delta / step.rate), step.rate)
