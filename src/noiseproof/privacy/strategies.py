"""The strategies with the least error for a training: what `factorization`'s classes are optimised to."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from scipy import linalg, signal, special
from scipy.optimize import minimize

from noiseproof.errors import SettingError
from noiseproof.privacy.factorization import (
    MOST_BANDS,
    PREFIX_SUMS,
    Banded,
    Buffered,
    Dense,
    Participation,
    Strategy,
    Tree,
    Workload,
    impulse,
    state_space,
)
from noiseproof.privacy.streams import Floats

StrategyName = Literal["tree", "toeplitz", "banded", "buffered", "dense"]

MOST_STEPS = 2048
"""Steps up to which a banded strategy may have any number of bands, and there is a dense one."""


def strategy(
    name: StrategyName,
    participation: Participation,
    *,
    bands: int | None = None,
    buffers: int = 4,
    workload: Workload = PREFIX_SUMS,
) -> Strategy:
    """The strategy of that kind with the least error, found before the training from public numbers alone.

    Args:
        name: `tree` (DP-FTRL), `toeplitz` (banded, one row for all steps), `banded` (a row a step, also for learning
            rates that change), `buffered` (least memory for long trainings) or `dense` (all steps, for a fixed order: the
            least error, and two vectors of memory a step).
        participation: How often and how close together one record takes part.
        bands: Of `toeplitz` and `banded`; by default as many as the separation, at most 64 for long trainings.
        buffers: Of `buffered`.
        workload: What is made of the gradients.

    Returns:
        The strategy, for noise of its `sensitivity`.

    Raises:
        SettingError: If there is no such strategy for these numbers.

    Examples:
        >>> short = strategy("toeplitz", Participation(steps=100, times=4, separation=25), bands=25)
        >>> independent = strategy("toeplitz", Participation(steps=100, times=4, separation=25), bands=1)
        >>> short.error() < independent.error() / 2
        True
    """
    if name == "tree":
        return Tree(participation)
    if name == "dense":
        return _optimal_dense(participation, workload)
    if name == "buffered":
        return _optimal_buffered(participation, buffers, workload)
    wanted = min(participation.separation if participation.most > 1 else participation.steps, participation.steps)
    if participation.steps > MOST_STEPS:
        wanted = min(wanted, MOST_BANDS)
    bands = min(bands or wanted, participation.steps)
    if name == "toeplitz":
        return Banded(_optimal_toeplitz(participation, bands, workload)[None], participation, toeplitz=True)
    return _optimal_banded(participation, bands, workload)


def _square_root(bands: int) -> Floats:
    """The coefficients of (1 - x)^(-1/2), the best Toeplitz strategy for one participation in ever longer trainings."""
    return np.asarray(special.binom(np.arange(bands) - 0.5, np.arange(bands)), float)


def _optimal_toeplitz(participation: Participation, bands: int, workload: Workload) -> Floats:
    """Coefficients, the first of them 1, with the least error; they start at the square root's."""
    if workload.lr is not None:
        raise SettingError("a Toeplitz strategy is for learning rates that stay the same; take a banded one.")
    if bands > participation.separation and participation.most > 1:
        raise SettingError(f"take at most as many bands as participations are apart, {participation.separation}.")
    steps = participation.steps
    left = np.arange(steps, 0, -1)
    starts = steps - np.arange(participation.most) * participation.separation
    counts = (starts[:, None] > np.arange(bands)).sum(0)  # how many of the worst record's columns reach each band
    pole = [1, -(1 + workload.momentum), workload.momentum]

    def loss(free: Floats) -> tuple[float, Floats]:
        row = np.concatenate([[1.0], free])
        with np.errstate(all="ignore"):
            noise = impulse([1.0], np.convolve(row, pole), steps)
            again = signal.lfilter([1.0], row, noise)
            error, squares = left @ noise**2, counts @ row**2
            slope = -2 * signal.correlate(left * noise, again, "full", "fft")[steps - 1 : steps - 1 + bands] / error
        if not (np.isfinite(error) and np.isfinite(slope).all()):
            return 1e9, np.zeros(bands - 1)
        return math.log(error * squares), slope[1:] + 2 * counts[1:] * free / squares

    if bands == 1:
        return np.ones(1)
    start = _square_root(bands)[1:]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 1000, "ftol": 1e-13})
    return np.concatenate([[1.0], found.x if found.fun <= loss(start)[0] else start])


