"""Concentrated differential privacy: rho-zCDP, what is rho-zCDP, and what that says of epsilon and delta.

A mechanism is rho-zCDP if its Renyi divergence is at most rho times the order, for all orders above 1 (Bun and Steinke
2016). Rhos add up under composition, adaptive composition included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from noiseproof.privacy import renyi
from noiseproof.privacy.events import Step
from noiseproof.privacy.search import border


def rho_of(steps: Iterable[Step]) -> float:
    """The rho of all steps together.

    A Gaussian has 1 / (2 sigma^2), exactly. Sampling does not help it here: at large orders a sampled Gaussian's
    divergence is as large as an unsampled one's, so that it counts in full. What is epsilon-DP has
    epsilon tanh(epsilon / 2): randomised response dominates it, whose divergence of order a is
    (log cosh((a - 1/2) epsilon) - log cosh(epsilon / 2)) / (a - 1). Divided by a that is the slope of a chord of
    log cosh(epsilon sqrt(v)), which is concave in v = (a - 1/2)^2, and so it is largest as a falls to 1. With a bounded
    range it is at most epsilon^2 / 8 (Cesar and Rogers 2021).
    """
    total = 0.0
    for step in steps:
        if step.law == "gaussian":
            total += step.count / (2 * (step.scale / 2 if step.exchange else step.scale) ** 2)
        else:
            epsilon = step.pure_epsilon
            rho = epsilon * math.tanh(epsilon / 2)
            total += step.count * (min(rho, epsilon**2 / 8) if step.bounded_range else rho)
    return total


def epsilon_of(rho: float, delta: float) -> float:
    """The smallest epsilon of a rho-zCDP mechanism at delta, over all orders."""
    if rho == 0:
        return 0.0
    return renyi.best_conversion(lambda orders: renyi.epsilon_at(orders, rho * orders, delta), _order(rho, delta))[0]


def delta_of(rho: float, epsilon: float) -> float:
    """The smallest delta of a rho-zCDP mechanism at epsilon, over all orders."""
    if rho == 0:
        return 0.0
    # The exponent (a - 1)(a rho - epsilon) is least at a = (rho + epsilon) / (2 rho).
    order = max(1.0 + 1e-3, (rho + epsilon) / (2 * rho))
    return renyi.best_conversion(lambda orders: renyi.delta_at(orders, rho * orders, epsilon), order)[0]


def rho_within(epsilon: float, delta: float) -> float:
    """The largest rho whose mechanisms are (epsilon, delta)-DP; rounding is downwards."""

    def holds(rho: float) -> bool:
        return epsilon_of(rho, delta) <= epsilon

    low = high = epsilon
    while not holds(low):
        low /= 2
    while holds(high):
        high *= 2
    return border(holds, fails=high, holds=low)


def _order(rho: float, delta: float) -> float:
    """The order at which rho * order + log(1 / delta) / (order - 1), which the conversion improves upon, is least."""
    return 1 + math.sqrt(-math.log(delta) / rho)
