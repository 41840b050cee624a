"""One run: a lower bound on epsilon from a single training with many canaries, each in or out by a coin of its own.

Whoever has the result guesses of some canaries whether they were in, and abstains from the others. A mechanism that is
(epsilon, delta)-DP for one canary more or less lets nobody be right much more often than e^epsilon / (1 + e^epsilon).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike

from noiseproof.audits.audit import AuditError
from noiseproof.errors import SettingError
from noiseproof.privacy import gaussian_dp


@dataclass(frozen=True)
class Guesses:
    """Of how many canaries there were, how many were guessed to be in or out, and how many of these correctly."""

    canaries: int
    guessed: int
    correct: int

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guessed <= self.canaries or self.canaries < 1:
            raise SettingError(
                f"{self.correct} correct of {self.guessed} guesses on {self.canaries} canaries is impossible; correct "
                "guesses are guesses, and guesses are of canaries."
            )


def flip(canaries: int, generator: torch.Generator) -> torch.Tensor:
    """For each canary a fair coin of its own, True for in: the bound needs exactly that."""
    return torch.randint(2, (canaries,), generator=generator).bool()


def guess(scores: ArrayLike, included: ArrayLike, *, guess_in: int, guess_out: int) -> Guesses:
    """Guess `in` for the highest scores and `out` for the lowest, abstain in between, and count.

    The numbers of guesses must not be chosen by looking at `included`. Ties go by position, which tells nothing either,
    since every canary has its own coin.
    """
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(included, dtype=bool)
    if values.ndim != 1 or values.shape != truth.shape:
        raise SettingError("one-run auditing needs one score and one coin for each canary.")
    if min(guess_in, guess_out) < 0 or guess_in + guess_out > len(values):
        raise SettingError(f"{guess_in} guesses of in and {guess_out} of out do not fit {len(values)} canaries.")
    bad = np.flatnonzero(np.isnan(values))
    if len(bad):
        first = int(bad[0])
        message = f"the score of canary {first} is NaN, so no bound was computed; mend the mechanism or the score."
        raise AuditError.of(message, "nan", range(first, first + 1))
    order = np.argsort(values, kind="stable")
    correct = truth[order[len(order) - guess_in :]].sum() + (~truth[order[:guess_out]]).sum()
    return Guesses(len(values), guess_in + guess_out, int(correct))


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """How likely an (epsilon, delta)-DP mechanism allows at least as many correct guesses (an upper bound).

    With W ~ Binomial(guessed, e^epsilon / (1 + e^epsilon)) and v correct guesses of m canaries:
    Pr[W >= v] + 2 m delta max_i Pr[v > W >= v - i] / i (Steinke, Nasr and Jagielski 2023).
    """
    from scipy.stats import binom

    accuracy = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(guesses.correct - 1, guesses.guessed, accuracy))
    if delta == 0 or guesses.correct == 0:
        return min(1.0, tail)
    just_below = np.cumsum(binom.pmf(np.arange(guesses.correct - 1, -1, -1), guesses.guessed, accuracy))
    worst = float(np.max(just_below / np.arange(1, guesses.correct + 1)))
    return min(1.0, tail + 2 * guesses.canaries * delta * worst)


def contradicts(guesses: Guesses, needed: Callable[[float], float], alpha: float) -> bool:
    """Whether a mechanism of a trade-off curve f allows so many correct guesses with probability below alpha.

    `needed(x)` is the least false positive rate at which f allows a true positive rate of x: the inverse of 1 - f.

    Let W be the number of correct guesses of c guesses on m canaries and p_i = Pr[W = i]. Turning the coin of a canary
    that was guessed correctly, with everything else fixed, makes one guess wrong. Averaged over canaries, f-DP and the
    concavity of 1 - f give for every t: sum_{i>=t} i p_i / m <= (1 - f)(sum_{i>=t-1} (c - i) p_i / m). A tail of mass
    alpha from v on therefore needs mass below v, least if each constraint is met with mass as far down as it allows; if
    all mass together then exceeds 1, Pr[W >= v] is below alpha. (Mahloujifar, Melis and Chaudhuri 2024.)
    """
    made, total = guesses.guessed, guesses.canaries
    right = alpha * guesses.correct / total
    wrong = alpha * (made - guesses.correct) / total
    for level in range(guesses.correct - 1, -1, -1):
        least = needed(min(right, 1.0))
        if least <= wrong:
            break  # no constraint further down asks for more
        right += level / (made - level) * (least - wrong)
        wrong = least
    # Both sums together are made / total times the mass of all p.
    return right + wrong > made / total


def one_run_epsilon(guesses: Guesses, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon for which (epsilon, delta)-DP is refuted by the guesses.

    Formal guarantee
    ----------------
    Canaries are in or out by independent fair coins, the number of guesses is fixed beforehand, and the mechanism is
    (epsilon, delta)-DP for adding or removing any one canary: then the bound exceeds epsilon with probability at most
    1 - confidence. Both `p_value` and `contradicts` with the curve of (epsilon, delta)-DP bound the same probability,
    so whichever refutes more counts, without a correction. The unit is the canary: if a canary is a group of records,
    so is the unit.
    """
    alpha = _alpha(delta, confidence)

    def refuted(epsilon: float) -> bool:
        return p_value(guesses, epsilon, delta) <= alpha or contradicts(guesses, _approximate(epsilon, delta), alpha)

    return _largest(refuted)