def _optimal_buffered(participation: Participation, buffers: int, workload: Workload) -> Buffered:
    """Decays and weights with the least error; several starts, since the error has more than one valley."""
    if not 1 <= buffers <= 16:
        raise SettingError(f"a buffered strategy has 1 to 16 buffers, not {buffers}.")

    def at(free: Floats) -> Buffered:
        shares = np.exp(free[buffers:] - free[buffers:].max())
        # The last number is how much of 1 the weights add up to.
        return Buffered(special.expit(free[:buffers]) * (1 - 1e-9), shares[:-1] / shares.sum(), participation)

    def loss(free: Floats) -> float:
        with np.errstate(all="ignore"):
            error = at(free).error(workload)
        return math.log(error) if math.isfinite(error) and error > 0 else 1e9

    best: tuple[float, Floats] | None = None
    for longest in (participation.steps, participation.separation, 30):
        spans = np.geomspace(1.5, max(3.0, longest), buffers)
        start = np.concatenate([special.logit(1 - 1 / spans), -0.7 * np.log(spans), [-1.0]])
        found = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 300})
        if best is None or found.fun < best[0]:
            best = (float(found.fun), found.x)
    assert best is not None
    return at(best[1])


def _optimal_banded(participation: Participation, bands: int, workload: Workload) -> Banded:
    """A row a step, every column of norm 1, with the least error; it starts at the best Toeplitz strategy's."""
    if bands > participation.separation and participation.most > 1:
        raise SettingError(f"take at most as many bands as participations are apart, {participation.separation}.")
    steps = participation.steps
    dense = bands > MOST_BANDS
    if dense and steps > MOST_STEPS:
        raise SettingError(f"more than {MOST_STEPS} steps take at most {MOST_BANDS} bands, not {bands}.")
    matrix = workload.matrix(steps) if dense else None
    columns, lags = np.arange(steps)[:, None], np.arange(bands)
    inside = columns + lags < steps

    def normalised(free: Floats) -> tuple[Floats, Floats, Floats]:
        """Columns of norm 1, their norms before, and the same entries as rows."""
        values = np.where(inside, free.reshape(steps, bands), 0.0)
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        values = values / norms
        rows = np.zeros((steps, bands))
        rows[(columns + lags)[inside], np.broadcast_to(lags, inside.shape)[inside]] = values[inside]
        return values, norms, rows

    def loss(free: Floats) -> tuple[float, Floats]:
        values, norms, rows = normalised(free)
        with np.errstate(all="ignore"):
            error, by_row = _dense_error(rows, matrix) if matrix is not None else _banded_error(rows, workload)
        if not (np.isfinite(error) and np.isfinite(by_row).all()):
            return 1e9, np.zeros(free.size)
        slope = np.zeros((steps, bands))
        slope[inside] = by_row[(columns + lags)[inside], np.broadcast_to(lags, inside.shape)[inside]]
        slope = (slope - values * (slope * values).sum(1, keepdims=True)) / norms
        return math.log(error), slope.ravel() / error

    start: Any = np.tile(_optimal_toeplitz(participation, bands, Workload(workload.momentum)), steps)
    options: dict[str, Any] = {"maxiter": 60 if steps > MOST_STEPS else 400, "maxfun": 500, "ftol": 1e-9}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)  # type: ignore[call-overload]
    return Banded(normalised(found.x)[2], participation)


@lru_cache(maxsize=4)
def _optimal_dense(participation: Participation, workload: Workload) -> Dense:
    """The matrix with the least error whose columns, of steps that one record may take part in, are orthogonal.

    In X = C^T C that is convex: the error is tr(A^T A X^-1), some entries of X are 0, and the diagonal sums to 1 over each
    record's steps. It starts at the best Toeplitz strategy.
    """
    steps, apart = participation.steps, min(participation.separation, participation.steps)
    if steps > MOST_STEPS:
        raise SettingError(f"a dense strategy is for {MOST_STEPS} steps at most, not {steps}; take a banded one.")
    if participation.most * apart < steps:
        raise SettingError("a dense strategy is for records that take part in every epoch; raise `times`.")
    target = workload.matrix(steps)
    squares = target.T @ target
    place = np.arange(steps) % apart
    free = (place != place[:, None]) | np.eye(steps, dtype=bool)
    rounds = np.bincount(place)

    def allowed(change: Floats) -> Floats:
        """The part of a symmetric change that keeps what must be 0 and the diagonal's sums."""
        change = change * free
        diagonal = np.diagonal(change)
        np.fill_diagonal(change, diagonal - (np.bincount(place, diagonal) / rounds)[place])
        return change

    def loss(gram: Floats) -> tuple[float, Floats]:
        factor, failed = linalg.lapack.dpotrf(gram, lower=1)
        if failed:
            return math.inf, gram
        half, _ = linalg.lapack.dtrtrs(factor, target.T, lower=1)
        whole, _ = linalg.lapack.dtrtrs(factor, half, lower=1, trans=1)
        error = float(np.square(half).sum())
        return math.log(error), allowed(-(whole @ whole.T) / error)

    def curvature(gram: Floats) -> Callable[[Floats], Floats]:
        """A slope over the second derivative of the logarithm of the error, nearly.

        The second derivative takes a change D to X^-1 D G + G D X^-1 with G = X^-1 A^T A X^-1; one basis makes X^-1 and G
        diagonal. Half of each weight is what G is to become at the end, the part of it that no change is allowed in, as for
        a descent in the logarithm of X: where X is far too large, steps by G alone would leave what is positive definite.
        """
        inverse = linalg.inv(gram)
        inverse = (inverse + inverse.T) / 2
        now = inverse @ squares @ inverse
        weights, basis = linalg.eigh(now, inverse)
        later = np.einsum("ij,ij->j", basis, (now - allowed(now)) @ basis)
        weights = (weights + np.abs(later)) / (2 * np.vdot(squares, inverse))
        spread = weights + weights[:, None]
        return lambda slope: allowed(basis @ (basis.T @ slope @ basis / spread) @ basis.T)

    row = _optimal_toeplitz(participation, min(apart, MOST_BANDS), Workload(workload.momentum))
    start = Banded(row[None], participation, toeplitz=True).matrix()
    start = start.T @ start * free
    sums = np.bincount(place, np.diagonal(start))[place]
    turned = linalg.cholesky(_descend(loss, start / np.sqrt(np.outer(sums, sums)), curvature)[::-1, ::-1], lower=True)
    return Dense(turned.T[::-1, ::-1], participation)


