"""Two worlds: a lower bound on epsilon from scores of runs on D and runs on its neighbour D'.

A set of scores (an *event*) is chosen on some of the trials, and how often it happens in either world is counted on the
others. If the mechanism is (epsilon, delta)-DP, then for every event E and either order of the worlds

    Pr[E in the accused world] <= e^epsilon Pr[E in the other world] + delta,

that is 1 - FNR <= e^epsilon FPR + delta, with FPR how often the event accuses falsely and FNR how often it misses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from noiseproof.errors import SettingError
from noiseproof.privacy import gaussian_dp

Scores = NDArray[np.float64]
Estimator = Literal["counting", "gaussian"]
"""How the bound was found: by counting alone, or by counting and the assumption that the pair is a Gaussian one."""

# Shares of the error probability that may go to the false positive rate; a rare event needs it more.
_SHARES = np.array([0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
# Intervals are looked for between this many quantiles of the scores; half-lines between all of them.
_INTERVAL_CUTS = 48


@dataclass(frozen=True)
class Event:
    """A set of scores that accuses one of the worlds: those from `low` to below `high`, or all the others.

    Examples:
        >>> event = Event(accuses=1, low=0.5)
        >>> event.happens(np.array([0.2, 0.7, np.inf]))
        array([False,  True,  True])
        >>> event.errors((np.array([0.1, 0.6]), np.array([0.4, 0.9, 1.3])))
        (1, 1)
    """

    accuses: Literal[0, 1]
    """The world that it speaks for."""
    low: float
    """The least score that belongs to the interval."""
    high: float | None = None
    """None: no upper end, so that a score of infinity belongs to it."""
    outside: bool = False
    """Whether the event is what lies outside the interval."""

    def happens(self, scores: Scores) -> NDArray[np.bool_]:
        """For each score whether the event happens."""
        inside = scores >= self.low
        if self.high is not None:
            inside &= scores < self.high
        return ~inside if self.outside else inside

    def errors(self, scores: tuple[Scores, Scores]) -> tuple[int, int]:
        """How often the event accuses falsely, and how often it fails to accuse."""
        falsely = self.happens(scores[1 - self.accuses]).sum()
        missed = (~self.happens(scores[self.accuses])).sum()
        return int(falsely), int(missed)


@dataclass(frozen=True)
class Bound:
    """The largest epsilon that the counted trials refute, and what was counted.

    `counting_bound` and `gaussian_bound` return it.

    Examples:
        >>> bound = counting_bound((np.zeros(100), np.ones(100)), delta=0.0)  # every trial tells the worlds apart
        >>> bound.counted, bound.falsely, bound.missed
        (50, 0, 0)
    """

    epsilon: float
    """The lower bound; 0 where nothing is refuted."""
    delta: float
    """The delta that it holds at."""
    confidence: float
    """How likely it is, at least, that the bound does not exceed the true epsilon."""
    estimator: Estimator
    """How it was found."""
    event: Event
    """The scores that were counted, and which world they accuse."""
    counted: int
    """Trials in each world on which errors were counted (the others chose the event)."""
    falsely: int
    """In how many of them the event happened in the world that it does not accuse."""
    missed: int
    """In how many of them it did not happen in the world that it accuses."""
    mu: float | None = None
    """For the Gaussian estimator, the largest mu for which mu-GDP is refuted."""


def counting_bound(
    scores: tuple[Scores, Scores],
    *,
    delta: float,
    confidence: float = 0.95,
    choosing: tuple[Scores, Scores] | None = None,
) -> Bound:
    """The largest epsilon refuted by counting alone, whatever the mechanism is.

    Half of the trials choose an event (a half-line or an interval of scores, or what is outside it), the world that it
    accuses, and how the error probability is shared between the two error rates; the other half is counted. With
    Clopper-Pearson bounds on both rates, epsilon >= log((1 - delta - FNR) / FPR).

    Args:
        scores: One for each trial in world 0, and as many in world 1; 5 each at least.
        delta: Of the bound, in [0, 1).
        confidence: Of the bound.
        choosing: Scores of other trials, to choose the event by; all of `scores` are counted then.

    Returns:
        The bound and what was counted.

    Raises:
        SettingError: If the scores are too few, differ in number or hold a NaN, or an option is out of range.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> noise = rng.laplace(scale=1.0, size=(2, 10000))  # epsilon 1
        >>> bound = counting_bound((noise[0], noise[1] + 1), delta=0.0)
        >>> round(bound.epsilon, 1)
        0.9

    Formal guarantee
    ----------------
    If the trials are independent and the mechanism is (epsilon, delta)-DP for this pair of worlds, then the bound
    exceeds epsilon with probability at most 1 - confidence. Nothing is assumed about the scores: ties, atoms and
    infinities are allowed, and scores of one law in both worlds give 0 with at least that confidence. The choice costs
    nothing, since the chosen trials are independent of the counted ones. (Jagielski, Ullman and Oprea 2020; Nasr et al.
    2021.) It says nothing about other pairs of worlds or other attacks: it bounds epsilon from below only.
    """
    alpha = _check(scores, delta, confidence)
    choosing, counting = _split(scores, 1 / 2) if choosing is None else (choosing, scores)
    event, share = _choose(choosing, delta, alpha)
    falsely, missed = event.errors(counting)
    counted = len(counting[0])
    epsilon = float(_refuted(falsely, missed, counted, delta, alpha, share))
    return Bound(epsilon, delta, confidence, "counting", event, counted, falsely, missed)


def gaussian_bound(scores: tuple[Scores, Scores], *, delta: float, confidence: float = 0.95) -> Bound:
    """The largest epsilon refuted if the pair of worlds is a Gaussian one: tighter, under that assumption.

    A fifth of the trials places a threshold midway between the worlds; on the others both kinds of errors are counted
    together. Every test of a mu-GDP pair has FPR + FNR >= 2 Phi(-mu / 2), so an upper bound on the mean of the two
    rates (`pooled_upper`) is a lower bound on mu, and mu with delta gives epsilon. The idea is that of Nasr et al.
    2023; pooling avoids splitting the confidence.

    Args:
        scores: One for each trial in world 0, and as many in world 1; 5 each at least.
        delta: Of the bound, in (0, 1).
        confidence: Of the bound.

    Returns:
        The bound and what was counted.

    Raises:
        SettingError: If the scores are too few, differ in number or hold a NaN, or an option is out of range.

    Examples:
        >>> from noiseproof.privacy import gaussian_dp
        >>> rng = np.random.default_rng(0)
        >>> noise = rng.normal(size=(2, 10000))  # mu = 1
        >>> bound = gaussian_bound((noise[0], noise[1] + 1), delta=1e-5)
        >>> round(bound.epsilon, 1), round(gaussian_dp.epsilon_of(1.0, 1e-5), 1)
        (4.0, 4.4)

    Formal guarantee
    ----------------
    With the stated confidence, and no assumption but independent trials: the pair is not mu'-GDP for any mu' < mu.

    The step from mu to epsilon needs more: that the pair's trade-off curve *is* that of two normal laws of one variance
    (the Gaussian mechanism in any dimension, compositions of it without sampling, or, enough by post-processing, scores
    that are normal with one variance in both worlds). Then the mechanism is not (epsilon', delta)-DP for any epsilon'
    below the bound. Without it the bound is wrong and may exceed the truth: a Laplace mechanism of epsilon 1 looks like
    mu = 1 at the middle of its curve, which at delta = 1e-5 would be epsilon 4.5. That a mechanism has *a proof* of
    mu-GDP does not suffice either.
    """
    alpha = _check(scores, delta, confidence)
    if delta == 0:
        raise SettingError("a Gaussian pair has no finite epsilon at delta 0; count alone, or choose a delta above 0.")
    choosing, counting = _split(scores, 1 / 5)
    # Means are the better guide under the assumption; medians survive infinite scores.
    centres = [float(np.mean(part)) if np.isfinite(part).all() else float(np.median(part)) for part in choosing]
    event = Event(1 if centres[1] >= centres[0] else 0, float(_between(np.min(centres), np.max(centres))))
    falsely, missed = event.errors(counting)
    counted = len(counting[0])
    mu = max(0.0, 2 * normal_deviations(pooled_upper(falsely + missed, 2 * counted, alpha)))
    epsilon = gaussian_dp.epsilon_of(mu, delta)
    return Bound(epsilon, delta, confidence, "gaussian", event, counted, falsely, missed, mu)


def _check(scores: tuple[Scores, Scores], delta: float, confidence: float) -> float:
    if not 0 < confidence < 1:
        raise SettingError(f"confidence must lie between 0 and 1, not {confidence}.")
    if not 0 <= delta < 1:
        raise SettingError(f"delta must lie in [0, 1), not {delta}.")
    if any(part.ndim != 1 for part in scores) or len(scores[0]) != len(scores[1]) or len(scores[0]) < 5:
        raise SettingError("an audit needs one score a trial and the same number of trials in both worlds, at least 5.")
    if any(np.isnan(part).any() for part in scores):
        raise SettingError("a score is NaN; no bound is computed from the other trials.")
    return 1 - confidence


def _split(scores: tuple[Scores, Scores], share: float) -> tuple[tuple[Scores, Scores], tuple[Scores, Scores]]:
    at = round(len(scores[0]) * share)
    return (scores[0][:at], scores[1][:at]), (scores[0][at:], scores[1][at:])


def _refuted(
    falsely: int | NDArray[np.float64],
    missed: int | NDArray[np.float64],
    trials: int,
    delta: float,
    alpha: float,
    share: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    """log((1 - delta - FNR) / FPR), at least 0, with `share` of alpha spent on FPR and the rest on FNR."""
    false_rate = clopper_pearson_upper(falsely, trials, alpha * share)
    hit_rate = 1 - delta - clopper_pearson_upper(missed, trials, alpha * (1 - share))
    return np.asarray(np.log(np.maximum(hit_rate / false_rate, 1.0)))


def _choose(scores: tuple[Scores, Scores], delta: float, alpha: float) -> tuple[Event, float]:
    """The event that promises the largest bound, and the share of alpha that its false positive rate needs."""
    trials = len(scores[0])
    cuts = _cuts(np.concatenate(scores))
    above = np.stack([trials - np.searchsorted(np.sort(part), cuts) for part in scores]).astype(np.float64)
    # Half-lines from every cut, and intervals between some of the cuts.
    some = np.unique(np.linspace(0, len(cuts) - 1, _INTERVAL_CUTS).astype(np.int64))
    start, end = (some[index] for index in np.triu_indices(len(some), 1))
    inside = np.concatenate([above, above[:, start] - above[:, end]], axis=1)
    # Rows: the event accuses 1, accuses 0, its complement accuses 1, accuses 0.
    falsely = np.stack([inside[0], inside[1], trials - inside[0], trials - inside[1]])
    missed = np.stack([trials - inside[1], trials - inside[0], inside[1], inside[0]])
    # More deviations than the bound itself takes, or the luckiest of many events wins over the best.
    deviations = normal_deviations(alpha / 2) + 1.5
    false_rate = wilson_upper(falsely, trials, deviations)
    hit_rate = 1 - delta - wilson_upper(missed, trials, deviations)
    row, column = divmod(int(np.argmax(hit_rate / false_rate)), inside.shape[1])
    promised = _refuted(falsely[row, column], missed[row, column], trials, delta, alpha, _SHARES)
    share = float(_SHARES[np.argmax(promised)]) if promised.max() > 0 else 0.5
    if column < len(cuts):
        low, high = float(cuts[column]), None
    else:
        low, high = float(cuts[start[column - len(cuts)]]), float(cuts[end[column - len(cuts)]])
    return Event(1 if row % 2 == 0 else 0, low, high, outside=row >= 2), share


def _cuts(scores: Scores) -> Scores:
    """Thresholds midway between neighbouring different scores, and one below them all."""
    values = np.unique(scores)
    return np.concatenate([[-math.inf], _between(values[:-1], values[1:])])


def _between(low: Scores | np.float64, high: Scores | np.float64) -> Scores:
    """A finite threshold above `low` and not above `high`, in the middle where there is one."""
    middle = np.nan_to_num(low) / 2 + np.nan_to_num(high) / 2
    return np.where((middle > low) & (middle <= high), middle, high)


# Confidence: exact upper bounds on error rates from counted errors.


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
