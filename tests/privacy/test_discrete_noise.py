"""The integer samplers have exactly the law that they state."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import opendp.prelude as opendp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from noiseproof.privacy import discrete_noise
from noiseproof.privacy.randomness import Bits

KEY = bytes(range(32))
LAWS = {"gaussian": discrete_noise.gaussian, "laplace": discrete_noise.laplace, "geometric": discrete_noise.geometric}
TWO_SIDED = {"gaussian": stats.norm, "laplace": stats.laplace}
SCALES = [2.0**31, 2.0**31 * math.sqrt(2), math.nextafter(2.0**32, 0)]
ENTRIES = 1024
property_test = settings(deadline=None, derandomize=True, max_examples=60)
any_law = st.sampled_from(sorted(LAWS)).map(lambda name: LAWS[name]())
any_scale = st.floats(discrete_noise.SMALLEST_SCALE, discrete_noise.LARGEST_SCALE, exclude_max=True)


def proposal(law, scale, entry, excess=0):
    left, width = law.intervals(np.array([entry]), scale)
    return discrete_noise._Proposal(law, scale, entry, int(left[0]), max(int(width[0]), 1), excess)


def whole_parts(proposal):
    """The whole parts that give the interval's likeliest and least likely integers."""
    ends = 0, proposal.width - 1
    return ends if proposal.entry < ENTRIES else ends[::-1]


@property_test
@given(any_law, any_scale)
def test_intervals_cover_the_integers_without_gap_or_overlap(law, scale):
    left, width = law.intervals(np.arange(2 * ENTRIES), scale)
    width = width.astype(np.int64)
    count = ENTRIES - law.tail
    assert left[0] == 0
    assert np.array_equal(left[1 : count + 1], (left + width)[:count])
    assert (width[:count] > 0).all()
    # What is multiplied by 33 bits must fit into 64.
    assert width.max() < 2**31
    # x on one side is -1 - x on the other.
    assert np.array_equal(left[ENTRIES:], -(left + width)[:ENTRIES])
    assert (width[count:ENTRIES] == 0).all()


@property_test
@given(any_law, any_scale, st.integers(0, 2 * ENTRIES - 1), st.integers(0, 2**36))
def test_no_integer_is_accepted_with_more_than_certainty(law, scale, entry, excess):
    it = proposal(law, scale, entry if law.sides == 2 else entry % ENTRIES, excess)
    best, worst = whole_parts(it)
    with mpmath.workprec(200):
        assert 0 < it.limit(it.integer(worst)) <= it.limit(it.integer(best)) <= 1
        # What the first 33 bits accept is accepted whatever bits follow.
        assert int(law.accept_below[entry]) + it.width <= it.limit(it.integer(worst)) * 2**33 or it.in_tail
    assert (law.accept_below[entry] == 0) == it.in_tail


@property_test
@given(any_law, any_scale, st.integers(0, 2 * ENTRIES - 1), st.floats(0, 1), st.integers(0, 2**36))
def test_float_limits_are_the_exact_ones_nearly(law, scale, entry, where, excess):
    it = proposal(law, scale, entry if law.sides == 2 else entry % ENTRIES, excess)
    it = discrete_noise._Proposal(law, scale, it.entry, it.left, it.width, excess if it.in_tail else 0)
    x = it.integer(int(where * (it.width - 1)))
    one = {"entries": it.entry, "left": it.left, "excess": it.excess, "drawn": x}
    arrays = {name: np.array([value]) for name, value in one.items()}
    limit = discrete_noise._limits(law, np.array([scale]), width=np.array([it.width], dtype=np.uint64), **arrays)
    with mpmath.workprec(200):
        assert abs(it.limit(x) - float(limit[0])) < 2.0**-29


