"""One run: a lower bound on epsilon from a single training with many canaries, each in or out by a coin of its own.

Whoever has the result guesses of some canaries whether they were in, and abstains from the others. A mechanism that is
(epsilon, delta)-DP for one canary more or less lets nobody be right much more often than e^epsilon / (1 + e^epsilon).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from noiseproof.audits.audit import AuditError
from noiseproof.errors import SettingError
from noiseproof.privacy import gaussian_dp
from noiseproof.privacy.card import Audit, Claim, Verdict, verdict

if TYPE_CHECKING:
    from noiseproof.audits.power import Power

Rates: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Guesses:
    """Of how many canaries there were, how many were guessed to be in or out, and how many of these correctly.

    Raises:
        SettingError: If there are more correct guesses than guesses, or more guesses than canaries.

    Examples:
        >>> guesses = Guesses(canaries=1000, guessed=100, correct=90)
        >>> guesses.correct / guesses.guessed
        0.9
    """

    canaries: int
    """Each was in or out by a fair coin of its own."""
    guessed: int
    """Canaries of which it was guessed; the guesser abstained from the others."""
    correct: int
    """Guesses that were right."""

    def __post_init__(self) -> None:
        if not 0 <= self.correct <= self.guessed <= self.canaries or self.canaries < 1:
            raise SettingError(
                f"{self.correct} correct of {self.guessed} guesses on {self.canaries} canaries is impossible; correct "
                "guesses are guesses, and guesses are of canaries."
            )


@dataclass(frozen=True)
class OneRunBound:
    """The largest epsilon that one run refutes, and the guesses that it was refuted by.

    Examples:
        >>> included = flip(1000, torch.Generator().manual_seed(0))
        >>> bound = one_run_bound(included.double(), included, delta=1e-5)  # the scores give every coin away
        >>> bound.guesses
        Guesses(canaries=1000, guessed=500, correct=500)
    """

    epsilon: float
    """The lower bound; 0 where nothing is refuted."""
    delta: float
    """The delta that it holds at."""
    confidence: float
    """How likely it is, at least, that the bound does not exceed the true epsilon."""
    guesses: Guesses
    """The number of guesses that refutes most, and how many of them were right."""
    gaussian: bool = False
    """Whether it rests on the assumption that a canary's pair of worlds is a Gaussian one."""


@dataclass(frozen=True)
class OneRunResult:
    """What one run with canaries showed, beside what is claimed, in the words of `AuditResult`.

    Examples:
        >>> included = flip(1000, torch.Generator().manual_seed(0))
        >>> bound = one_run_bound(included.double(), included, delta=1e-5)
        >>> claim = Claim(epsilon=1.0, delta=1e-5, source="the vendor")
        >>> OneRunResult("a model with 1000 canaries", bound, claim).verdict
        'refuted'
    """

    game: str
    """What was run, in words."""
    bound: OneRunBound
    """The lower bound, and the guesses that gave it."""
    claimed: Claim | None = None
    """What is to be refuted; None if nothing is claimed."""
    power: Power | None = None
    """What it could have found, where that was computed (`one_run_power`)."""

    @property
    def audited(self) -> Audit:
        """The result as a card holds it; its trials are the canaries."""
        bound = self.bound
        return Audit(
            epsilon=bound.epsilon,
            delta=bound.delta,
            confidence=bound.confidence,
            trials=bound.guesses.canaries,
            game=self.game,
        )

    @property
    def verdict(self) -> Verdict:
        """`refuted`, or that nothing is proven."""
        return verdict(self.claimed, None, self.audited)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        guesses = self.bound.guesses
        return {
            "game": self.game,
            "unit": "record" if self.claimed is None else self.claimed.unit,
            "neighbours": "add-or-remove",
            "claimed": None if self.claimed is None else self.claimed.model_dump(mode="json"),
            "proven": None,
            "audited": self.audited.model_dump(mode="json"),
            "verdict": self.verdict,
            "contradicts_proof": False,
            "estimator": "one run, gaussian" if self.bound.gaussian else "one run",
            "canaries": guesses.canaries,
            "guessed": guesses.guessed,
            "correct": guesses.correct,
            "power": None if self.power is None else self.power.to_json(),
            "notes": [],
        }


