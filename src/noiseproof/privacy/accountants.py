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
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import classical, concentrated, gaussian_dp, pld, renyi
from noiseproof.privacy.budget import Neighbours, check_delta, check_neighbours
from noiseproof.privacy.card import Proof
from noiseproof.privacy.events import DpEvent, Step, merge_gaussians, read
from noiseproof.privacy.search import border

Accountant = Literal["pld", "rdp", "zcdp", "gdp", "advanced", "naive"]

ACCOUNTANTS: tuple[str, ...] = get_args(Accountant)


@dataclass(frozen=True)
class Spend:
    """An (epsilon, delta) that events add up to, and who says so.

    `accountant` is the one that was really used and `note` says what a reader must know of it. Where `bound` is false
    the number is an approximation that may lie below the truth, and no proof can be made of it.
    """

    epsilon: float
    delta: float
    accountant: str
    neighbours: Neighbours
    bound: bool = True
    note: str | None = None

    def proof(self, *assumptions: str) -> Proof:
        """This spend for a card; refused where it is not a bound or not finite."""
        if not self.bound:
            raise UnsupportedError(f"{self.accountant} gives an approximation here, which proves nothing; use pld.")
        if not math.isfinite(self.epsilon):
            raise UnsupportedError("an infinite epsilon is no proof; the card must say why nothing is proven.")
        return Proof(epsilon=self.epsilon, delta=self.delta, accountant=self.accountant, assumptions=assumptions)


def epsilon(event: DpEvent, delta: float, *, accountant: str = "pld", neighbours: str = "add-or-remove") -> Spend:
    """The epsilon that an event costs at delta.

    *Formal guarantee.* Where the result's `bound` is true, what the event describes is (epsilon, delta)-DP for one
    record under `neighbours`, assuming that it describes what ran: noise multipliers over the norm of one record's
    contribution, Poisson samples drawn afresh, steps chosen adaptively from earlier results but with parameters fixed
    beforehand. Events without a sound treatment raise `UnsupportedError`. References: `loss_distribution`, `renyi`,
    `concentrated`, `gaussian_dp`, `classical`.
    """
    name, relation, delta = _check(accountant), check_neighbours(neighbours), check_delta(delta)
    steps = read(event, relation)
    if steps is None:
        return Spend(math.inf, delta, name, relation, note="an event in it protects nothing.")
    value, used, bound, note = _epsilon(steps, delta, name)
    return Spend(value, delta, used, relation, bound, note)


def delta(event: DpEvent, epsilon: float, *, accountant: str = "pld", neighbours: str = "add-or-remove") -> Spend:
    """The delta that an event costs at epsilon; the guarantee is that of `epsilon`."""
    name, relation = _check(accountant), check_neighbours(neighbours)
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise SettingError(f"epsilon must be a finite number, 0 or more, not {epsilon}.")
    steps = read(event, relation)
    if steps is None:
        return Spend(epsilon, 1.0, name, relation, note="an event in it protects nothing.")
    value, used, bound, note = _delta(steps, float(epsilon), name)
    return Spend(float(epsilon), value, used, relation, bound, note)


_Result = tuple[float, str, bool, str | None]

_FULL_RATE = "zCDP is not helped by sampling: every Gaussian step counts at full rate."
_CENTRAL_LIMIT = "approximate: not a bound (the central limit of Poisson-sampled Gaussian steps)."


def _check(accountant: str) -> Accountant:
    if accountant not in ACCOUNTANTS:
        raise SettingError(f"accountant must be one of {', '.join(ACCOUNTANTS)}, not {accountant!r}.")
    return accountant  # type: ignore[return-value]


@lru_cache(maxsize=64)
def _epsilon(steps: tuple[Step, ...], delta: float, accountant: Accountant) -> _Result:
    if not steps:
        return 0.0, accountant, True, None
    pure = classical.pure_epsilon(steps)
    if delta == 0:
        note = "Gaussian noise has no finite epsilon at delta 0." if math.isinf(pure) else None
        return pure, "naive", True, note
    if accountant == "naive":
        return classical.naive(steps, delta), accountant, True, None
    if accountant == "advanced":
        return classical.advanced(steps, delta), accountant, True, None
    if accountant == "zcdp":
        value = concentrated.epsilon_of(concentrated.rho_of(steps), delta)
        return value, accountant, True, _FULL_RATE if _has_sampled_gaussians(steps) else None
    if accountant == "gdp":
        mu, bound, note = _mu(steps)
        return gaussian_dp.epsilon_of(mu, delta), accountant, bound, note
    if accountant == "rdp":
        return min(pure, renyi.epsilon_of(steps, delta)[0]), accountant, True, None
    merged = merge_gaussians(steps)
    if _is_one_gaussian(merged):
        return gaussian_dp.epsilon_of(1 / merged[0].scale, delta), accountant, True, None
    guess = min(pure, renyi.epsilon_of(merged, delta)[0])
    if guess == 0:
        return 0.0, "rdp", True, None
    value, left = pld.epsilon_of(merged, delta, guess)
    return _tighter(value, left, guess)


@lru_cache(maxsize=64)
def _delta(steps: tuple[Step, ...], epsilon: float, accountant: Accountant) -> _Result:
    if not steps or classical.pure_epsilon(steps) <= epsilon:
        return 0.0, accountant, True, None
    if accountant in ("naive", "advanced"):
        composed = classical.naive if accountant == "naive" else classical.advanced
        # By the logarithm, as delta may be tiny.
        exponent = border(lambda x: composed(steps, math.exp(x)) <= epsilon, fails=-690.0, holds=0.0)
        return math.exp(exponent), accountant, True, None
    if accountant == "zcdp":
        value = concentrated.delta_of(concentrated.rho_of(steps), epsilon)
        return value, accountant, True, _FULL_RATE if _has_sampled_gaussians(steps) else None
    if accountant == "gdp":
        mu, bound, note = _mu(steps)
        return gaussian_dp.delta_of(mu, epsilon), accountant, bound, note
    if accountant == "rdp":
        return renyi.delta_of(steps, epsilon)[0], accountant, True, None
    merged = merge_gaussians(steps)
    if _is_one_gaussian(merged):
        return gaussian_dp.delta_of(1 / merged[0].scale, epsilon), accountant, True, None
    guess = renyi.delta_of(merged, epsilon)[0]
    value, left = pld.delta_of(merged, epsilon, guess)
    return _tighter(value, left, guess)


def _tighter(value: float, left: float, renyi_value: float) -> _Result:
    """The smaller of two bounds, and what a reader must know of it."""
    if renyi_value < value:
        return renyi_value, "rdp", True, "rdp, because the grid that time and memory allow is too coarse for pld."
    if value > 0 and left > 10 * pld.TOLERANCE * value:
        share = f"{100 * left / value:.2g}%"
        return value, "pld", True, f"overstated by about {share}, on the finest grid that time and memory allow."
    return value, "pld", True, None


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


def _has_sampled_gaussians(steps: tuple[Step, ...]) -> bool:
    return any(step.law == "gaussian" and step.rate < 1 for step in steps)


def _is_one_gaussian(steps: tuple[Step, ...]) -> bool:
    return len(steps) == 1 and steps[0].law == "gaussian" and steps[0].rate == 1
