"""Privacy loss distributions: the tightest accounting, on a grid that time and memory allow.

Each step's loss is put on a grid that never understates it (`grids`), and steps are composed by Fourier transforms.
dp-accounting does the same, and agrees in the tests, but leaves the grid's interval to its caller, keeps it in
dictionaries and can take minutes and tens of gigabytes. Here the interval follows from the epsilon to be expected and
the number of steps, the size is bounded beforehand, and a finer grid shows how much is left to gain.

A step is a dominating pair of laws P (with the record) and Q (without; under replace-one: with the other record). The
loss is log P/Q. Whatever P and Q put between two neighbouring grid points goes to those two points, split so that the
masses of both laws are kept; by convexity the pair so made dominates the first (Doroshenko et al. 2022, connect the
dots). Read backwards, from Q to P, it is the pair of the record's addition.

The transform's rounding is relative to the whole mass, which is large beside a small delta. So each loss's mass is
first multiplied by e^(tilt * loss), with the tilt that brings the middle of the composition to where delta is decided,
and divided by it afterwards: then delta comes out with many digits however small it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from noiseproof.privacy import renyi
from noiseproof.privacy.loss_grids import Array, LossGrid, grids, span
from noiseproof.privacy.steps import Step, condense, merge_gaussians

TOLERANCE = 1e-4
"""The relative error that the grid may cause, where the size allows."""

_POINTS = 2**20
_WORK = 3e7  # points times kinds of steps
_KINDS = 128
_ROUNDS = 10
_LEAST_DELTA = 1e-280  # below it masses begin to vanish
_ROUNDING = 1e-14  # of one transform and one multiplication; a power of n takes n times as much
_OUTSIDE = 1e-14  # of the tilted mass may lie outside the window, on either side


def epsilon_of(steps: Sequence[Step], delta: float, guess: float) -> tuple[float, float]:
    """The epsilon of the steps at delta, from above, and about how much of it the grid may have added.

    `guess` is an upper bound on it, the tighter the better. Infinite where delta is too small for what float64 keeps.
    """
    if delta < _LEAST_DELTA:
        return math.inf, math.inf
    few = condense(merge_gaussians(steps), _KINDS)
    # What is cut off counts as lost, which delta's fourth digit does not notice.
    tail = 1e-4 * delta

    def read(interval: float) -> tuple[float, int]:
        losses = compose(few, interval, tail, for_delta(delta))
        found = max(loss.epsilon_at(delta) for loss in losses)
        if math.isfinite(found) and max(loss.error_at(found) for loss in losses) > 1e-5 * delta:
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
        tail = max(1e-4 * guess, 1e-4 * _LEAST_DELTA)
        found, left = _refined(partial(read, tail), few, interval, tail)
        if tail < 1e-2 * found:
            break
        # What was cut off, for a larger delta, is much of what was found.
        guess = 1e-2 * tail
    return max(found, _LEAST_DELTA), left


def _refined(
    read: Callable[[float], tuple[float, int]], steps: Sequence[Step], interval: float, tail: float
) -> tuple[float, float]:
    """What `read` says on a grid fine enough to have converged, or the finest allowed, and what error may be left.

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
    widths = [high - low for low, high in (span(step, tail) for step in steps)]
    orders = np.geomspace(0.01, 1e4, 25) / max(widths)
    reach = float((renyi.curve([step.folded for step in steps], 1 + orders) + math.log(1 / tail) / orders).min())
    return max(widths) + 2 * min(reach, sum(step.count * width for step, width in zip(steps, widths, strict=True)))


@dataclass(frozen=True)
class Composition:
    """A composed loss on a grid: `mass[i]` at `losses[i]`, `lost` at infinity, and how far the deltas may be off."""

    losses: Array
    mass: Array
    lost: float
    tilt: float
    log_moment: float
    outside: float
    """How much of the tilted mass is not where it belongs, by rounding or because it lies outside the window."""
    points: int
    """How many points it took: those of the window, or of the longest single loss."""

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon in the window, at least 0, at which the loss leaves no more than delta; else infinity."""
        from scipy.signal import lfilter

        if self.lost > delta:
            return math.inf
        down = self.mass[::-1]
        # Sums over the points above each point: of the masses, and of the masses times e^(epsilon - loss).
        error = self.outside * _untilt(self.tilt, self.log_moment, self.losses)
        above = np.cumsum(down) - down + self.lost + error[::-1]
        fade = math.exp(self.losses[0] - self.losses[1])
        faded = lfilter([0.0, fade], [1.0, -fade], down)
        over = np.flatnonzero(above - faded > delta)
        if not len(over):
            return max(0.0, float(self.losses[0]))
        if over[0] == 0:  # what may lie above the window is alone too much
            return math.inf
        # Between this point and the next the same points are above.
        k = int(over[0])
        gap = float(self.losses[1] - self.losses[0])
        point = float(self.losses[len(down) - 1 - k])
        within = math.log((float(above[k]) - delta) / float(faded[k])) if faded[k] > 0 else gap
        return max(0.0, point + min(max(within, 0.0), gap))

    def delta_at(self, epsilon: float) -> float:
        """The delta that the loss leaves at epsilon: the mean of 1 - e^(epsilon - loss), where that is positive."""
        over = self.losses - epsilon
        above = over > 0
        found = self.lost + self.error_at(epsilon) + float(-np.expm1(-over[above]) @ self.mass[above])
        return min(1.0, found)

    def error_at(self, epsilon: float) -> float:
        """By how much the delta at epsilon may be off; it is counted in."""
        return self.outside * float(_untilt(self.tilt, self.log_moment, np.array(epsilon)))


def for_delta(delta: float) -> Callable[[float, float], float]:
    """How far a tilt is from the one that serves to find the epsilon at this delta: Chernoff's bound on it."""
    return lambda tilt, log_moment: (log_moment - math.log(delta)) / tilt if tilt > 0 else math.inf


