"""Confidence: exact upper bounds on error rates from counted errors."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def clopper_pearson_upper(errors: ArrayLike, trials: int, alpha: ArrayLike) -> NDArray[np.float64]:
    """The rate that `errors` of `trials` independent trials of one rate stay below, with confidence 1 - alpha.

    Exact for every rate and number of trials (Clopper and Pearson 1934); one-sided; broadcasts.
    """
    from scipy.special import betainccinv

    errors = np.asarray(errors, dtype=np.float64)
    # Where every trial is an error the upper bound is 1; the beta quantile has no second parameter there.
    rest = np.maximum(trials - errors, 0.5)
    return np.where(errors >= trials, 1.0, betainccinv(errors + 1, rest, np.asarray(alpha, dtype=np.float64)))


def pooled_upper(errors: int, trials: int, alpha: float) -> float:
    """The *mean* rate that `errors` of `trials` independent trials stay below, with confidence 1 - alpha.

    The trials may have different rates: for k <= N p - 1 a sum of N independent Bernoulli variables of mean rate p is
    at most k no more often than a binomial one is (Hoeffding 1956, theorem 4), so the Clopper-Pearson bound holds for
    the mean rate wherever it exceeds (k + 1) / N, and it is raised to that elsewhere. With both worlds' errors pooled
    so, the confidence need not be split between them.
    """
    return min(1.0, max(float(clopper_pearson_upper(errors, trials, alpha)), (errors + 1) / trials))


def wilson_upper(errors: NDArray[np.float64], trials: int, deviations: float) -> NDArray[np.float64]:
    """Wilson's approximate upper bound on a rate, `deviations` standard deviations away: fast, for choosing only."""
    rate, spread = errors / trials, deviations**2 / trials
    width = np.sqrt(spread * rate * (1 - rate) + spread**2 / 4)
    return np.asarray(np.minimum((rate + spread / 2 + width) / (1 + spread), 1.0))


def normal_deviations(alpha: float) -> float:
    """How many standard deviations a normal variable exceeds with probability alpha."""
    from scipy.special import ndtri

    return -float(ndtri(alpha)) if alpha > 0 else math.inf