def flip(canaries: int, generator: torch.Generator) -> torch.Tensor:
    """For each canary a fair coin of its own, True for in: the bound needs exactly that."""
    return torch.randint(2, (canaries,), generator=generator).bool()


def guess(scores: ArrayLike, included: ArrayLike, *, guess_in: int, guess_out: int) -> Guesses:
    """Guess `in` for the highest scores and `out` for the lowest, abstain in between, and count.

    The numbers of guesses must not be chosen by looking at `included`. Ties go by position, which tells nothing either,
    since every canary has its own coin.

    Args:
        scores: One for each canary; the larger, the more it looks as if it was in.
        included: The coins: whether each canary was in.
        guess_in: How many of the highest scores are guessed to be in.
        guess_out: How many of the lowest scores are guessed to be out.

    Returns:
        How many guesses were right.

    Raises:
        SettingError: If scores and coins differ in number, or there are more guesses than canaries.
        AuditError: If a score is NaN.

    Examples:
        >>> guess([0.9, 0.1, 0.6, 0.3], [True, False, False, True], guess_in=2, guess_out=1)
        Guesses(canaries=4, guessed=3, correct=2)
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


def contradicts(
    canaries: int, guessed: ArrayLike, correct: ArrayLike, needed: Callable[[Rates], Rates], alpha: ArrayLike
) -> NDArray[np.bool_]:
    """Whether a mechanism of a trade-off curve f allows so many correct guesses with probability below alpha.

    `needed(x)` is the least false positive rate at which f allows a true positive rate of x: the inverse g of 1 - f. The
    numbers of guesses, alpha and what `needed` gives may be arrays, which broadcast: all are decided at once.

    Formal guarantee
    ----------------
    The theorem of Mahloujifar, Melis and Chaudhuri (2024), with its proof. Let m canaries have fair coins S of their own,
    let the mechanism be f-DP in each coin (f symmetric and convex, as trade-off curves of DP are), and let c guesses be
    made from its result, W of them correct.

    *One canary.* Fix i, t, a value b and all coins but the i-th. Let G be the event of the result that i is guessed to be b
    and at least t - 1 others are guessed correctly. If the i-th coin shows b, G says that i is right and W >= t; if not, that
    i is wrong and W >= t - 1. By f-DP, Pr[G | b] <= (1 - f)(Pr[G | not b]). Both values of b and all other coins have equal
    chances and 1 - f is concave, so that Pr[i right, W >= t] <= (1 - f)(Pr[i wrong, W >= t - 1]) by Jensen.

    *All canaries.* Averaged over i, once more by Jensen: R(t) <= (1 - f)(L(t - 1)) with R(t) = E[W; W >= t] / m and
    L(t) = E[c - W; W >= t] / m. That is L(t - 1) >= g(R(t)), for every t.

    *The least mass.* Write M(t) = Pr[W >= t]. Then m R(t) = t M(t) + sum_{i > t} M(i) and L(t) = c M(t) / m - R(t), and the
    constraint reads (c - t + 1) M(t - 1) >= m (g + 1)(R(t)) - (t - 1) M(t), with (g + 1)(x) = g(x) + x. Since g does not
    fall, its right side rises with every M(i), i >= t: with M(t) by at least t - (t - 1) = 1 times. So from M(v) >= alpha on,
    by induction downwards, every M(t) is least if M(v) = alpha, M(i) = 0 above v, and each constraint is met with equality
    (or M(t - 1) = M(t), where it asks for less). If M(0) then exceeds 1, no such mechanism has Pr[W >= v] >= alpha.
    """
    made, right_guesses, alpha = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (guessed, correct, alpha))
    )
    level = right_guesses - 1
    # R and L at the level above; an element is done when a constraint asks for no mass, as none further down does then.
    right, wrong = alpha * right_guesses / canaries, alpha * (made - right_guesses) / canaries
    going = np.ones(np.broadcast_shapes(made.shape, np.shape(needed(right))), dtype=bool)
    right, wrong = (np.broadcast_to(value, going.shape).copy() for value in (right, wrong))
    for _ in range(int(right_guesses.max(initial=0))):
        least = needed(np.minimum(right, 1.0))
        going &= (least > wrong) & (level >= 0)
        if not going.any():
            break
        more = np.where(going, least - wrong, 0.0)
        right += np.maximum(level, 0.0) / (made - level) * more
        wrong += more
        level = level - 1
    # Both sums together are made / canaries times the mass of all W.
    return right + wrong > made / canaries


def one_run_epsilon(guesses: Guesses, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon for which (epsilon, delta)-DP is refuted by the guesses.

    Args:
        guesses: What was guessed, and how many of it correctly.
        delta: Of the bound, in [0, 1).
        confidence: Of the bound.

    Returns:
        The bound; 0 where nothing is refuted.

    Raises:
        SettingError: If delta or the confidence is out of range.

    Examples:
        >>> round(one_run_epsilon(Guesses(canaries=1000, guessed=200, correct=180), delta=1e-5), 1)
        1.8

    Formal guarantee
    ----------------
    Canaries are in or out by independent fair coins, the number of guesses is fixed beforehand, and the mechanism is
    (epsilon, delta)-DP for adding or removing any one canary: then the bound exceeds epsilon with probability at most
    1 - confidence. Both `p_value` and `contradicts` with the curve of (epsilon, delta)-DP bound the same probability,
    so whichever refutes more counts, without a correction. The unit is the canary: if a canary is a group of records,
    so is the unit.
    """
    alpha = _alpha(delta, confidence)
    return max(steinke_epsilon(guesses, delta=delta, confidence=confidence), _by_curve(guesses, alpha, delta))