def _descend(
    loss: Callable[[Floats], tuple[float, Floats]],
    at: Floats,
    curvature: Callable[[Floats], Callable[[Floats], Floats]],
    times: int = 15,
    most: int = 20,
) -> Floats:
    """L-BFGS, begun again `times` times with the curvature of where it is; `loss` may be infinite."""
    value, slope = loss(at)
    for _ in range(times):
        begun, scaled, past = value, curvature(at), list[tuple[Floats, Floats, float]]()
        for _ in range(most):
            way, shares = slope, []
            for step, turn, product in reversed(past):
                shares.append(float(np.vdot(step, way)) / product)
                way = way - shares[-1] * turn
            way = scaled(way)
            for step, turn, product in past:
                way = way + (shares.pop() - float(np.vdot(turn, way)) / product) * step
            length, falls = 1.0, float(np.vdot(slope, way))
            while (there := loss(at - length * way))[0] > value - 1e-4 * length * falls and length > 1e-12:
                length /= 2
            if not there[0] < value - 1e-8:
                break
            step, turn = -length * way, there[1] - slope
            if (product := float(np.vdot(step, turn))) > 0:
                past = [*past[-9:], (step, turn, product)]
            at, (value, slope) = at + step, there
        if begun - value < 1e-7:
            break
    return at


def _dense_error(rows: Floats, workload: Floats) -> tuple[float, Floats]:
    """The summed variances of all iterates, and their slope by entry."""
    steps, bands = rows.shape
    strategy = np.zeros((steps, steps))
    for lag in range(bands):
        np.fill_diagonal(strategy[lag:], rows[lag:, lag])
    left = linalg.solve_triangular(strategy.T, workload.T, check_finite=False).T  # A C^-1
    slope = -2 * linalg.solve_triangular(strategy, left.T @ left, lower=True, check_finite=False).T
    by_row = np.zeros((steps, bands))
    for lag in range(bands):
        by_row[lag:, lag] = np.diagonal(slope, -lag)
    return float(np.square(left).sum()), by_row


def _banded_error(rows: Floats, workload: Workload) -> tuple[float, Floats]:
    """The summed variances of all iterates, and their slope by entry, backwards through the covariances."""
    covariances, transitions, entry = state_space(rows, workload)
    steps, width = entry.shape
    adjoints = np.zeros((steps, width, width))
    behind = np.zeros((width, width))
    for step in range(steps - 1, -1, -1):
        behind[0, 0] += 1
        adjoints[step] = behind
        behind = transitions[step].T @ behind @ transitions[step]
    seen = np.einsum("ti,tij->tj", entry, adjoints)
    slope = 2 * np.einsum("tj,tjk,tkl->tl", seen, transitions, covariances[:-1], optimize=True)[:, 2:]
    by_row = np.zeros_like(rows)
    diagonal = rows[:, 0]
    by_row[:, 1:] = -slope / diagonal[:, None]
    by_row[:, 0] = (slope * rows[:, 1:]).sum(1) / diagonal**2 - 2 * np.einsum("tj,tj->t", seen, entry) / diagonal**3
    return float(covariances[1:, 0, 0].sum()), by_row
