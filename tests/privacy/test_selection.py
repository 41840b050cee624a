"""A choice by logits has exactly the probabilities of their exponentials."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from noiseproof.errors import NoiseproofError
from noiseproof.privacy import selection
from noiseproof.privacy.randomness import Bits

KEY = bytes(range(32))
INFINITY = float("inf")


class Chosen:
    """Bits that were chosen."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def integer(self, bits: int) -> int:
        return self.values.pop(0)


def test_frequencies_are_the_probabilities():
    # Chi-square: a false alarm once in 10^6 each.
    for logits in ([0.0, 1.0, -2.0, 0.5], [5.0, 5.0], [-800.0, -801.0, -803.0], list(np.linspace(-4, 3, 30))):
        chosen = selection.choose(torch.tensor(logits).expand(200_000, -1), Bits(KEY))
        counts = np.bincount(chosen.numpy(), minlength=len(logits))
        assert stats.chisquare(counts, 200_000 * special.softmax(np.array(logits))).pvalue > 1e-6


def test_rows_are_chosen_independently():
    chosen = selection.choose(torch.zeros(100_000, 2, 2), Bits(KEY))
    assert chosen.shape == (100_000, 2)
    counts = np.bincount((2 * chosen[:, 0] + chosen[:, 1]).numpy(), minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_large_and_small_tables_choose_alike(monkeypatch):
    logits = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
    whole = selection.choose(logits, Bits(KEY))
    monkeypatch.setattr(selection, "_ENTRIES", 100)
    assert torch.equal(selection.choose(logits, Bits(KEY)), whole)


def test_what_is_impossible_is_never_chosen():
    logits = torch.tensor([-INFINITY, 0.0, -INFINITY, -1.0, -INFINITY]).expand(50_000, -1)
    assert set(selection.choose(logits, Bits(KEY)).tolist()) == {1, 3}
    assert selection.choose(torch.tensor([-INFINITY, 3.0]), Bits(KEY)).item() == 1
    assert selection.choose(torch.tensor([-1e308, 1e308], dtype=torch.float64), Bits(KEY)).item() == 1


def test_adding_a_number_to_all_logits_changes_nothing():
    logits = torch.tensor([0.0, 0.25, -1.5], dtype=torch.float64).expand(10_000, -1)
    assert torch.equal(selection.choose(logits, Bits(KEY)), selection.choose(logits + 2.0**20, Bits(KEY)))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=8), st.sampled_from([100, 250]), st.data())
def test_a_boundary_is_decided_right_however_near(logits, exponent, data):
    boundary = data.draw(st.integers(1, len(logits) - 1))
    length = 64 + 256
    with mpmath.workprec(500):
        weights = [mpmath.exp(logit) for logit in logits]
        uniform = int(mpmath.ldexp(sum(weights[:boundary]) / sum(weights), length))
    for distance, index in ((-1, boundary - 1), (1, boundary)):
        bits = uniform + distance * 2 ** (length - exponent)
        more = Chosen(bits >> 128 & (2**128 - 1), bits & (2**128 - 1))
        assert selection._decide(np.array(logits), bits >> 256, more) == index
        # At a distance of 2^-250 the first 192 bits were not enough.
        assert len(more.values) == (1 if exponent == 100 else 0)


def test_exact_choices_agree_with_float_ones():
    logits = np.random.default_rng(0).normal(size=(300, 6)) * 3
    quick = selection._choose_rows(logits, Bits(KEY))
    words = Bits(KEY).words(300)
    rest = Bits(KEY, 1)
    exact = [selection._decide(row, int(word), rest) for row, word in zip(logits, words, strict=True)]
    assert quick.tolist() == exact


def test_rows_near_a_boundary_are_decided_exactly(monkeypatch):
    decided = []
    exact = selection._decide

    def spy(*arguments):
        decided.append(arguments)
        return exact(*arguments)

    monkeypatch.setattr(selection, "_decide", spy)

    class Near:
        def __init__(self, distance):
            self.word = (1 << 63) + (distance << 11)

        def words(self, count):
            return np.array([self.word], dtype=np.uint64)

        def integer(self, bits):
            return 1 << 100

    logits = np.zeros((1, 2))
    for distance, chosen in ((-1, 0), (0, 1), (1, 1)):
        assert selection._choose_rows(logits, Near(distance)).tolist() == [chosen]
    assert len(decided) == 3
    assert selection._choose_rows(logits, Near(1 << 20)).tolist() == [1]
    assert len(decided) == 3


@pytest.mark.parametrize("logits", [[0.0, float("nan")], [INFINITY, 0.0], [-INFINITY, -INFINITY], [], 3.0], ids=str)
def test_what_cannot_be_chosen_by_is_refused(logits):
    with pytest.raises(NoiseproofError):
        selection.choose(torch.tensor(logits), Bits(KEY))


def test_no_rows_are_no_choices():
    assert selection.choose(torch.empty(0, 3), Bits(KEY)).shape == (0,)
