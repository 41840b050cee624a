"""Correlated noise for a whole training: strategies, their exact sensitivity, and the error that they leave.

A training of T steps turns its gradients G (one row a step) into iterates A G, where A is the *workload*: prefix sums for
plain descent, prefix sums of momentum with a learning-rate schedule otherwise. A *strategy* is a lower-triangular matrix
C. Releasing C G + Z with independent normal Z is one Gaussian mechanism, and C^-1 (C G + Z) = G + C^-1 Z are gradients
whose noise is correlated over the steps so that much of it cancels in the iterates. Since C is lower triangular, step t
needs the gradients up to t alone, and the guarantee holds for gradients that are chosen adaptively (Denisov et al. 2022).
No sampling is needed: what must hold is how often, and how close together, one record takes part.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy import linalg, signal

from noiseproof.errors import SettingError
from noiseproof.privacy.streams import Buffers, Floats, Nodes, Stream, Window
from noiseproof.settings import check_fields

MOST_BANDS = 64
"""Bands up to which a banded strategy's error is followed step by step; beyond, whole matrices are inverted."""


@dataclass(frozen=True)
class Participation:
    """How often one record takes part in a training: at most `times` of `steps` steps, any two `separation` apart or more.

    With `fixed` any two are a multiple of `separation` apart: all epochs have so many steps, and one order.
    """

    steps: int
    times: int = 1
    separation: int = 1
    fixed: bool = False

    def __post_init__(self) -> None:
        check_fields("participation", self)
        if min(self.steps, self.times, self.separation) < 1:
            raise SettingError("steps, participations and their separation are whole numbers of 1 or more.")

    @property
    def most(self) -> int:
        """How often a record can really take part: `times`, or as often as fits into the steps."""
        return min(self.times, -(-self.steps // self.separation))

    def heaviest(self, weights: Floats) -> float:
        """The largest sum of weights (one a step, none negative) over the steps that a record may take part in.

        Exact, by dynamic programming over the number of participations: O(steps x participations).
        """
        if self.fixed:
            rounds = np.pad(weights, (0, -self.steps % self.separation)).reshape(-1, self.separation)
            return float(np.sort(rounds, axis=0)[-self.most :].sum(0).max())
        best = np.zeros(self.steps + self.separation)
        for _ in range(self.most):
            best[: self.steps] = weights + best[self.separation :]
            best = np.maximum.accumulate(best[::-1])[::-1]
        return float(best[0])

    def repeated(self, column: Floats) -> float:
        """The norm of a Toeplitz matrix's columns (the first is given) summed over the earliest steps of all participations."""
        total = np.zeros(self.steps)
        for start in range(0, self.most * self.separation, self.separation):
            total[start:] += column[: self.steps - start]
        return float(np.linalg.norm(total))


@dataclass(frozen=True)
class Workload:
    """What a training makes of its gradients: iterates of descent with momentum and a learning rate by step."""

    momentum: float = 0.0
    lr: tuple[float, ...] | None = None
    """Relative learning rates, one a step; None for the same at every step."""

    def matrix(self, steps: int) -> Floats:
        """A, whose row t says what the iterate after step t is made of."""
        momentum = linalg.toeplitz(self.momentum ** np.arange(steps), np.zeros(steps))
        return np.cumsum(self.rates(steps)[:, None] * momentum, axis=0)

    def rates(self, steps: int) -> Floats:
        """The learning rate of each step."""
        if self.lr is not None and len(self.lr) != steps:
            raise SettingError(f"a workload of {steps} steps needs as many learning rates, not {len(self.lr)}.")
        return np.ones(steps) if self.lr is None else np.asarray(self.lr, float)


PREFIX_SUMS = Workload()


class Strategy(ABC):
    """A strategy C for a participation: how noise is correlated, how sensitive C G is, how much error is left."""

    participation: Participation

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """The largest L2 norm of C times one record's gradients of norm at most 1, over all allowed participations."""

    @abstractmethod
    def variances(self, workload: Workload = PREFIX_SUMS) -> Floats:
        """The variance of each iterate's noise, per coordinate, if that of Z is 1."""

    @abstractmethod
    def matrix(self) -> Floats:
        """C, a column a step (for small numbers of steps: tests and pictures)."""

    @abstractmethod
    def start(self, size: int, like: torch.Tensor) -> Stream:
        """The noise of a training whose gradients have `size` coordinates."""

    @property
    @abstractmethod
    def vectors(self) -> int:
        """How many vectors of the gradient's size a training has to remember."""

    def error(self, workload: Workload = PREFIX_SUMS) -> float:
        """The root mean squared error of the iterates at noise multiplier 1: what strategies are compared by."""
        return self.sensitivity * math.sqrt(self.variances(workload).mean())


class Banded(Strategy):
    """A strategy whose step t mixes the last gradients: rows[t, j] = C[t, t - j], the same rows for a Toeplitz one.

    Formal guarantee
    ----------------
    With at most `separation` bands, any two of a record's columns have disjoint supports, so that the squared norm of C
    times its gradients is at most the sum of the squared norms of those columns, with equality at gradients of norm 1:
    `sensitivity` is exact. A Toeplitz strategy with more bands than that must have coefficients that are not negative and
    never increase; taking part at steps 0, b, 2b, ... is then the worst (Kalinin and Lampert 2024, theorem 2): every
    entry of C^T C is non-negative, so the worst gradients are parallel, and moving any participation to an earlier step
    moves a non-increasing column up, which cannot lower its product with any of the others or its own norm.
    """

    def __init__(self, rows: Floats, participation: Participation, *, toeplitz: bool = False) -> None:
        self.participation = participation
        self.toeplitz = toeplitz
        self.bands = rows.shape[1]
        steps = participation.steps
        if self.bands > steps:
            raise SettingError(f"{steps} steps have room for {steps} bands at most, not {self.bands}.")
        wide = self.bands > participation.separation and participation.most > 1
        if wide and not (toeplitz and (rows[0] >= 0).all() and (np.diff(rows[0]) <= 0).all()):
            raise SettingError(
                f"a strategy of {self.bands} bands needs participations at least as many steps apart, not "
                f"{participation.separation}; take fewer bands, or a Toeplitz strategy whose coefficients never increase."
            )
        # Entries above the first row would be before the training.
        self.rows = np.where(np.arange(self.bands) <= np.arange(steps)[:, None], rows, 0.0)

    @cached_property
    def sensitivity(self) -> float:
        """See `Strategy`; exact or an upper bound as the class says."""
        if self.bands > self.participation.separation and self.participation.most > 1:
            return self.participation.repeated(np.pad(self.rows[-1], (0, self.participation.steps - self.bands)))
        return math.sqrt(self.participation.heaviest(column_squares(self.rows)))

    @property
    def largest_column(self) -> float:
        """The largest norm of a column of C: what one participation alone can move C G by."""
        return math.sqrt(column_squares(self.rows).max())

    @property
    def vectors(self) -> int:
        """See `Strategy`."""
        return 2 * (self.bands - 1)

    def variances(self, workload: Workload = PREFIX_SUMS) -> Floats:
        """See `Strategy`."""
        if self.toeplitz and workload.lr is None:
            filtered = np.convolve(self.rows[-1], [1, -(1 + workload.momentum), workload.momentum])
            return np.cumsum(impulse([1.0], filtered, self.participation.steps) ** 2)
        if self.bands > MOST_BANDS:
            inverse = linalg.solve_triangular(self.matrix().T, workload.matrix(self.participation.steps).T)
            return np.square(inverse).sum(0)
        return state_space(self.rows, workload)[0][1:, 0, 0]

    def matrix(self) -> Floats:
        """See `Strategy`."""
        steps = self.participation.steps
        result = np.zeros((steps, steps))
        for lag in range(self.bands):
            np.fill_diagonal(result[lag:], self.rows[lag:, lag])
        return result

    def start(self, size: int, like: torch.Tensor) -> Stream:
        """See `Strategy`."""
        return Window(self.rows, size, like)


class Dense(Banded):
    """A strategy whose every step refers to all before it, for records in one fixed order: the least error, the most memory.

    Formal guarantee
    ----------------
    A record takes part at steps i, i + b, i + 2b, ... for one i (`Participation.fixed`). With gradients g_s of norm at most
    1 the squared norm of sum_s c_s g_s^T is the sum over s and r of (c_s . c_r)(g_s . g_r), at most that of |c_s . c_r|:
    the largest such sum over all i is the square of `sensitivity`. The optimised columns of one i are orthogonal but for
    rounding, so that it is exact to that. Choquette-Choo et al. 2022.
    """

    def __init__(self, matrix: Floats, participation: Participation) -> None:
        if not participation.fixed:
            raise SettingError(
                "a dense strategy is for records in one fixed order; say that the participation is fixed."
            )
        self.participation, self.toeplitz, self.bands = participation, False, participation.steps
        lags = np.arange(self.bands)
        self.rows = np.where(lags <= lags[:, None], matrix[lags[:, None], lags[:, None] - lags], 0.0)

    @cached_property
    def sensitivity(self) -> float:
        """See `Strategy`; exact or an upper bound as the class says."""
        columns, apart = self.matrix(), self.participation.separation
        of_one = [columns[:, first::apart] for first in range(min(apart, self.bands))]
        return math.sqrt(max(float(np.abs(some.T @ some).sum()) for some in of_one))

    def least_error(self, workload: Workload = PREFIX_SUMS) -> float:
        """What no strategy leaves less error than whose columns of one record's steps are orthogonal; from this one's dual.

        For X = C^T C of such a strategy at sensitivity 1, and V that is positive definite, 0 between steps of different
        records and v_p on the diagonal at all steps of place p, tr(V X) is at most the sum of all v_p, and by Cauchy and
        Schwarz tr(A^T A X^-1) tr(V X) >= (tr (V^1/2 A^T A V^1/2)^1/2)^2. The V taken is that part of X^-1 A^T A X^-1,
        which at the best X is all of it: there the bound is met. 0 if this strategy is too far from it.
        """
        steps, apart = self.bands, self.participation.separation
        target, strategy = workload.matrix(steps), self.matrix()
        left = linalg.solve(strategy.T @ strategy, target.T, assume_a="pos")
        place = np.arange(steps) % apart
        dual = np.where(place == place[:, None], left @ left.T, 0.0)
        sums = np.bincount(place, np.diagonal(dual)) / np.bincount(place)
        np.fill_diagonal(dual, sums[place])
        factor, failed = linalg.lapack.dpotrf(dual, lower=1)
        if failed:
            return 0.0
        return float(linalg.svdvals(target @ np.tril(factor)).sum()) / math.sqrt(sums.sum() * steps)

    def matrix(self) -> Floats:
        """See `Strategy`."""
        steps = np.arange(self.bands)
        return np.where(steps <= steps[:, None], self.rows[steps[:, None], steps[:, None] - steps], 0.0)


class Buffered(Strategy):
    """A buffered linear Toeplitz strategy: C[t, t - j] = sum_i weights[i] decays[i]^(j - 1) for j > 0, and 1 for j = 0.

    It needs two vectors a buffer, however long the training is (Dvijotham et al. 2024; McMahan et al. 2024).

    Formal guarantee
    ----------------
    Weights are positive and sum to at most 1 and decays lie in [0, 1), so that the coefficients are not negative and never
    increase: `sensitivity` is exact, as `Banded`'s is for such a strategy.
    """

    def __init__(self, decays: Floats, weights: Floats, participation: Participation) -> None:
        if not ((decays >= 0) & (decays < 1) & (weights > 0)).all() or weights.sum() > 1:
            raise SettingError("decays must lie in [0, 1), and weights be positive and sum to at most 1.")
        self.participation, self.decays, self.weights = participation, decays, weights

    @cached_property
    def sensitivity(self) -> float:
        """See `Strategy`; exact or an upper bound as the class says."""
        return self.participation.repeated(self._column())

    @property
    def vectors(self) -> int:
        """See `Strategy`."""
        return 2 * len(self.decays)

    def variances(self, workload: Workload = PREFIX_SUMS) -> Floats:
        """See `Strategy`."""
        if workload.lr is not None:
            raise SettingError("a buffered strategy is for learning rates that stay the same; take a banded one.")
        denominator = np.poly(self.decays)
        numerator = denominator.copy()
        for place, weight in enumerate(self.weights):
            numerator[1:] += weight * np.poly(np.delete(self.decays, place))
        filtered = np.convolve(numerator, [1, -(1 + workload.momentum), workload.momentum])
        return np.cumsum(impulse(denominator, filtered, self.participation.steps) ** 2)

    def matrix(self) -> Floats:
        """See `Strategy`."""
        return linalg.toeplitz(self._column(), np.zeros(self.participation.steps))

    def start(self, size: int, like: torch.Tensor) -> Stream:
        """See `Strategy`."""
        return Buffers(self.decays, self.weights, size, like)

    def _column(self) -> Floats:
        powers = self.decays[:, None] ** np.arange(self.participation.steps - 1)
        return np.concatenate([[1.0], self.weights @ powers])


class Tree(Strategy):
    """DP-FTRL's binary tree with Honaker's completion: noisy sums of dyadic ranges of steps, combined as well as can be.

    Formal guarantee
    ----------------
    The row of a node adds up the gradients of its range of 2^l steps. At level l a range holds at most
    m = min(times, ceil(2^l / separation)) of a record's participations, and all ranges of the level together at most
    `times`, so that the squared norm of the level's sums is at most m x times; `sensitivity` is the root of the sum over
    levels: an upper bound, exact for one participation. Kairouz et al. 2021; Honaker 2015.
    """

    def __init__(self, participation: Participation) -> None:
        self.participation = participation
        self.levels = participation.steps.bit_length()
        shares = [1.0]  # of a node's own estimate: its variance once its children's are combined with it
        for _ in range(1, self.levels):
            shares.append(1 / (1 + 1 / (2 * shares[-1])))
        self.shares = np.array(shares)

    @cached_property
    def sensitivity(self) -> float:
        """See `Strategy`; exact or an upper bound as the class says."""
        ranges = 2 ** np.arange(self.levels)
        most = np.minimum(self.participation.most, -(-ranges // self.participation.separation))
        return math.sqrt(float(most.sum()) * self.participation.most)

    @property
    def vectors(self) -> int:
        """See `Strategy`."""
        return 2 * self.levels

    def variances(self, workload: Workload = PREFIX_SUMS) -> Floats:
        """See `Strategy`."""
        if workload != PREFIX_SUMS:
            raise SettingError("a tree is for prefix sums; take a banded strategy for momentum and schedules.")
        ends = np.arange(1, self.participation.steps + 1)
        return ((ends[:, None] >> np.arange(self.levels)) & 1) @ self.shares

    def matrix(self) -> Floats:
        """See `Strategy`."""
        steps = self.participation.steps
        rows = []
        for end in range(1, steps + 1):
            lengths = 2 ** np.arange((end & -end).bit_length())
            rows.append((np.arange(steps) >= end - lengths[:, None]) & (np.arange(steps) < end))
        return np.concatenate(rows).astype(float)

    def start(self, size: int, like: torch.Tensor) -> Stream:
        """See `Strategy`."""
        return Nodes(self.shares, size, like)


def impulse(numerator: Any, denominator: Any, steps: int) -> Floats:
    """The first coefficients of a quotient of polynomials."""
    unit = np.zeros(steps)
    unit[0] = 1
    return np.asarray(signal.lfilter(numerator, denominator, unit), float)


def column_squares(rows: Floats) -> Floats:
    """The squared norms of the columns of a banded matrix."""
    steps, bands = rows.shape
    padded = np.pad(rows**2, ((0, bands - 1), (0, 0)))
    return sum((padded[lag : lag + steps, lag] for lag in range(bands)), np.zeros(steps))


def state_space(rows: Floats, workload: Workload) -> tuple[Floats, Floats, Floats]:
    """Covariances of (iterate, momentum, the last noises) after each step, the transitions, and where noise comes in.

    With b bands a step depends on the b - 1 noises before it alone, so that T steps cost O(T b^2), not O(T^2 b).
    """
    steps, bands = rows.shape
    width = bands + 1
    entry = np.zeros((steps, width))
    entry[:, 0], entry[:, 1] = workload.rates(steps), 1.0
    transitions = np.zeros((steps, width, width))
    if bands > 1:
        entry[:, 2] = 1.0
        transitions[:, 3:, 2:-1] = np.eye(width - 3)
    by_noise = np.zeros((steps, width))
    by_noise[:, 2:] = -rows[:, 1:] / rows[:, :1]
    by_noise[:, 1] = workload.momentum
    transitions += entry[:, :, None] * by_noise[:, None, :]
    transitions[:, 0, 0] += 1
    if bands > 1:  # a noise itself does not remember the momentum
        transitions[:, 2, 1] -= workload.momentum
    covariances = np.zeros((steps + 1, width, width))
    fresh = entry[:, :, None] * entry[:, None, :] / rows[:, 0, None, None] ** 2
    for step in range(steps):
        move = transitions[step]
        covariances[step + 1] = move @ covariances[step] @ move.T + fresh[step]
    return covariances, transitions, entry
