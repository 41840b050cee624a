"""Power: which epsilon an audit could have found, so that "nothing was found" can be told from "nothing could be".

An audit is played again on mechanisms whose epsilon is known, with as many trials and the same rule for the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from noiseproof.audits.one_run import Guesses, guess_counts, one_run_epsilon, one_run_gaussian_epsilon, refutes
from noiseproof.audits.two_worlds import Bound, Scores, counting_bound, gaussian_bound
from noiseproof.privacy import gaussian_dp

CHANCE = 0.8
"""How likely a refutation has to be, for an epsilon to count as one that the audit would have found."""
_REPLAYS = 40
"""Simulated audits for each epsilon that is tried."""
_FINE = 0.05
"""To which precision the epsilon is looked for."""
_CROWD = 200_000
"""Canaries of the large simulated run whose shares of right guesses stand for their expectations."""


@dataclass(frozen=True)
class Power:
    """What an audit could have found.

    Examples:
        >>> power = one_run_power(1000, delta=1e-5, confidence=0.95, claimed=1.0, gaussian=True)
        >>> power.largest > 4
        True

    Formal guarantee
    ----------------
    None: the figures are simulated, for mechanisms of the named kinds whose best score the audit knows. An audit of another
    mechanism, or with a worse score, finds less.
    """

    largest: float
    """The bound if every guess had been right: nothing above it can be found with so many trials."""
    claimed: float | None
    """The epsilon to be refuted."""
    found_from: dict[str, float | None]
    """By the kind of noise: the true epsilon from which on the claim is refuted four times of five; None if none is."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return {
            "largest": self.largest,
            "claimed": self.claimed,
            "chance": CHANCE,
            "found_from": self.found_from,
            "sentence": self.sentence,
        }

    @property
    def sentence(self) -> str:
        """The power in words."""
        said = f"This audit could find an epsilon of at most {self.largest:.2f}."
        if self.claimed is None:
            return said
        found = {kind: value for kind, value in self.found_from.items() if value is not None}
        if not found:
            return f"{said} That is too little to refute {self.claimed:g}, whatever the truth: take more trials."
        which = " or ".join(f"{value:.2f} ({kind} noise)" for kind, value in found.items())
        return f"{said} With a true epsilon of {which} it refutes {self.claimed:g} in four audits of five."


def two_worlds_power(bound: Bound, trials: int, claimed: float | None) -> Power:
    """The power of an audit in two worlds, from what it counted.

    Args:
        bound: What the audit found.
        trials: Runs in each world.
        claimed: The epsilon to be refuted, at the bound's delta.

    Returns:
        What it could have found.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> bound = counting_bound((rng.normal(size=50), rng.normal(size=50)), delta=0.0)
        >>> two_worlds_power(bound, trials=50, claimed=3.0).sentence
        'This audit could find an epsilon of at most 1.93. That is too little to refute 3, whatever the truth: take more trials.'
    """
    learning = trials - bound.counted
    about: Any = {"delta": bound.delta, "confidence": bound.confidence}

    def estimate(scores: tuple[Scores, Scores]) -> float:
        if bound.estimator == "gaussian":
            return gaussian_bound(scores, **about).epsilon
        first, rest = ((scores[0][part], scores[1][part]) for part in (slice(learning), slice(learning, None)))
        return counting_bound(rest, choosing=first, **about).epsilon

    # Scores without spread, far apart: every guess is right.
    largest = estimate((np.zeros(trials), np.ones(trials)))

    def found_at(kind: str, epsilon: float) -> float:
        rng = np.random.default_rng(0)
        found = [estimate(_SCORES[kind](epsilon, bound.delta, trials, rng)) for _ in range(_REPLAYS)]
        return float(np.mean(np.array(found) > (claimed or 0.0)))

    kinds = [kind for kind in _SCORES if kind == "Gaussian" or bound.estimator == "counting"]
    kinds = [kind for kind in kinds if kind != "Gaussian" or bound.delta > 0]
    return _power(largest, claimed, kinds, found_at)


def one_run_power(canaries: int, *, delta: float, confidence: float, claimed: float | None, gaussian: bool) -> Power:
    """The power of a one-run audit with so many canaries, against Gaussian noise.

    Args:
        canaries: How many there are.
        delta: Of the bound.
        confidence: Of the bound.
        claimed: The epsilon to be refuted.
        gaussian: Whether the bound takes the mechanism for a Gaussian one.

    Returns:
        What it could have found.

    Examples:
        >>> one_run_power(100, delta=1e-5, confidence=0.95, claimed=8.0, gaussian=False).found_from
        {'Gaussian': None}
    """
    bound = one_run_gaussian_epsilon if gaussian else one_run_epsilon
    sizes = guess_counts(canaries)
    shared = 1 - (1 - confidence) / len(sizes)
    largest = max(bound(Guesses(canaries, size, size), delta=delta, confidence=shared) for size in sizes)

    def found(_: str, epsilon: float) -> float:
        from scipy.stats import binom

        rng = np.random.default_rng(0)
        mu = gaussian_dp.mu_within(epsilon, delta)
        coins = rng.random(_CROWD) < 0.5
        # Positive where a guess by the score's sign is right.
        signed = (rng.normal(size=_CROWD) + mu * np.where(coins, 0.5, -0.5)) * np.where(coins, 1, -1)
        right = np.cumsum((signed > 0)[np.argsort(-np.abs(signed))]) / np.arange(1, _CROWD + 1)
        for size in sizes:
            correct = int(binom.ppf(1 - CHANCE, size, right[max(0, round(_CROWD * size / canaries) - 1)]))
            guesses = Guesses(canaries, size, correct)
            if refutes(guesses, claimed or 0.0, delta=delta, confidence=shared, gaussian=gaussian):
                return CHANCE
        return 0.0

    return _power(largest, claimed, ["Gaussian"] if delta > 0 else [], found)


def _power(largest: float, claimed: float | None, kinds: list[str], chance: Callable[[str, float], float]) -> Power:
    found: dict[str, float | None] = {}
    for kind in kinds if claimed is not None else ():
        assert claimed is not None
        low, high = claimed, max(2 * claimed, claimed + 2.0)
        while largest > claimed and chance(kind, high) < CHANCE and high < 8 * (claimed + 4):
            low, high = high, 2 * high
        if largest <= claimed or chance(kind, high) < CHANCE:
            found[kind] = None
            continue
        while high - low > _FINE:
            middle = (low + high) / 2
            low, high = (low, middle) if chance(kind, middle) >= CHANCE else (middle, high)
        found[kind] = round(high, 2)
    return Power(largest, claimed, found)


def _laplace(epsilon: float, delta: float, trials: int, rng: np.random.Generator) -> tuple[Scores, Scores]:
    noise = rng.laplace(scale=1 / epsilon, size=(2, trials))
    return noise[0], noise[1] + 1.0


def _normal(epsilon: float, delta: float, trials: int, rng: np.random.Generator) -> tuple[Scores, Scores]:
    noise = rng.normal(size=(2, trials))
    return noise[0], noise[1] + _mu(epsilon, delta)


_mu = cache(gaussian_dp.mu_within)


_SCORES: dict[str, Callable[[float, float, int, np.random.Generator], tuple[Scores, Scores]]] = {
    "Laplace": _laplace,
    "Gaussian": _normal,
}
