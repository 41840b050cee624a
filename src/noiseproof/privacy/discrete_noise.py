"""Discrete noise: exact draws of Gaussian and Laplace noise on the integers, by rejection from an equal-area table.

The distributions are *rounded* ones: a draw is the integer nearest to a continuous Gaussian or Laplace variable of the
given scale (see `gaussian` and `laplace`). Adding it to an integer is therefore the continuous mechanism followed by
rounding, and whatever holds for the continuous mechanism holds for it, with nothing to add: not in epsilon, not in
delta, under no accountant.

How (Ahrens 1995, "A one-table method for sampling from continuous and discrete distributions", with the lazy
comparison of Karney 2016, "Sampling exactly from the normal distribution"). Let w(x) be a distribution's weights, falling
in |x|. The integers from 0 upwards are cut into intervals [a_j, a_{j+1}) of width m_j with m_j w(a_j) nearly the same
for all, and a tail; the integers below 0 into their mirror images -1 - x. A draw picks one of 2N table entries;
intervals have one each, the two tails K each.

- In an interval, V = m_j U for a uniform real U. Its whole part gives an integer x of the interval; its fraction is
  uniform and independent of the whole part, and x is accepted if the fraction is below m_j w(x) / C.
- In a tail, x lies y beyond the intervals, y is geometric with P(y) = (1 - e^(-1/h)) e^(-y/h), and x is accepted if a
  uniform is below w(x) e^(y/h) / (K C (1 - e^(-1/h))).

Either way x comes out with probability w(x) / (2 N C), that is, in proportion to w(x), for *every* constant C that
keeps these bounds at most 1. U is never rounded: the first 33 bits decide all but some 1% of draws, because the bound
is at least a known number on the whole interval; then 32 more bits and float64 are tried; and where these are not
enough (once in some 2^26 draws), more bits are taken and more precision until the answer is certain. No table has a
rounded probability in it, so no total variation is left over.

The order in which draws take words from a stream is part of the definition: a word for every draw, one more for those
that it leaves open, those of the tails' geometric draws, then all over again for what was not accepted. Bits beyond these
come from streams aside. So which draws float64 leaves undecided moves no other's words, a draw is a function of the key
alone, and the compiled sampler, which hands back whole blocks with a draw that it cannot decide, gives the same integers.

What the float64 part rests on, for scales s in [2^28, 2^32), is checked in tests against exact arithmetic:
C = A s (1 + 2^-16) keeps every bound at most 1 (widths and edges are off by one integer in at least 2^17), the
threshold of the first 33 bits is below every bound of its interval, and the float64 bound is within 2^-29 of the true.
Time depends on the noise drawn; who can time single draws precisely is outside what is promised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from noiseproof import kernels
from noiseproof.kernels import Integers, Reals, Words
from noiseproof.privacy.randomness import Bits

SMALLEST_SCALE, LARGEST_SCALE = 2.0**28, 2.0**32
_ENTRIES = 1024
_FIRST_BITS = 33
_FIRST_MASK = (1 << _FIRST_BITS) - 1
_MARGIN = 1 + 2.0**-16
_FLOAT_ERROR = 2.0**-28
_CHUNK = 1 << 15


@dataclass(frozen=True, eq=False)
class Distribution:
    """Weights on the integers, and the table of intervals that covers them, in units of the scale."""

    edges: Reals
    """Where intervals begin, and where the last one ends."""
    tail: int
    """Table entries of a tail."""
    area: float
    """Width times the density at the beginning, the same for all intervals."""
    left: Reals
    right: Reals
    """By entry, the intervals' ends; both are the last edge for a tail. The second half mirrors the first."""
    accept_below: Words
    """By entry, below which value the first bits of the fraction make a draw certain to be accepted."""
    weight: Callable[[int, Any], Any]
    """w(x) at a scale, in mpmath's numbers at its present precision."""
    tail_scale: Callable[[Any, Any], Any]
    """The scale h of the geometric law that lies over the tail, from the distribution's and where the tail begins."""
    squared: bool = False
    """Whether -log w(x) is nearly (x / s)^2 / 2, or |x| / s."""
    sides: int = 2

    @classmethod
    def build(
        cls,
        density_exponent: Callable[[float], float],
        tail_area: Callable[[float], float],
        far: float,
        tail: int,
        **functions: Any,
    ) -> Distribution:
        """The table of least area whose intervals and tails of `tail` entries reach past everything.

        Intervals never begin beyond `far`; the density is exp(-density_exponent(z)), z >= 0, and `tail_area` bounds its
        integral from z on.
        """

        def cut(area: float) -> list[float]:
            edges = [0.0]
            while len(edges) <= _ENTRIES - tail and edges[-1] < far:
                edges.append(edges[-1] + area * math.exp(density_exponent(edges[-1])))
            return edges

        low, high = 0.0, 4 / _ENTRIES
        for _ in range(50):
            area = (low + high) / 2
            enough = tail_area(cut(area)[-1]) * (1 + 2.0**-12) <= tail * area
            low, high = (low, area) if enough else (area, high)
        edges = np.array(cut(high))
        begin, end = edges[:-1], edges[1:]
        least = np.array([math.exp(density_exponent(a) - density_exponent(b)) for a, b in zip(begin, end, strict=True)])
        # A fraction known to be in [low, low + m) / 2^33 is below the bound if low < 2^33 bound - m, for every scale.
        # Even, so that compiled code may keep the half of it in 32 bits.
        certain = 2 * np.floor(
            2.0 ** (_FIRST_BITS - 1) * least * (1 - 2.0**-14) - (end - begin) * LARGEST_SCALE / 2 - 1
        )
        tails = np.full(tail, edges[-1])
        left, right = np.concatenate([begin, tails]), np.concatenate([end, tails])
        accept_below = np.tile(np.concatenate([certain, np.zeros(tail)]), 2).astype(np.uint64)
        both = np.concatenate([left, -right]), np.concatenate([right, -left])
        return cls(edges, tail, high, *both, accept_below, **functions)

    @property
    def entry_mask(self) -> int:
        """The bits of a word that pick its entry."""
        return self.sides * _ENTRIES - 1

    def entries(self, words: Words) -> Integers:
        """The entries that random words pick."""
        return (words & np.uint64(self.entry_mask)).view(np.int64)

    def intervals(self, entries: Integers, scale: float | Reals) -> tuple[Integers, Words]:
        """Where the entries' intervals begin, and how wide they are. Cut towards 0, so that mirror images stay such."""
        left = (self.left.take(entries, mode="clip") * scale).astype(np.int64)
        right = (self.right.take(entries, mode="clip") * scale).astype(np.int64)
        right -= left
        return left, right.view(np.uint64)

    def constant(self, scale: Any) -> Any:
        """The constant C of the module's docstring; the very same float64 wherever it is needed."""
        return self.area * scale * _MARGIN

    def exponent(self, x: Reals, scale: float | Reals) -> Reals:
        """-log w(x) in float64, exact enough to leave few draws undecided."""
        z = np.abs(x) / scale
        return z * z / 2 if self.squared else z

    def tail_log(self, scale: Any, tail_scale: Any) -> Any:
        """log of K C (1 - e^(-1/h)), in float64."""
        return np.log(-self.tail * self.constant(scale) * np.expm1(-1 / tail_scale))