def for_epsilon(epsilon: float) -> Callable[[float, float], float]:
    """How far a tilt is from the one that serves to find the delta at this epsilon: log of Chernoff's bound on it."""
    return lambda tilt, log_moment: log_moment - tilt * epsilon


def compose(
    steps: Sequence[Step], interval: float, tail: float, bound: Callable[[float, float], float]
) -> tuple[Composition, ...]:
    """The loss of all steps together on a grid of that interval, for the record's removal and, if other, its addition.

    *Formal guarantee.* The (epsilon, delta) curve of the worse of them is never below that of the composed steps,
    under the neighbouring relation that they were read with: the grid overstates each step (`grids`), what the
    steps' tails of mass `tail` hold counts as lost, and so does what rounding or the window's ends may have taken.
    """
    share = tail / (4 * sum(step.count for step in steps))
    pairs = [(grids(step, interval, share), step.count) for step in steps]
    removed = _convolve([_Part.of(pair[0], count) for pair, count in pairs], bound)
    if all(pair[0] is pair[1] for pair, _ in pairs):
        return (removed,)
    return removed, _convolve([_Part.of(pair[1], count) for pair, count in pairs], bound)


@dataclass(frozen=True)
class _Part:
    """A loss that is taken `count` times, with its masses as logarithms, which tilts do not make vanish."""

    grid: LossGrid
    count: int
    losses: Array
    log_mass: Array

    @classmethod
    def of(cls, grid: LossGrid, count: int) -> _Part:
        with np.errstate(divide="ignore"):
            return cls(grid, count, grid.losses, np.log(grid.mass))

    def log_moment(self, order: float) -> float:
        """The logarithm of the expectation of e^(order * loss), where the loss is finite."""
        exponents = order * self.losses + self.log_mass
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))

    def tilted(self, tilt: float) -> _Part:
        return replace(self, log_mass=self.log_mass + tilt * self.losses - self.log_moment(tilt))

    @property
    def variance(self) -> float:
        mass = np.exp(self.log_mass)
        return float((self.losses - float(self.losses @ mass)) ** 2 @ mass)


def _convolve(parts: list[_Part], bound: Callable[[float, float], float]) -> Composition:
    from scipy.fft import irfft, next_fast_len, rfft

    tilt, log_moment = _tilt(parts, bound)
    tilted = [part.tilted(tilt) for part in parts]
    first, last = _window(tilted)
    size = next_fast_len(last - first + 1, real=True)
    transformed = np.ones(size // 2 + 1, dtype=complex)
    for part in tilted:
        # The transform is cyclic: what is longer than the window is wound round it, as the composition will be.
        wound = np.bincount(np.arange(len(part.losses)) % size, weights=np.exp(part.log_mass), minlength=size)
        transformed *= rfft(wound) ** part.count
    origin = sum(part.grid.start * part.count for part in parts)
    losses = (first + np.arange(size, dtype=float)) * parts[0].grid.interval
    mass = np.maximum(np.roll(irfft(transformed, size), origin - first), 0.0) * _untilt(tilt, log_moment, losses)
    lost = -math.expm1(sum(part.count * math.log1p(-part.grid.lost) for part in parts))
    outside = 2 * _OUTSIDE + _ROUNDING * sum(part.count for part in parts)
    points = max(size, *(len(part.losses) for part in parts))
    return Composition(losses, mass, lost, tilt, log_moment, outside, points)


def _untilt(tilt: float, log_moment: float, losses: Array) -> Array:
    """What tilted mass at these losses counts for; capped where the error bound exceeds 1 anyway."""
    return np.exp(np.minimum(log_moment - tilt * losses, 600.0))


def _tilt(parts: list[_Part], bound: Callable[[float, float], float]) -> tuple[float, float]:
    """The tilt with about the least bound, and the logarithm of its moment of the composition."""
    tilt = _least(lambda order: bound(order, _log_moment(parts, order)), 4 / _deviation(parts))
    whole = _log_moment(parts, 0.0)
    log_moment = _log_moment(parts, tilt)
    return (tilt, log_moment) if bound(tilt, log_moment) < bound(0.0, whole) else (0.0, whole)


def _window(parts: list[_Part]) -> tuple[int, int]:
    """The grid points between which the composition lies but for little on either side, by Chernoff's bound."""
    cut = -math.log(_OUTSIDE)
    start = math.sqrt(2 * cut) / _deviation(parts)

    def beyond(sign: int) -> float:
        def bound(order: float) -> float:
            return (_log_moment(parts, sign * order) + cut) / order

        return bound(_least(bound, start)) / parts[0].grid.interval

    first = max(sum(part.grid.start * part.count for part in parts), math.floor(-beyond(-1)))
    last = min(sum((part.grid.start + len(part.losses) - 1) * part.count for part in parts), math.ceil(beyond(1)))
    return first, max(first + 1, last)


def _least(function: Callable[[float], float], start: float) -> float:
    """Where a function that falls and then rises is about least: downhill from a start, by halving or doubling."""
    best, value = start, function(start)
    for factor in (0.5, 2.0):
        for _ in range(60 if factor < 1 else 4):
            further = function(best * factor)
            if further >= value:
                break
            best, value = best * factor, further
    return best


def _deviation(parts: list[_Part]) -> float:
    return max(math.sqrt(sum(part.count * part.variance for part in parts)), parts[0].grid.interval)


def _log_moment(parts: list[_Part], order: float) -> float:
    return sum(part.count * part.log_moment(order) for part in parts)
