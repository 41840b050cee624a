"""Epsilon and delta in plain words: what an attacker can gain from a release, in people and in odds."""

from __future__ import annotations

import math
from dataclasses import dataclass

PEOPLE = 1000
"""Numbers are told for so many people."""

_LARGEST = 700.0
"""Beyond this, e^epsilon is no float; as a guarantee it says nothing anyway."""

STRENGTHS = ((1.0, "strong"), (10.0, "reasonable"), (math.inf, "weak"))
"""Up to which epsilon a guarantee is called what, by the tiers of Ponomareva et al., "How to DP-fy ML" (JAIR 2023)."""


@dataclass(frozen=True)
class Meaning:
    """What (epsilon, delta)-differential privacy allows an attacker who knows everything but whether one person took part.

    Formal guarantee
    ----------------
    Whatever the attacker computes from the release to tell two neighbouring data sets apart: if it wrongly accuses a
    share a of those who did not take part, it rightly accuses at most `accused(a)` of those who did (Wasserman and Zhou
    2010; Kairouz, Oh and Viswanath 2015), and both ends are attained by some mechanism. All else here follows from it.
    """

    epsilon: float
    delta: float

    @property
    def factor(self) -> float:
        """By how much odds can grow: e^epsilon.

        The release can be coupled with one for which odds never grow by more, so that the two differ with a probability
        of at most delta (Dwork, Rothblum and Vadhan 2010).
        """
        return math.exp(min(self.epsilon, _LARGEST))

    def accused(self, wrongly: float) -> float:
        """The largest share of those who took part that is accused where a share `wrongly` of the others is.

        >>> round(Meaning(1.0, 0.0).accused(0.01), 4)
        0.0272
        """
        above = self.factor * wrongly + self.delta
        below = 1 - (1 - self.delta - wrongly) / self.factor
        return max(0.0, min(1.0, above, below))

    @property
    def guessed(self) -> float:
        """The largest probability of a right guess, where taking part was decided by the toss of a coin.

        >>> Meaning(0.0, 0.0).guessed
        0.5
        """
        return min(1.0, (self.factor + self.delta) / (self.factor + 1))

    @property
    def strength(self) -> str:
        """What practice calls such an epsilon (see `STRENGTHS`)."""
        return next(word for most, word in STRENGTHS if self.epsilon <= most)

    def for_group(self, size: int) -> Meaning:
        """What the guarantee for one implies for a group of `size`, such as all records of one person.

        Formal guarantee
        ----------------
        size * epsilon, and delta (e^(size epsilon) - 1) / (e^epsilon - 1), by the triangle inequality along neighbours
        (Vadhan 2017, lemma 2.2).
        """
        epsilon = min(size * self.epsilon, _LARGEST)
        grown = float(size) if self.epsilon == 0 else math.expm1(epsilon) / math.expm1(min(self.epsilon, _LARGEST))
        return Meaning(epsilon, min(1.0, self.delta * grown))


def rounded_up(value: float, digits: int = 3) -> str:
    """A bound as people write it, never smaller than it is.

    >>> rounded_up(20.0855), rounded_up(2.01e9)
    ('20.1', 'more than a billion')
    """
    if value >= 1e9:
        return "more than a billion"
    if value <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    up = math.ceil(value / step - 1e-9) * step
    return f"{up:,.0f}" if up >= 10 ** (digits - 1) else f"{up:.{digits}g}"


def of_people(share: float) -> str:
    """A share as a number of `PEOPLE`, rounded up."""
    return f"{math.ceil(share * PEOPLE - 1e-9):,}"


def plain(share: float) -> str:
    """A small share without powers of ten, as far as that can be read.

    >>> plain(1e-5), plain(1e-12)
    ('0.00001', '1e-12')
    """
    return f"{share:.9f}".rstrip("0").rstrip(".") if share == 0 or share >= 1e-7 else f"{share:g}"
