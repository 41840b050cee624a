"""The privacy loss of one step on a grid: its mass at multiples of an interval, from above."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from noiseproof.privacy.steps import Step, amplified

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LossGrid:
    """A loss's mass at `(start + i) * interval`, and what is `lost` at infinity."""

    start: int
    interval: float
    mass: Array
    lost: float

    @property
    def losses(self) -> Array:
        """The losses of the grid's points."""
        return (self.start + np.arange(len(self.mass), dtype=float)) * self.interval


def span(step: Step, tail: float) -> tuple[float, float]:
    """The smallest and the largest loss of a step, but for tails of that mass under either law."""
    from scipy.special import ndtri

    if step.law != "gaussian":
        return math.log1p(step.rate * math.expm1(-step.unsampled_epsilon)), step.pure_epsilon
    if step.group > 1:
        reach = -float(ndtri(tail)) * step.scale
        ends = _group_loss(step, np.array([-reach, step.group + reach]))[0]
        return float(ends[0]), float(ends[1])
    far = (0.5 - float(ndtri(tail)) * step.scale) / step.scale**2
    if step.rate == 1:
        return -far, far
    low, high = math.log1p(step.rate * math.expm1(-far)), amplified(far, step.rate)
    return (low - high, high - low) if step.exchange else (low, high)