def test_every_integer_comes_out_in_proportion_to_its_exact_weight():
    # P(x) = P(entry) P(whole part) P(accept): in a interval 1/2N * 1/m * limit, in a tail K/2N * geometric * limit.
    scale = 2.0**31 * 1.1
    for law in LAWS.values():
        law = law()
        sides = law.sides * ENTRIES
        with mpmath.workprec(300):
            ratios = []
            for entry in (0, 1, 500, ENTRIES - law.tail - 1, ENTRIES + 3, 2 * ENTRIES - law.tail - 1):
                it = proposal(law, scale, entry % sides)
                for whole in (0, it.width // 3, it.width - 1):
                    x = it.integer(whole)
                    ratios.append(it.limit(x) / (sides * it.width) / law.weight(x, mpmath.mpf(scale)))
            for entry in (ENTRIES - 1, 2 * ENTRIES - 1):
                for excess in (0, 12345, 2**33):
                    it = proposal(law, scale, entry % sides, excess)
                    h = mpmath.mpf(law.tail_scale(scale, float(abs(it.left))))
                    geometric = (1 - mpmath.exp(-1 / h)) * mpmath.exp(-excess / h)
                    entries = mpmath.mpf(law.tail) / sides
                    x = it.integer(0)
                    ratios.append(entries * geometric * it.limit(x) / law.weight(x, mpmath.mpf(scale)))
            assert max(abs(ratio / ratios[0] - 1) for ratio in ratios) < mpmath.mpf(2) ** -200


def test_weights_are_those_of_the_continuous_law_rounded():
    s = mpmath.mpf(3)
    with mpmath.workprec(200):
        for x in range(-9, 10):
            gaussian = mpmath.quad(lambda t: mpmath.exp(-t * t / (2 * s * s)), [x - 0.5, x + 0.5])
            laplace = mpmath.quad(lambda t: mpmath.exp(-abs(t) / s), [x - 0.5, x, x + 0.5])
            assert abs(discrete_noise._gaussian_weight(x, s) - gaussian) < mpmath.mpf(2) ** -150
            assert abs(discrete_noise._laplace_weight(x, s) - laplace) < mpmath.mpf(2) ** -150


def test_the_rounded_laws_are_the_discrete_ones_nearly():
    # The docstrings' bounds on the total variation, at scales where the sums can be written out.
    s = 40.0
    x = np.arange(-2000, 2001)
    for law, discrete, bound in (
        (stats.norm, np.exp(-(x**2) / (2 * s * s)), 1 / (50 * s**2)),
        (stats.laplace, np.exp(-np.abs(x) / s), 1 / (8 * s**2)),
    ):
        rounded = law.cdf((x + 0.5) / s) - law.cdf((x - 0.5) / s)
        assert np.abs(rounded - discrete / discrete.sum()).sum() / 2 < bound * 1.01


class Chosen:
    """Bits that were chosen."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def integer(self, bits: int) -> int:
        return self.values.pop(0)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("entry", [0, 700, ENTRIES - 1])
def test_a_comparison_is_decided_right_at_a_distance_of_two_to_the_minus_100(name, entry):
    it = proposal(LAWS[name](), SCALES[1], entry, excess=10**9 if entry == ENTRIES - 1 else 0)
    length, whole = 65 + 128, it.width // 2
    with mpmath.workprec(400):
        limit = int(mpmath.ldexp(it.limit(it.integer(whole)), length))
    for distance, accepted in ((-1, True), (1, False)):
        # U = (whole + limit +- 2^-100) / width, to 193 bits: the fraction of width * U is then within 2^-160 of that.
        fraction = limit + distance * 2 ** (length - 100)
        uniform = -(-(whole * 2**length + fraction) // it.width)
        x, decision = it.decide(uniform >> 128, 65, Chosen(uniform & (2**128 - 1)))
        assert (x, decision) == (it.integer(whole), accepted)


def test_bits_are_taken_until_the_integer_itself_is_certain():
    it = proposal(discrete_noise.gaussian(), SCALES[1], 3)
    length, whole = 65 + 256, it.width // 2 + 1
    boundary = whole * 2**length // it.width
    for uniform, expected in ((boundary + 1, whole), (boundary - 1, whole - 1)):
        # 193 bits leave open which of two integers width * U lies in; 321 bits tell.
        mask = 2**128 - 1
        x, accepted = it.decide(uniform >> 256, 65, Chosen(uniform >> 128 & mask, uniform & mask))
        assert x == it.integer(expected)
        assert accepted == (expected == whole)  # the fraction is nearly 0, or nearly 1


@pytest.mark.parametrize("name", TWO_SIDED)
def test_tails_begin_where_intervals_end(name, monkeypatch):
    law, count = LAWS[name](), 64
    sides = np.arange(count, dtype=np.uint64) % 2
    words = (sides * ENTRIES + ENTRIES - 1) | (Bits(KEY).words(count) >> 31 << 31)
    excess = np.arange(count)
    monkeypatch.setattr(discrete_noise, "sample", lambda *_: excess)
    drawn, _ = discrete_noise._accept(law, np.full(count, SCALES[1]), words, Bits(KEY, 1))
    end = int(law.edges[-1] * SCALES[1])
    assert np.array_equal(drawn, np.where(sides == 0, end + excess, -end - 1 - excess))


@pytest.mark.parametrize("name", LAWS)
def test_exact_decisions_agree_with_float_ones(name, monkeypatch):
    law = LAWS[name]()
    words = Bits(KEY, 5).words(60_000)
    entries = law.entries(words)
    doubtful = (entries % ENTRIES) > 900  # where acceptance is least certain
    words = words[doubtful & (entries % ENTRIES < ENTRIES - law.tail)][:1500]
    scale = np.full(words.size, SCALES[0])
    quick = discrete_noise._accept(law, scale, words, Bits(KEY, 6))
    monkeypatch.setattr(discrete_noise, "_FLOAT_ERROR", 2.0)
    exact = discrete_noise._accept(law, scale, words, Bits(KEY, 6))
    assert 0 < quick[1].sum() < words.size
    assert np.array_equal(quick[0], exact[0])
    assert np.array_equal(quick[1], exact[1])


@pytest.mark.parametrize("name", TWO_SIDED)
@pytest.mark.parametrize("scale", SCALES)
def test_draws_fill_the_bins_of_the_law_evenly(name, scale):
    # Chi-square with 400 bins of equal probability: a false alarm once in 10^6.
    drawn = discrete_noise.sample(LAWS[name](), scale, 400_000, Bits(KEY, 1))
    bins = np.floor(TWO_SIDED[name].cdf(drawn / scale) * 400).astype(int)
    assert stats.chisquare(np.bincount(bins, minlength=400)).pvalue > 1e-6
    # The lowest digits are even as well, to 2^-31.
    assert stats.chisquare(np.bincount(drawn % 128, minlength=128)).pvalue > 1e-6


@pytest.mark.parametrize("name", TWO_SIDED)
def test_moments_are_those_of_the_law(name):
    # Five standard errors: a false alarm less than once in 10^6.
    scale, count = 3.1e9, 1_000_000
    drawn = discrete_noise.sample(LAWS[name](), scale, count, Bits(KEY, 2)) / scale
    # E x^k is k! for the Laplace law, and (k - 1)(k - 3)...1 for the normal one; 0 if k is odd.
    even = {2: (1, 2), 4: (3, 24), 6: (15, 720), 8: (105, 40320)}
    moments = {order: both[name == "laplace"] for order, both in even.items()}
    for power in (1, 2, 3, 4):
        mean, square = moments.get(power, 0), moments[2 * power]
        assert abs((drawn**power).mean() - mean) < 5 * math.sqrt((square - mean**2) / count)


@pytest.mark.parametrize("name", TWO_SIDED)
def test_tails_have_the_law_of_tails(name):
    law, scale = LAWS[name](), 2.5e9
    edge = law.edges[-1]
    drawn = np.abs(discrete_noise.sample(law, scale, 2_000_000, Bits(KEY, 3))) / scale
    far = drawn[drawn > edge]
    survival = TWO_SIDED[name].sf
    assert stats.binomtest(len(far), len(drawn), 2 * survival(edge)).pvalue > 1e-6
    assert stats.kstest(far, lambda x: 1 - survival(x) / survival(edge)).pvalue > 1e-6


def test_geometric_draws_have_their_law():
    scale = 2.0**29.7
    drawn = discrete_noise.sample(discrete_noise.geometric(), scale, 400_000, Bits(KEY, 4))
    assert drawn.min() >= 0
    bins = np.floor(stats.expon.cdf((drawn + 0.5) / scale) * 400).astype(int)
    assert stats.chisquare(np.bincount(bins, minlength=400)).pvalue > 1e-6


@pytest.mark.parametrize("name", TWO_SIDED)
def test_opendp_draws_from_the_same_law(name):
    # OpenDP's integer samplers, exact and slow. Two-sample Kolmogorov-Smirnov; a false alarm once in 10^6 each.
    opendp.enable_features("contrib")
    domain = opendp.vector_domain(opendp.atom_domain(T=opendp.i64))
    for number, scale in enumerate((2.0**31, 2.0**31 * 1.7)):
        if name == "gaussian":
            oracle = opendp.m.make_gaussian(domain, opendp.l2_distance(T=float), scale=scale)
        else:
            oracle = opendp.m.make_laplace(domain, opendp.l1_distance(T=opendp.i64), scale=scale)
        theirs = np.array(oracle([0] * 10_000))
        ours = discrete_noise.sample(LAWS[name](), scale, 200_000, Bits(KEY, 10 + number))
        assert stats.ks_2samp(ours, theirs).pvalue > 1e-6
        assert stats.ks_2samp(np.abs(ours), np.abs(theirs)).pvalue > 1e-6


@pytest.mark.parametrize("name", LAWS)
def test_one_scale_for_all_is_the_same_as_that_scale_for_each(name):
    law = LAWS[name]()
    one = discrete_noise.sample(law, 3.3e9, 50_000, Bits(KEY, 7))
    each = discrete_noise.sample(law, np.full(50_000, 3.3e9), 50_000, Bits(KEY, 7))
    assert np.array_equal(one, each)


def test_each_coordinate_has_its_own_scale():
    scale = np.linspace(2.0**31, 2.0**32 - 1, 300_000)
    drawn = discrete_noise.sample(discrete_noise.laplace(), scale, scale.size, Bits(KEY, 8))
    assert stats.kstest(drawn / scale, "laplace").pvalue > 1e-6
    assert stats.kstest((drawn / scale)[:50_000], "laplace").pvalue > 1e-6


def test_nothing_is_drawn_where_nothing_is_asked_for():
    assert discrete_noise.sample(discrete_noise.gaussian(), 3e9, 0, Bits(KEY)).size == 0
    assert discrete_noise.sample(discrete_noise.laplace(), np.empty(0), 0, Bits(KEY)).size == 0