@dataclass(frozen=True)
class AtScale:
    """A distribution at one scale, as the compiled sampler takes it."""

    table: Words
    facts: tuple[int, int, bool, float, float, float, float]

    @property
    def packed(self) -> tuple[Any, ...]:
        """The fields of kernels.h's Law; valid for as long as this object lives."""
        return self.table.ctypes.data, *self.facts


@lru_cache(maxsize=64)  # a training draws at one scale, step after step
def at_scale(law: Distribution, scale: float) -> tuple[AtScale, AtScale]:
    """A distribution and the geometric one over its tail, at one scale."""
    left, width = law.intervals(np.arange(2 * _ENTRIES), scale)
    tail_scale = float(law.tail_scale(scale, float(left[_ENTRIES - 1])))
    table = np.stack([left.view(np.uint64), width | law.accept_below >> 1 << 32], axis=1)
    numbers = scale, law.constant(scale), float(law.tail_log(scale, tail_scale)), _FLOAT_ERROR
    made = AtScale(table, (law.entry_mask, law.entry_mask & _ENTRIES, law.squared, *numbers))
    return made, made if law is geometric() else at_scale(geometric(), tail_scale)[0]


def _gaussian_weight(x: int, scale: Any) -> Any:
    """The integral of exp(-t^2 / 2 s^2) from x - 1/2 to x + 1/2; erfc, because erf loses what is far out."""
    root, twice = scale * mpmath.sqrt(8), 2 * abs(x)
    return scale * mpmath.sqrt(mpmath.pi / 2) * (mpmath.erfc((twice - 1) / root) - mpmath.erfc((twice + 1) / root))


