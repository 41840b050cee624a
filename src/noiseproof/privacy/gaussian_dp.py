"""Gaussian differential privacy: mu-GDP, its exact (epsilon, delta) curve, and what is mu-GDP.

A mechanism is mu-GDP if telling its neighbours apart is no easier than telling N(0, 1) from N(mu, 1) (Dong, Roth and Su
2022). A Gaussian mechanism of noise multiplier sigma is 1/sigma-GDP, exactly; squares of mu add up under composition.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta of a mu-GDP mechanism at epsilon (Balle and Wang 2018, theorem 8)."""
    from scipy.special import log_ndtr

    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return max(0.0, -math.exp(upper) * math.expm1(min(0.0, lower - upper)))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon of a mu-GDP mechanism at delta; rounding is upwards."""
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    # P(loss > epsilon) bounds delta, and the loss is Normal(mu^2 / 2, mu^2).
    high = mu * (mu / 2 + math.sqrt(2 * math.log(1 / delta)))
    return border(lambda epsilon: delta_of(mu, epsilon) <= delta, fails=0.0, holds=high)


def mu_within(epsilon: float, delta: float) -> float:
    """The largest mu whose mechanisms are (epsilon, delta)-DP; rounding is downwards."""

    return largest(lambda mu: delta_of(mu, epsilon) <= delta, 1.0)


def mu_of_pure(epsilon: float) -> float:
    """The mu of an epsilon-DP mechanism: 2 Phi^-1(e^epsilon / (1 + e^epsilon)).

    The trade-off curve of randomised response is two chords that meet at alpha = beta = 1 / (1 + e^epsilon). The
    Gaussian curve through that point and the ends (0, 1) and (1, 0) is convex, so it lies below both chords.
    """
    from scipy.special import ndtri

    # Phi^-1 of the small side keeps its digits where e^epsilon / (1 + e^epsilon) rounds to 1.
    return -2 * float(ndtri(1 / (1 + math.exp(epsilon)))) if epsilon < 700 else math.inf


def border(test: Callable[[float], bool], *, fails: float, holds: float) -> float:
    """The border between where a monotone test fails and where it holds, from the side where it holds."""
    while abs(holds - fails) > 1e-14 * abs(holds):
        middle = (fails + holds) / 2
        if middle in (fails, holds):
            break
        if test(middle):
            holds = middle
        else:
            fails = middle
    return holds


def largest(test: Callable[[float], bool], start: float) -> float:
    """The largest positive argument at which a test holds that holds for small ones; rounding is downwards."""
    low = high = start
    while not test(low):
        low /= 2
    while test(high):
        high *= 2
    return border(test, fails=high, holds=low)
