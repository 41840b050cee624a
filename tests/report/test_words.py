"""Epsilon in plain words: every number is the exact bound of (epsilon, delta)-differential privacy, rounded up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.report.words import Meaning, of_people, plain, rounded_up

SOME = settings(deadline=None, derandomize=True, max_examples=100)
EPSILONS, DELTAS = st.floats(0, 20), st.floats(0, 0.5)


def leaky_response(epsilon, delta):
    """The mechanism that dominates all others: with probability delta it tells the truth, else randomised response.

    Probabilities of (known out, likely out, likely in, known in) in each of the two worlds.
    """
    likely = (1 - delta) / (1 + math.exp(-epsilon))
    return [delta, likely, 1 - delta - likely, 0.0], [0.0, 1 - delta - likely, likely, delta]


@SOME
@given(EPSILONS, DELTAS, st.floats(0, 1))
def test_no_test_of_the_dominating_mechanism_accuses_more_and_one_accuses_as_many(epsilon, delta, wrongly):
    out, inside = leaky_response(epsilon, delta)
    # The most powerful tests accuse from the right end, the last answer perhaps by a coin (Neyman and Pearson).
    left, power = wrongly, 0.0
    for p, q in zip(reversed(out), reversed(inside), strict=True):
        share = 1.0 if p <= left else left / p
        left, power = max(0.0, left - share * p), power + share * q
    assert Meaning(epsilon, delta).accused(wrongly) == pytest.approx(min(1.0, power), abs=1e-9)


@SOME
@given(EPSILONS, DELTAS)
def test_the_best_guess_after_a_coin_toss_is_attained_by_the_dominating_mechanism(epsilon, delta):
    out, inside = leaky_response(epsilon, delta)
    best = sum(max(p, q) for p, q in zip(out, inside, strict=True)) / 2
    assert Meaning(epsilon, delta).guessed == pytest.approx(best, abs=1e-12)


@SOME
@given(st.floats(0, 5), DELTAS, st.integers(1, 6))
def test_a_group_has_what_following_neighbours_one_by_one_gives(epsilon, delta, size):
    found = Meaning(epsilon, delta).for_group(size)
    grown = sum(math.exp(step * epsilon) for step in range(size)) * delta
    assert found.epsilon == pytest.approx(size * epsilon)
    assert found.delta == pytest.approx(min(1.0, grown))


@pytest.mark.parametrize(("epsilon", "word"), [(0.5, "strong"), (1, "strong"), (3, "reasonable"), (11, "weak")])
def test_strength_goes_by_published_tiers(epsilon, word):
    assert Meaning(epsilon, 1e-5).strength == word


def test_the_figures_of_a_common_release():
    found = Meaning(3.0, 1e-5)
    assert rounded_up(found.factor) == "20.1"
    assert of_people(found.guessed) == "953"
    assert of_people(found.accused(0.01)) == "201"


def test_an_enormous_epsilon_is_no_error():
    found = Meaning(5000.0, 1e-5).for_group(10)
    assert found.guessed == 1.0
    assert rounded_up(found.factor) == "more than a billion"


@SOME
@given(st.floats(1e-6, 1e8))
def test_what_is_rounded_up_is_never_smaller(value):
    said = float(rounded_up(value).replace(",", ""))
    assert value * (1 - 1e-6) <= said <= value * 1.011 + 1e-9


@pytest.mark.parametrize(("share", "said"), [(1e-5, "0.00001"), (0.0, "0"), (0.05, "0.05"), (1e-12, "1e-12")])
def test_small_shares_are_written_out(share, said):
    assert plain(share) == said