def grids(step: Step, interval: float, tail: float) -> tuple[LossGrid, LossGrid]:
    """The losses of the record's removal and of its addition; one grid twice where they are alike."""
    low, high = span(step, tail)
    start, stop = math.floor(low / interval), math.ceil(high / interval)
    losses = np.arange(start, stop + 1, dtype=float) * interval
    with_record, without = _pure(step, losses) if step.law == "pure" else _additive(step, losses)
    # The bins before the first and after the last point are tails; those between are split.
    inner, outer = with_record[1:-1], without[1:-1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        upper = -np.expm1(losses[:-1] + np.log(outer) - np.log(inner)) / -math.expm1(-interval)
    # Where Q's mass has underflowed, all goes to the upper point.
    upper = inner * np.clip(np.nan_to_num(upper, nan=1.0), 0.0, 1.0)
    core = np.append(inner - upper, 0.0)
    core[1:] += upper
    removal = core.copy()
    removal[0] += with_record[0]
    removed = LossGrid(start, interval, removal, float(with_record[-1]))
    if step.rate == 1 or step.exchange:
        return removed, removed
    addition = core * np.exp(-losses)
    addition[-1] += without[-1]
    return removed, LossGrid(-stop, interval, addition[::-1], float(without[0]))


def _pure(step: Step, losses: Array) -> tuple[Array, Array]:
    """What randomised response, which dominates all that is epsilon-DP, puts between the losses on a Poisson sample."""
    with_record, without = np.zeros(len(losses) + 1), np.zeros(len(losses) + 1)
    for epsilon in (step.scale, -step.scale):
        mass = 1 / (1 + math.exp(epsilon)) if epsilon < 700 else 0.0
        # P's mass is Q's times 1 - rate + rate e^epsilon, written so that it stays finite.
        sampled = (1 - step.rate) * mass + step.rate / (1 + math.exp(-epsilon) if epsilon > -700 else math.inf)
        loss = amplified(epsilon, step.rate) if epsilon > 0 else math.log1p(step.rate * math.expm1(epsilon))
        bin_ = min(max(int(np.searchsorted(losses, loss)), 1), len(losses) - 1)
        with_record[bin_] += sampled
        without[bin_] += mass
    return with_record, without


def _additive(step: Step, losses: Array) -> tuple[Array, Array]:
    """What a Gaussian or Laplace step puts between the losses, with bins for the two tails."""
    from scipy.special import ndtr

    where = np.concatenate(([-np.inf], _inverse(step, losses), [np.inf]))
    cdf = ndtr if step.law == "gaussian" else _laplace_cdf

    def between(centre: float) -> Array:
        z = (where - centre) / step.scale
        left, right = z[:-1], z[1:]
        # Differences are taken on the side of the smaller tail, where they keep their digits.
        negative = left + right < 0
        mass: Array = np.where(negative, cdf(right) - cdf(left), cdf(-left) - cdf(-right))
        return mass

    absent = between(0.0)
    if step.group > 1:
        return sum((share * between(float(count)) for count, share in enumerate(_shares(step))), np.zeros(())), absent
    present = between(1.0)
    with_record = (1 - step.rate) * absent + step.rate * present
    if step.exchange:
        return with_record, (1 - step.rate) * absent + step.rate * between(-1.0)
    return with_record, absent


def _laplace_cdf(z: Array) -> Array:
    return np.where(z < 0, 0.5 * np.exp(np.minimum(z, 0.0)), 1 - 0.5 * np.exp(-np.maximum(z, 0.0)))


def _inverse(step: Step, losses: Array) -> Array:
    """The outputs at which a step has these losses: where the law with the record is e^loss times that without."""
    rate, scale = step.rate, step.scale
    if step.group > 1:
        return _group_inverse(step, losses)
    if step.exchange:
        # t = e^(x / sigma^2) solves t - e^loss / t = (1 - rate) / rate (e^loss - 1) e^(1 / (2 sigma^2)).
        with np.errstate(divide="ignore", over="ignore"):
            log_s = math.log((1 - rate) / rate) + 0.5 / scale**2 + _log_sinh(np.abs(losses) / 2)
            asinh = np.where(log_s < 300, np.arcsinh(np.exp(np.minimum(log_s, 300.0))), log_s + math.log(2))
        result: Array = scale**2 * (losses / 2 + np.sign(losses) * asinh)
        return result
    # The loss of the unsampled step, at which 1 - rate + rate e^whole = e^loss.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        inner = np.expm1(np.minimum(losses, 500.0)) / rate
        whole = np.where(inner > -1, np.log1p(np.maximum(inner, -1.0)), -np.inf)
    whole = np.where(losses > 500, losses - math.log(rate), whole) if rate < 1 else losses
    if step.law == "gaussian":
        return scale**2 * whole + 0.5
    # Laplace: the loss moves between its two values while the output is between the two means.
    inside = np.abs(whole) < 1 / scale
    return np.where(inside, (scale * whole + 1) / 2, np.copysign(np.inf, whole))


def _shares(step: Step) -> Array:
    """How likely a sample is to have 0, 1, ... of the group's records."""
    from scipy.stats import binom

    shares: Array = binom.pmf(np.arange(step.group + 1), step.group, step.rate)
    return shares


def _group_loss(step: Step, outputs: Array) -> tuple[Array, Array]:
    """The loss of a group at these outputs, log sum_l b_l e^((2 l x - l^2) / 2 sigma^2), and its slope; both rise."""
    with np.errstate(divide="ignore"):
        logs = np.log(_shares(step))
    loss, slope = np.full(outputs.shape, -np.inf), np.zeros(outputs.shape)
    for count in range(step.group + 1):
        term = logs[count] + (count * outputs - count**2 / 2) / step.scale**2
        above = np.logaddexp(loss, term)
        slope = slope * np.exp(loss - above) + count / step.scale**2 * np.exp(term - above)
        loss = above
    return loss, slope


def _group_inverse(step: Step, losses: Array) -> Array:
    """The outputs at which a group has these losses, by Newton's steps from the nearest of many that are known."""
    least = step.group * math.log1p(-step.rate)  # where even the smallest output is
    low, high = -4 * step.scale, step.group + 4 * step.scale
    while float(_group_loss(step, np.array([high]))[0][0]) < losses[-1]:
        high += high - low
    inside = losses > least
    while inside.any() and float(_group_loss(step, np.array([low]))[0][0]) > losses[inside][0] and high - low < 1e6:
        low -= high - low
    known = np.linspace(low, high, 1 << 14)
    found = np.interp(losses, _group_loss(step, known)[0], known)
    for _ in range(4):
        value, slope = _group_loss(step, found)
        with np.errstate(divide="ignore", invalid="ignore"):
            moved = found - (value - losses) / slope
        # The loss is convex, so that from above Newton's steps stay above; one that leaps is not taken.
        found = np.where(np.isfinite(moved) & (np.abs(moved - found) < high - low), moved, found)
    return np.where(inside, found, -np.inf)


def _log_sinh(x: Array) -> Array:
    return x + np.log(-np.expm1(-2 * x)) - math.log(2)
