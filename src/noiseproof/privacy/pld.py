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

from noiseproof.privacy import loss_grid, renyi
from noiseproof.privacy.composition import compose, for_delta, for_epsilon
from noiseproof.privacy.events import Step, condense, merge_gaussians

TOLERANCE = 1e-4
"""The relative error that the grid may cause, where the size allows."""

_POINTS = 2**20
_WORK = 3e7  # points times kinds of steps
_KINDS = 128
_ROUNDS = 10


def epsilon_of(steps: Sequence[Step], delta: float, guess: float) -> tuple[float, float]:
    """The epsilon of the steps at delta, from above, and about how much of it the grid may have added.

    `guess` is an upper bound on it, the tighter the better.
    """
    few = condense(merge_gaussians(steps), _KINDS)
    # What is cut off counts as lost, which delta's fourth digit does not notice.
    tail = 1e-4 * delta

    def read(interval: float) -> tuple[float, int]:
        losses = compose(few, interval, tail, for_delta(delta))
        found = max(loss.epsilon_at(delta) for loss in losses)
        if math.isfinite(found) and max(loss.doubt_at(found) for loss in losses) > 1e-5 * delta:
            # Where Chernoff's bound is far from the truth its tilt is too; what was found is a better place to aim at.
            losses = compose(few, interval, tail, for_epsilon(found))
            found = min(found, max(loss.epsilon_at(delta) for loss in losses))
        return found, max(loss.points for loss in losses)

    return _refined(read, few, _interval(few, guess, delta), tail)


def delta_of(steps: Sequence[Step], epsilon: float, guess: float) -> tuple[float, float]:
    """The delta of the steps at epsilon, from above, and about how much of it the grid may have added.

    `guess` is an upper bound on it, the tighter the better.
    """
    few = condense(merge_gaussians(steps), _KINDS)
    interval = _interval(few, max(epsilon, 1e-3), min(guess, 0.1))

    def read(tail: float, interval: float) -> tuple[float, int]:
        losses = compose(few, interval, tail, for_epsilon(epsilon))
        return max(loss.delta_at(epsilon) for loss in losses), max(loss.points for loss in losses)

    for _ in range(_ROUNDS):
        tail = max(1e-4 * guess, 1e-290)
        found, left = _refined(partial(read, tail), few, interval, tail)
        if tail < 1e-2 * found:
            break
        # What was cut off, for a larger delta, is much of what was found.
        guess = 1e-2 * tail
    return found, left


def _refined(
    read: Callable[[float], tuple[float, int]], steps: Sequence[Step], interval: float, tail: float
) -> tuple[float, float]:
    """What `read` says on a grid fine enough for it to have settled, if there is room for one, and what may be left.

    `read` says how many points it used besides.
    """
    most = min(_POINTS, _WORK / len(steps))
    interval = max(interval, _reach(steps, tail) / most)
    wider = 2 * interval
    coarse, _ = read(wider)
    for _ in range(_ROUNDS):
        value, points = read(interval)
        fine = min(coarse, value)
        # The error falls with the square of the interval, so that the last change tells what is left of it.
        square = (interval / wider) ** 2
        left = (coarse - fine) * square / (1 - square) if math.isfinite(coarse) else math.inf
        finer = max(points / most, min(0.7, max(0.05, 0.8 * math.sqrt(TOLERANCE * fine / left)))) if left > 0 else 1.0
        if left <= TOLERANCE * fine or fine == 0 or finer > 0.9:
            break
        wider, coarse, interval = interval, fine, interval * finer
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


def _reach(steps: Sequence[Step], tail: float) -> float:
    """How far apart the smallest and the largest loss of the composition may lie, but for its tails; rather too far."""
    import numpy as np

    widths = [high - low for low, high in (loss_grid.span(step, tail) for step in steps)]
    orders = np.geomspace(0.01, 1e4, 25) / max(widths)
    reach = float((renyi.curve(steps, 1 + orders) + math.log(1 / tail) / orders).min())
    return max(widths) + 2 * min(reach, sum(step.count * width for step, width in zip(steps, widths, strict=True)))