def refutes(guesses: Guesses, epsilon: float, *, delta: float, confidence: float, gaussian: bool = False) -> bool:
    """Whether the guesses refute one epsilon: whether the bound is above it, without looking for the bound."""
    alpha = _alpha(delta, confidence)
    if gaussian:
        return bool(_contradicted(guesses, _gaussian(gaussian_dp.mu_within(epsilon, delta)), alpha))
    return p_value(guesses, epsilon, delta) <= alpha or bool(
        _contradicted(guesses, _approximate(epsilon, delta), alpha)
    )


def steinke_epsilon(guesses: Guesses, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon that `p_value` alone refutes: Steinke et al.'s bound, for comparison.

    Args:
        guesses: What was guessed, and how many of it correctly.
        delta: Of the bound, in [0, 1).
        confidence: Of the bound.

    Returns:
        The bound; 0 where nothing is refuted.

    Raises:
        SettingError: If delta or the confidence is out of range.

    Examples:
        >>> round(steinke_epsilon(Guesses(canaries=1000, guessed=200, correct=180), delta=1e-5), 1)
        1.8

    Formal guarantee
    ----------------
    As for `one_run_epsilon`, which is never smaller.
    """
    alpha = _alpha(delta, confidence)

    def refuted(epsilons: Rates) -> NDArray[np.bool_]:
        return np.array([p_value(guesses, epsilon, delta) <= alpha for epsilon in epsilons.tolist()])

    return _largest(refuted, points=1)


def one_run_gaussian_epsilon(guesses: Guesses, *, delta: float, confidence: float = 0.95) -> float:
    """The largest epsilon refuted by the guesses if the mechanism is a Gaussian one: tighter, under that assumption.

    Args:
        guesses: What was guessed, and how many of it correctly.
        delta: Of the bound, in (0, 1).
        confidence: Of the bound.

    Returns:
        The bound; 0 where nothing is refuted.

    Raises:
        SettingError: If delta or the confidence is out of range.

    Examples:
        >>> round(one_run_gaussian_epsilon(Guesses(canaries=1000, guessed=200, correct=180), delta=1e-5), 1)
        2.9

    Formal guarantee
    ----------------
    With the stated confidence the mechanism is not mu'-GDP for adding or removing a canary, for any mu' below some mu.
    That mu's epsilon at delta is returned. It bounds the mechanism's epsilon only if the mechanism's trade-off curve is
    that of a Gaussian pair, as in `gaussian_bound`; a mechanism with sampling, for one, has another.
    """
    alpha = _alpha(delta, confidence)
    if delta == 0:
        raise SettingError("a Gaussian pair has no finite epsilon at delta 0; choose a delta above 0.")
    mu = _largest(lambda mu: _contradicted(guesses, _gaussian(mu), alpha))
    return gaussian_dp.epsilon_of(mu, delta)


def one_run_bound(
    scores: ArrayLike, included: ArrayLike, *, delta: float, confidence: float = 0.95, gaussian: bool = False
) -> OneRunBound:
    """The largest epsilon refuted over several numbers of guesses, the confidence shared between them.

    Half of the guesses are for in and half for out; all canaries are guessed, then half of them, a quarter, down to 16.

    Args:
        scores: One for each canary; the larger, the more it looks as if it was in.
        included: The coins.
        delta: Of the bound.
        confidence: Of the bound.
        gaussian: Whether the pair of worlds of a canary is taken for a Gaussian one (`one_run_gaussian_epsilon`).

    Returns:
        The bound, and the guesses that gave it.

    Raises:
        SettingError: If scores and coins differ in number, or delta or the confidence is out of range.
        AuditError: If a score is NaN.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> included = flip(1000, generator)
        >>> scores = included + torch.randn(1000, generator=generator)  # mu = 1
        >>> round(one_run_bound(scores, included, delta=1e-5, gaussian=True).epsilon, 1)
        1.8

    Formal guarantee
    ----------------
    That of `one_run_epsilon`, or of `one_run_gaussian_epsilon`: by the union bound over the numbers of guesses, which do
    not depend on scores or coins.
    """
    alpha = _alpha(delta, confidence)
    sizes = guess_counts(len(np.asarray(scores)))
    shared = 1 - alpha / len(sizes)
    every = [guess(scores, included, guess_in=size - size // 2, guess_out=size // 2) for size in sizes]
    bound = one_run_gaussian_epsilon if gaussian else one_run_epsilon
    found = [bound(guesses, delta=delta, confidence=shared) for guesses in every]
    best = int(np.argmax(found))
    return OneRunBound(found[best], delta, confidence, every[best], gaussian)


def guess_counts(canaries: int) -> list[int]:
    """The numbers of guesses that `one_run_bound` tries: all canaries, half of them, a quarter, down to 16."""
    if canaries < 1:
        raise SettingError("one-run auditing needs at least one canary.")
    halved = (canaries >> halvings for halvings in range(1, canaries.bit_length()))
    return [canaries, *(count for count in halved if count >= 16)]


def _alpha(delta: float, confidence: float) -> float:
    if not 0 < confidence < 1:
        raise SettingError(f"confidence must lie between 0 and 1, not {confidence}.")
    if not 0 <= delta < 1:
        raise SettingError(f"delta must lie in [0, 1), not {delta}.")
    return 1 - confidence


def _contradicted(guesses: Guesses, needed: Callable[[Rates], Rates], alpha: float) -> NDArray[np.bool_]:
    return contradicts(guesses.canaries, guesses.guessed, guesses.correct, needed, alpha)


def _by_curve(guesses: Guesses, alpha: float, delta: float) -> float:
    """The largest epsilon whose (epsilon, delta) curve the guesses contradict."""
    return _largest(lambda epsilon: _contradicted(guesses, _approximate(epsilon, delta), alpha))


def _approximate(epsilon: ArrayLike, delta: float) -> Callable[[Rates], Rates]:
    """The inverse of 1 - f for (epsilon, delta)-DP: the larger of its two lines."""
    epsilon = np.asarray(epsilon, dtype=np.float64)
    shrink, grow = np.exp(-epsilon), np.exp(np.minimum(epsilon, 700.0))

    def needed(rate: Rates) -> Rates:
        return np.maximum(np.maximum((rate - delta) * shrink, 1 - delta - (1 - rate) * grow), 0.0)

    return needed


def _gaussian(mu: ArrayLike) -> Callable[[Rates], Rates]:
    """The inverse of 1 - f for mu-GDP."""
    from scipy.special import ndtr, ndtri

    def needed(rate: Rates) -> Rates:
        return np.asarray(ndtr(ndtri(rate) - np.asarray(mu, dtype=np.float64)))

    return needed


def _largest(refuted: Callable[[Rates], NDArray[np.bool_]], points: int = 31) -> float:
    """The border, from below, up to which a parameter is refuted; `points` of it are tried in one call."""
    grid = np.array([0.0, *2.0 ** np.arange(10), 700.0])  # e^-700 is the last that a float tells from 0
    while True:
        marks = refuted(grid[:-1])
        holds = len(marks) if marks.all() else int(np.argmin(marks))
        if holds == 0:
            return float(grid[0])
        low, high = float(grid[holds - 1]), float(grid[holds])
        if high - low <= 1e-9:
            return low
        # The first point is known to be refuted, and is tried again with the others for the sake of one rule.
        grid = np.linspace(low, high, points + 2)
