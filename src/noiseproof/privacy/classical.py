"""Classical composition: each step by its own (epsilon, delta), then the sum, or advanced composition."""

from __future__ import annotations

import math
from collections.abc import Sequence

from noiseproof.privacy import gaussian_dp
from noiseproof.privacy.events import Step, amplified, condense

_KINDS = 64


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
