"""The paper's budget arithmetic: both splits, many queries, theorem 2's deltas."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from noiseproof.errors import SettingError
from noiseproof.predictions.composition import (
    answer_epsilon,
    answers_within,
    part_epsilon,
    theorem2_delta,
    total_epsilon,
)

LAWS = st.sampled_from(["laplace", "gaussian"])


def test_both_splits():
    assert part_epsilon(1.0, 30, "laplace") == pytest.approx(1 / 61)
    assert part_epsilon(1.0, 30, "gaussian") == pytest.approx(1 / 11)
    assert part_epsilon(1.0, 2, "gaussian") == pytest.approx(1 / 3)
    # What the authors' program divides by is something else.
    assert part_epsilon(1.0, 10, "gaussian") != pytest.approx(1 / (math.sqrt(40) + 1), rel=1e-3)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.floats(0.01, 1000), st.integers(2, 200), LAWS)
def test_a_split_adds_up_to_the_whole(epsilon, classes, law):
    part = part_epsilon(epsilon, classes, law)
    # One part for the choice and, by the proof's count, two for each class.
    parts = [part, *([2 * part] * classes)]
    assert total_epsilon(parts, law) == pytest.approx(epsilon)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.floats(0.01, 1000), st.integers(1, 2000), LAWS)
def test_the_answers_of_a_budget_cost_it_together(epsilon, queries, law):
    each = answer_epsilon(epsilon, queries, law)
    assert total_epsilon([each] * queries, law) == pytest.approx(epsilon)
    assert answers_within(epsilon, each, law) == queries


def test_the_paper_s_example_and_its_slip():
    """Section 5.4.5: 10 for 1,000 queries is 0.01 each by sums; for 100 queries the paper says 0.01 too, but it is 0.1."""
    assert answer_epsilon(10, 1000, "laplace") == pytest.approx(0.01)
    assert answer_epsilon(10, 100, "laplace") == pytest.approx(0.1)
    # For its Gaussian noise the paper has theorem 3, by which 1,000 queries could have 0.316 each.
    assert answer_epsilon(10, 1000, "gaussian") == pytest.approx(0.3162, abs=1e-4)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 5.0, 10.0])
def test_theorem_2_s_delta_is_its_formula(epsilon):
    by_hand = norm.cdf(-1 + epsilon / 2) - math.exp(epsilon) * norm.cdf(-1 - epsilon / 2)
    assert theorem2_delta(epsilon) == pytest.approx(by_hand, rel=1e-9)


def test_theorem_2_s_delta_is_large_where_epsilon_is_usual():
    assert round(theorem2_delta(1.0), 3) == 0.127
    assert round(theorem2_delta(10.0), 5) == 0.99995


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_an_epsilon_that_is_none_is_refused(epsilon):
    for function in (
        theorem2_delta,
        lambda e: part_epsilon(e, 2, "laplace"),
        lambda e: answer_epsilon(e, 1, "laplace"),
    ):
        with pytest.raises(SettingError):
            function(epsilon)