def _laplace_weight(x: int, scale: Any) -> Any:
    """The integral of exp(-|t| / b) from x - 1/2 to x + 1/2."""
    if x == 0:
        return -2 * scale * mpmath.expm1(-1 / (2 * scale))
    return 2 * scale * mpmath.sinh(1 / (2 * scale)) * mpmath.exp(-abs(x) / scale)


@cache
def gaussian() -> Distribution:
    """The integer nearest to a Normal(0, s^2).

    Its weights are exp(-x^2 / 2 s^2) times 1 + (x^2 / s^2 - 1) / 24 s^2 + O(s^-4), so that a draw is within total
    variation s^-2 / 50 of what is usually called the discrete Gaussian (Canonne, Kamath and Steinke 2020).
    """
    return Distribution.build(
        lambda z: z * z / 2,
        lambda z: math.exp(-z * z / 2) / z,
        far=6,
        tail=4,
        weight=_gaussian_weight,
        # exp(-x^2 / 2 s^2) falls faster than exp(-y / h) beyond x = edge if h is s^2 / edge or more.
        tail_scale=lambda scale, edge: scale * scale / edge * (1 + 2.0**-30),
        squared=True,
    )


@cache
def laplace() -> Distribution:
    """The integer nearest to a Laplace(b).

    Its weights are exp(-|x| / b), except at 0, where they are 1 / 4 b less: within total variation b^-2 / 8 of the
    discrete Laplace law.
    """
    return Distribution.build(
        lambda z: z, lambda z: math.exp(-z), far=10, tail=8, weight=_laplace_weight, tail_scale=lambda scale, _: scale
    )


@cache
def geometric() -> Distribution:
    """The integers x >= 0 with weights exp(-x / h)."""
    return replace(laplace(), weight=lambda x, scale: mpmath.exp(-x / scale), sides=1)


def sample(law: Distribution, scale: float | Reals, count: int, bits: Bits) -> Integers:
    """`count` independent draws, of one scale or each of its own; scales lie in [2^28, 2^32)."""
    drawn, accepted = _propose(law, scale, count, bits)
    missing = np.flatnonzero(~accepted)
    while missing.size:
        again, accepted = _propose(law, scale if isinstance(scale, float) else scale[missing], missing.size, bits)
        drawn[missing] = again
        missing = missing[~accepted]
    return drawn


def _propose(law: Distribution, scale: float | Reals, count: int, bits: Bits) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """Proposals, and which of them are accepted."""
    drawn = np.empty(count, dtype=np.int64)
    where: list[Integers] = [np.empty(0, dtype=np.int64)]
    undecided: list[Words] = []
    table = law.intervals(np.arange(2 * _ENTRIES), scale) if isinstance(scale, float) else None
    # Buffers that are used again for every chunk: new memory costs as much as the arithmetic.
    buffers = np.empty((3, min(count, _CHUNK)), dtype=np.uint64)
    for start in range(0, count, _CHUNK):
        part = drawn[start : start + _CHUNK]
        words, product, width = buffers[:, : part.size]
        bits.fill(words)
        own = np.ascontiguousarray(scale[start : start + _CHUNK]) if not isinstance(scale, float) else None
        if kernels.compiled is not None and own is not None:
            places = product.view(np.int64)
            ends = law.left, law.right
            places = places[: kernels.propose_each(words, own, ends, law.accept_below, law.entry_mask, part, places)]
        else:
            entries = law.entries(words)
            if own is not None:
                left, width = law.intervals(entries, own)
            elif table is not None:
                # Entries are below 2048, so that nothing is ever clipped; "clip" only skips a check.
                left = table[0].take(entries, mode="clip", out=part)
                table[1].take(entries, mode="clip", out=width)
            np.right_shift(words, 64 - _FIRST_BITS, out=product)
            product *= width
            np.right_shift(product, _FIRST_BITS, out=width)
            np.add(left, width.view(np.int64), out=part)
            product &= _FIRST_MASK
            law.accept_below.take(entries, mode="clip", out=width)
            places = np.flatnonzero(product >= width)
        where.append(places + start)
        undecided.append(words[places])
    accepted = np.ones(count, dtype=bool)
    at = np.concatenate(where)
    if at.size:
        scales = np.broadcast_to(scale, count)[at]
        drawn[at], accepted[at] = _accept(law, scales, np.concatenate(undecided), bits)
    return drawn, accepted


