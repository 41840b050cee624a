"""Calibration: the least noise, or the most steps, that a budget allows.

Every answer was accounted for before it is given: its epsilon is never above the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from noiseproof.errors import SettingError
from noiseproof.privacy import accountants, gaussian_dp
from noiseproof.privacy.accountants import Spent
from noiseproof.privacy.budget import check_delta, check_epsilon, check_neighbours
from noiseproof.privacy.events import sampled_gaussian

_TOLERANCE = 2e-3
_LEAST_SIGMA = 1e-2
_MOST_SIGMA = 1e12
_MOST_STEPS = 10**9
_MOST_TURNS = 100


@dataclass(frozen=True)
class Calibration:
    """A noise multiplier and the epsilon that it was accounted to reach."""

    sigma: float
    """The noise multiplier."""
    epsilon: float
    """What it reaches: the target or just below."""
    delta: float
    """The delta that epsilon is stated at."""
    accountant: str
    """The accountant that was really used."""
    note: str | None = None
    """What a reader must know of the result."""


def sigma(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    *,
    accountant: str = "pld",
    neighbours: str = "add-or-remove",
    group_size: int = 1,
) -> Calibration:
    """The least noise multiplier for `steps` Poisson-sampled Gaussian steps within (epsilon, delta).

    The epsilon reached is within 1% of the target, and never above it, unless even next to no noise stays below it
    (then the result's `note` says so). On the whole data (rate 1) the answer is exact for `pld` and `gdp` (Balle and
    Wang 2018). GDP's central limit is no bound and is refused where records are sampled.

    Args:
        epsilon: The target.
        delta: Above 0.
        rate: The probability with which each record is in a sample.
        steps: How many steps.
        accountant: One of `accountants.ACCOUNTANTS`.
        neighbours: The neighbouring relation.
        group_size: How many of the records, each sampled by itself, may be one person's: the budget is then a person's.

    Returns:
        The noise multiplier and the epsilon that it reaches.

    Raises:
        SettingError: If a setting is impossible, or no noise meets the target.

    Examples:
        >>> from noiseproof.privacy import calibration
        >>> found = calibration.sigma(3.0, 1e-5, rate=0.01, steps=1000)
        >>> round(found.sigma, 2), found.epsilon <= 3.0
        (0.81, True)
    """
    _check(epsilon, delta)
    check_neighbours(neighbours)
    sampled_gaussian(rate, 1.0, steps)  # refuses an impossible rate or number of steps
    if rate == 0 or steps == 0:
        raise SettingError("there is no noise to calibrate: with a rate or steps of 0 no record is ever looked at.")

    def spend(value: float) -> Spent:
        return _spend(rate, value, steps, delta, accountant, neighbours, group_size)

    mu = gaussian_dp.mu_within(epsilon, delta)
    times = (2 if neighbours == "replace-one" else 1) * group_size
    if rate == 1 and accountant in ("pld", "gdp"):
        value = times * math.sqrt(steps) / mu
        while spend(value).epsilon > epsilon:  # by the last digit
            value *= 1 + 1e-12
    else:
        # The central limit of sampled steps, as a place to start.
        guess = times / math.sqrt(math.log1p((mu / rate) ** 2 / steps))
        start = min(max(guess, _LEAST_SIGMA), _MOST_SIGMA)
        value = calibrate(lambda x: spend(x).epsilon, epsilon, start=start, low=_LEAST_SIGMA, high=_MOST_SIGMA)
    found = spend(value)
    note = found.note
    if math.isclose(value, _LEAST_SIGMA):
        note = f"even sigma {_LEAST_SIGMA}, the least that is considered, stays below the target."
    return Calibration(value, found.epsilon, delta, found.accountant, note)


def steps(
    epsilon: float,
    delta: float,
    rate: float,
    sigma: float,
    *,
    accountant: str = "pld",
    neighbours: str = "add-or-remove",
) -> int:
    """How many Poisson-sampled Gaussian steps fit within (epsilon, delta): the most, to half a percent.

    Args:
        epsilon: The target.
        delta: Above 0.
        rate: The probability with which each record is in a sample.
        sigma: The noise multiplier.
        accountant: One of `accountants.ACCOUNTANTS`.
        neighbours: The neighbouring relation.

    Returns:
        The number of steps; 0 if not even one fits.

    Raises:
        SettingError: If a setting is impossible.

    Examples:
        >>> from noiseproof.privacy import calibration
        >>> calibration.steps(3.0, 1e-5, rate=0.01, sigma=1.0) > 1000
        True
    """
    _check(epsilon, delta)
    sampled_gaussian(rate, sigma)  # refuses an impossible rate or noise
    if rate == 0:
        raise SettingError("any number of steps fits: with a rate of 0 no record is ever looked at.")

    def fits(count: int) -> bool:
        return _spend(rate, sigma, count, delta, accountant, neighbours).epsilon <= epsilon

    low, high = 0, 1
    while high <= _MOST_STEPS and fits(high):
        low, high = high, high * 4
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def calibrate(
    function: Callable[[float], float],
    target: float,
    *,
    start: float = 1.0,
    low: float = 1e-12,
    high: float = 1e12,
    increasing: bool = False,
    tolerance: float = _TOLERANCE,
) -> float:
    """Where a monotone positive function reaches a target, to a relative `tolerance` of the target and never above it.

    By default the function falls, as epsilon does with noise, and the smallest argument is sought; with `increasing` it
    rises, as epsilon does with the mu of each query, and the largest is. Both are read on logarithmic scales, on which
    such functions are nearly straight, so that few evaluations are enough.

    Args:
        function: What is to reach the target; monotone and 0 or more.
        target: The value to reach, above 0.
        start: Where to begin; a good guess saves evaluations.
        low: The least argument to consider, above 0.
        high: The largest argument to consider.
        increasing: Whether the function rises with its argument.
        tolerance: How far below the target the value may lie, as a share of it.

    Returns:
        An argument at which the function was seen to be no larger than the target.

    Raises:
        SettingError: If the arguments do not go together, or nothing between `low` and `high` meets the target.

    Examples:
        >>> from noiseproof.privacy import calibration
        >>> round(calibration.calibrate(lambda sigma: 1 / sigma, target=0.5), 1)
        2.0
    """
    if not (0 < target < math.inf and 0 < low <= start <= high):
        raise SettingError("the target must be greater than 0, and 0 < low <= start <= high.")
    sign = -1.0 if increasing else 1.0
    least, most = sorted((sign * math.log(low), sign * math.log(high)))
    aim = math.log(target * (1 - tolerance / 2))

    def argument(position: float) -> float:
        return min(max(math.exp(sign * position), low), high)

    # Positions are logarithms of arguments, such that further is safer. `safe` has been seen to meet the target,
    # `unsafe` to exceed it; each with by how much, as a logarithm.
    safe: tuple[float, float] | None = None
    unsafe: tuple[float, float] | None = None
    position = sign * math.log(start)
    for turn in range(_MOST_TURNS):
        value = function(argument(position))
        excess = math.log(value) - aim if value > 0 else -math.inf
        if value <= target:
            safe = (position, excess)
            if value >= (1 - tolerance) * target or position == least:
                break
        else:
            unsafe = (position, excess)
            if position == most:
                raise SettingError(f"nothing between {low} and {high} meets the target.")
        if safe is None or unsafe is None:
            stride = min(max(1.3 * abs(excess), 0.02), 3.0)
            position = min(max(position + math.copysign(stride, excess), least), most)
        elif safe[0] - unsafe[0] <= 1e-13 * max(1.0, abs(safe[0])):
            break
        elif turn % 4 == 3 or math.isinf(safe[1]) or math.isinf(unsafe[1]):
            position = (safe[0] + unsafe[0]) / 2
        else:
            position = unsafe[0] + (safe[0] - unsafe[0]) * unsafe[1] / (unsafe[1] - safe[1])
    if safe is None:
        raise SettingError(f"nothing between {low} and {high} was found to meet the target.")
    return argument(safe[0])


def _check(epsilon: float, delta: float) -> None:
    check_epsilon(epsilon)
    if check_delta(delta) == 0:
        raise SettingError(
            "Gaussian noise has no finite epsilon at delta 0; choose a delta such as 1e-5, or Laplace noise."
        )


def _spend(
    rate: float, sigma: float, steps: int, delta: float, accountant: str, neighbours: str, group_size: int = 1
) -> Spent:
    event = sampled_gaussian(rate, sigma, steps, group_size=group_size)
    found = accountants.epsilon(event, delta, accountant=accountant, neighbours=neighbours)
    if not found.bound:
        raise SettingError(
            f"{accountant} gives no bound for sampled steps, so nothing can be calibrated by it; use pld."
        )
    return found