def one_run_gaussian_epsilon(guesses: Guesses, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon refuted by the guesses if the mechanism is a Gaussian one: tighter, under that assumption.

    Formal guarantee
    ----------------
    With the stated confidence the mechanism is not mu'-GDP for adding or removing a canary, for any mu' below some mu.
    That mu's epsilon at delta is returned. It bounds the mechanism's epsilon only if the mechanism's trade-off curve is
    that of a Gaussian pair, as in `gaussian_bound`; a mechanism with sampling, for one, has another.
    """
    alpha = _alpha(delta, confidence)
    if delta == 0:
        raise SettingError("a Gaussian pair has no finite epsilon at delta 0; choose a delta above 0.")
    mu = _largest(lambda mu: contradicts(guesses, _gaussian(mu), alpha))
    return gaussian_dp.epsilon_of(mu, delta)


def one_run_bound(scores: ArrayLike, included: ArrayLike, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon refuted over several numbers of guesses, the confidence shared between them.

    Half of the guesses are for in and half for out; all canaries are guessed, then half of them, a quarter, down to 16.
    """
    count = len(np.asarray(scores))
    sizes = [count >> halvings for halvings in range(count.bit_length()) if halvings == 0 or count >> halvings >= 16]
    shared = 1 - (1 - confidence) / len(sizes)
    return max(
        one_run_epsilon(
            guess(scores, included, guess_in=size - size // 2, guess_out=size // 2), delta=delta, confidence=shared
        )
        for size in sizes
    )


def _alpha(delta: float, confidence: float) -> float:
    if not 0 < confidence < 1:
        raise SettingError(f"confidence must lie between 0 and 1, not {confidence}.")
    if not 0 <= delta < 1:
        raise SettingError(f"delta must lie in [0, 1), not {delta}.")
    return 1 - confidence


def _approximate(epsilon: float, delta: float) -> Callable[[float], float]:
    """The inverse of 1 - f for (epsilon, delta)-DP: the larger of its two lines."""
    shrink, grow = math.exp(-epsilon), math.exp(min(epsilon, 700.0))

    def needed(rate: float) -> float:
        return max(0.0, (rate - delta) * shrink, 1 - delta - (1 - rate) * grow)

    return needed


def _gaussian(mu: float) -> Callable[[float], float]:
    """The inverse of 1 - f for mu-GDP."""
    from scipy.special import ndtr, ndtri

    def needed(rate: float) -> float:
        return float(ndtr(ndtri(rate) - mu))

    return needed


def _largest(refuted: Callable[[float], bool]) -> float:
    """The border, from below, up to which a parameter is refuted."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > 700:  # e^-700 is the last that a float tells from 0
            return low
    while high - low > 1e-9:
        middle = (low + high) / 2
        if refuted(middle):
            low = middle
        else:
            high = middle
    return low
