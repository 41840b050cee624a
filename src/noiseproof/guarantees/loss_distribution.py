"""Privacy loss distributions: the tightest accounting, on a grid that time and memory allow.

Each step's loss is put on a grid that never understates it, and steps are composed by Fourier transforms. dp-accounting
does the same, and agrees in the tests, but leaves the grid's interval to its caller, keeps it in dictionaries and can
take minutes and tens of gigabytes. Here the interval follows from the epsilon to be expected and the number of steps,
the size is bounded beforehand, and a finer grid shows how much is left to gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from noiseproof.guarantees import loss_grid, renyi
from noiseproof.guarantees.composition import compose, for_delta, for_epsilon
from noiseproof.guarantees.steps import Step, condense, merge_gaussians

TOLERANCE = 1e-4
"""The relative error that the grid may cause, where the size allows."""

_POINTS = 2**20
_WORK = 3e7  # points times kinds of steps
_KINDS = 128
_ROUNDS = 4


def epsilon_of(steps: Sequence[Step], delta: float, guess: float) -> tuple[float, float]:
    """The epsilon of the steps at delta, from above, and about how much of it the grid may have added.

    `guess` is an epsilon of the right order.
    """
    few = condense(merge_gaussians(steps), _KINDS)
    # What is cut off counts as lost, which delta's fourth digit does not notice.
    tail = 1e-4 * delta

    def read(interval: float) -> float:
        return max(losses.epsilon_at(delta) for losses in compose(few, interval, tail, for_delta(delta)))

    return _refined(read, _interval(few, guess, delta), _finest(few, tail))


def delta_of(steps: Sequence[Step], epsilon: float, guess: float) -> tuple[float, float]:
    """The delta of the steps at epsilon, from above, and about how much of it the grid may have added.

    `guess` is an upper bound on it.
    """
    few = condense(merge_gaussians(steps), _KINDS)
    interval = _interval(few, max(epsilon, 1e-3), min(guess, 0.1))
    for _ in range(_ROUNDS):
        tail = max(1e-4 * guess, 1e-290)
        read = partial(_delta_at, few, tail, epsilon)
        found, left = _refined(read, interval, _finest(few, tail))
        if tail < 1e-2 * found:
            break
        # What was cut off, for a larger delta, is much of what was found.
        guess = 1e-2 * tail
    return found, left


def _delta_at(steps: Sequence[Step], tail: float, epsilon: float, interval: float) -> float:
    return max(losses.delta_at(epsilon) for losses in compose(steps, interval, tail, for_epsilon(epsilon)))


def _refined(read: Callable[[float], float], interval: float, finest: float) -> tuple[float, float]:
    """What `read` says on a grid fine enough for it to have settled, if there is room for one, and what may be left."""
    interval = max(finest, interval)
    wider = 2 * interval
    coarse = read(wider)
    for _ in range(_ROUNDS):
        fine = min(coarse, read(interval))
        # The error falls with the square of the interval, so that the last change tells what is left of it.
        square = (interval / wider) ** 2
        left = (coarse - fine) * square / (1 - square) if math.isfinite(coarse) else math.inf
        if left <= TOLERANCE * fine or fine == 0 or interval == finest:
            break
        wider, coarse = interval, fine
        interval = max(finest, interval * min(0.7, max(0.1, 0.8 * math.sqrt(TOLERANCE * fine / left))))
    return fine, left


def _interval(steps: Sequence[Step], epsilon: float, delta: float) -> float:
    """An interval whose error should be within tolerance.

    A step's rounding adds about a tenth of interval^2 to the variance of the loss. With z the normal quantile of delta
    and s the loss's deviation, epsilon is about z s + s^2 / 2 and z^2 / 2 about log(1 / delta), so that epsilon moves
    by log(1 / delta) / epsilon + 1 / 2 times what is added to the variance.
    """
    epsilon = max(epsilon, 1e-6)
    count = sum(step.count for step in steps)
    by_variance = math.sqrt(10 * TOLERANCE * epsilon / (count * (-math.log(delta) / epsilon + 0.5)))
    return min(by_variance, 4 * TOLERANCE * epsilon)


def _finest(steps: Sequence[Step], tail: float) -> float:
    """The smallest interval at which the composition stays within the size that time and memory allow."""
    import numpy as np

    widths = [high - low for low, high in (loss_grid.span(step, tail) for step in steps)]
    widest = max(widths)
    orders = np.geomspace(0.01, 1e4, 25) / widest
    reach = float((renyi.curve(steps, 1 + orders) + math.log(1 / tail) / orders).min())
    whole = widest + 2 * min(reach, sum(step.count * width for step, width in zip(steps, widths, strict=True)))
    return max(whole / _POINTS, whole * len(steps) / _WORK)