def _accept(law: Distribution, scale: Reals, words: Words, bits: Bits) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """The draws that their first bits left open: 32 bits more, and the bound itself in float64."""
    entries = law.entries(words)
    left, width = law.intervals(entries, scale)
    in_tail = width == 0
    width[in_tail] = 1
    product = (words >> (64 - _FIRST_BITS)) * width
    fresh = bits.words(words.size) >> 32
    # The fraction in units of 2^-63; what is not known of it is less than `unknown` of these.
    fraction = ((product & _FIRST_MASK) << 30) + ((fresh * width) >> 2)
    unknown = (width >> 2) + 2
    drawn = left + (product >> _FIRST_BITS).view(np.int64) + (fraction >> 63).view(np.int64)
    fraction &= (1 << 63) - 1

    excess = np.zeros(words.size, dtype=np.int64)
    far = np.flatnonzero(in_tail)
    if far.size:
        tail_scale = law.tail_scale(scale[far], np.abs(left[far]).astype(np.float64))
        excess[far] = sample(geometric(), tail_scale, far.size, bits)
        drawn[far] = np.where(entries[far] < _ENTRIES, left[far] + excess[far], left[far] - 1 - excess[far])

    limit = _limits(law, scale, entries, left, width, excess, drawn)
    low, high = fraction * 2.0**-63, (fraction + unknown) * 2.0**-63
    accepted = high < limit - _FLOAT_ERROR
    undecided = ~accepted & ((low < limit + _FLOAT_ERROR) | (high >= 1 - _FLOAT_ERROR))
    for i in np.flatnonzero(undecided):
        known = (int(words[i]) >> (64 - _FIRST_BITS) << 32) | int(fresh[i])
        proposal = _Proposal(law, float(scale[i]), int(entries[i]), int(left[i]), int(width[i]), int(excess[i]))
        drawn[i], accepted[i] = proposal.decide(known, _FIRST_BITS + 32, bits.aside())
    return drawn, accepted


def _limits(
    law: Distribution, scale: Reals, entries: Integers, left: Integers, width: Words, excess: Integers, drawn: Integers
) -> Reals:
    """Below which fraction each is accepted: `_Proposal.limit`, in float64."""
    constant = law.constant(scale)
    in_tail = entries % _ENTRIES >= _ENTRIES - law.tail
    tail_scale = law.tail_scale(scale, np.abs(left) + ~in_tail)  # no division by 0 where there is no tail
    offset = np.where(in_tail, excess / tail_scale - law.tail_log(scale, tail_scale), np.log(width / constant))
    return np.exp(offset - law.exponent(drawn.astype(np.float64), scale))


@dataclass(frozen=True)
class _Proposal:
    """One draw to be decided exactly."""

    law: Distribution
    scale: float
    entry: int
    left: int
    width: int
    excess: int

    @property
    def in_tail(self) -> bool:
        return self.entry % _ENTRIES >= _ENTRIES - self.law.tail

    def integer(self, whole: int) -> int:
        """The integer that is proposed if the whole part of V is this."""
        if not self.in_tail:
            return self.left + whole
        return self.left + self.excess if self.entry < _ENTRIES else self.left - 1 - self.excess

    def limit(self, x: int) -> Any:
        """Below which fraction x is accepted, in mpmath at its present precision."""
        scale = mpmath.mpf(self.scale)
        constant = mpmath.mpf(self.law.constant(self.scale))
        weight = self.law.weight(x, scale)
        if not self.in_tail:
            return weight * self.width / constant
        tail_scale = mpmath.mpf(self.law.tail_scale(self.scale, float(abs(self.left))))
        over = -mpmath.expm1(-1 / tail_scale) * mpmath.exp(-self.excess / tail_scale)
        return weight / (self.law.tail * constant * over)

    def decide(self, known: int, length: int, bits: Bits) -> tuple[int, bool]:
        """The integer, and whether it is accepted, for a U whose first `length` bits are `known`."""
        while True:
            length += 128
            known = known << 128 | bits.integer(128)
            product = known * self.width
            whole, fraction = product >> length, product & ((1 << length) - 1)
            if fraction + self.width >= 1 << length:
                continue  # not even the whole part is certain
            x = self.integer(whole)
            with mpmath.workprec(length + 64):
                limit = int(mpmath.floor(mpmath.ldexp(self.limit(x), length)))
            if fraction + self.width < limit - 1:
                return x, True
            if fraction > limit + 1:
                return x, False
