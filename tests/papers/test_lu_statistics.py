"""The statistics of Lu et al. follow from their Table 5, and their counts of answers from their arithmetic."""

from __future__ import annotations

import math

import pytest

from papers.lu import published
from papers.lu.queries import MOST, answers_until, epsilon_each
from papers.lu.run import Point, RunResult
from papers.lu.summary import PAIRS, Summary, correlate

COLUMNS = {"oaro": "oaro", "gap": "convexified_gap", "leak": "leak"}


@pytest.mark.parametrize("pair", PAIRS)
def test_the_correlations_of_figure_2_come_out_to_the_printed_digits(pair):
    rows = published.rows()
    rows = rows[rows["convexified_test"] > 0.5]
    assert len(rows) == 9
    first, second = (rows[COLUMNS[name]] for name in pair.split("-"))
    found, printed = correlate(list(first), list(second)), published.correlations().loc[pair]
    for kind in ("pearson", "spearman", "kendall"):
        assert round(getattr(found, kind), 4) == printed[kind]
        # "0" in the paper is a small number.
        assert round(getattr(found, f"{kind}_p"), 4) == pytest.approx(printed[f"{kind}_p"], abs=1e-9)


def test_too_few_points_have_no_correlation():
    assert correlate([1.0, 2.0], [1.0, 2.0]).pearson is None
    assert correlate([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]).kendall is None


def test_the_printed_rows_hold_together_but_for_one():
    rows = published.rows()
    off = (rows["train"] - rows["test"] - rows["gap"]).abs() > 1e-6
    assert list(rows.index[off]) == ["CIFAR-100"]


def summary(losses: dict[str, dict[float, float]]) -> Summary:
    """A data set whose curves have these accuracy losses and whose baseline is right on half of the records."""
    points = tuple(
        Point(curve, epsilon, 0.5 * (1 - loss), 0.0)
        for curve, values in losses.items()
        for epsilon, loss in values.items()
    )
    accuracies = dict.fromkeys(("original", "paper", "code"), (0.5, 0.5))
    return Summary(
        (RunResult("Location", "location", 0, 100, 10, 3, 1.0, accuracies, 0.1, 0.2, 2, 0.1, 0.25, points, 1.0),)
    )


def test_answers_are_counted_until_dp_sgd_loses_less():
    falling = {0.01: 0.9, 1.0: 0.4, 100.0: 0.0}
    one = summary({"neuron-laplace": falling, "neuron-gaussian": falling, "dp-sgd-rdp": dict.fromkeys(falling, 0.2)})
    # A loss of 0.2 needs an epsilon of 10: of a total of 100 there are 10 by sums and 100 by squares.
    assert answers_until(one, "neuron-laplace", 100.0, 1e-5) == pytest.approx(10, abs=1)
    assert answers_until(one, "neuron-gaussian", 100.0, 1e-5) == pytest.approx(100, abs=2)
    assert answers_until(one, "neuron-laplace", 1.0, 1e-5) == 0


def test_against_a_dp_sgd_worse_than_the_limit_no_number_is_too_large():
    falling = {0.01: 0.5, 1.0: 0.4}
    one = summary({"neuron-laplace": falling, "dp-sgd-rdp": {0.01: 0.9, 1.0: 0.6}})
    assert one.limit == pytest.approx(0.5)
    assert answers_until(one, "neuron-laplace", 1.0, 1e-5) == MOST


def test_siblings_pay_what_is_proven():
    assert epsilon_each("votes", 1.0, 1, 1e-5, 10) == pytest.approx(1.0)
    many = epsilon_each("votes", 1.0, 10_000, 1e-5, 10)
    # More than the plain sum, less than what the paper's Gaussian arithmetic would give away.
    assert 1 / 10_000 < many < 1 / math.sqrt(10_000)
    assert epsilon_each("teachers", 1.0, 100, 1e-5, 10) > 1 / 100
