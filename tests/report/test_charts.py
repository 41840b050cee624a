"""Axes put values where they belong, and ticks where they can be read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.privacy import Claim
from noiseproof.report.charts import Axis, Chart, Drawing, Point, Series, matter, spread
from noiseproof.report.intervals import three

SOME = settings(deadline=None, derandomize=True, max_examples=60)


@SOME
@given(st.floats(1e-3, 1e3), st.floats(1.01, 1e4), st.floats(0, 1), st.booleans())
def test_places_rise_with_values_and_ends_are_ends(low, factor, share, log):
    axis = Axis("", low, low * factor, log)
    between = low + share * (low * factor - low)
    assert axis.at(axis.low) == 0
    assert axis.at(axis.high) == pytest.approx(1)
    assert 0 <= axis.at(between) <= 1
    assert axis.at(between) <= axis.at(min(axis.high, between * 1.1))


@SOME
@given(st.floats(1e-3, 1e3), st.floats(1.5, 1e5), st.booleans())
def test_ticks_lie_on_the_axis_and_are_not_crowded(low, factor, log):
    axis = Axis("", low, low * factor, log)
    ticks = axis.ticks()
    assert all(low * (1 - 1e-6) <= tick <= low * factor * (1 + 1e-6) for tick in ticks)
    assert len(ticks) <= 13
    assert ticks == sorted(set(ticks))


def test_values_beyond_an_end_are_drawn_at_it():
    axis = Axis("", 0.1, 10, log=True)
    assert axis.at(0) == 0
    assert axis.at(100) == 1


def test_an_epsilon_beyond_all_axes_is_drawn_at_the_end_of_one():
    drawn = three({"claimed": Claim(epsilon=1e308, delta=0.0, source="a stranger's card")}, "claimed")
    assert drawn is not None


def test_shares_end_at_one():
    assert Axis.around("accuracy", (0.5, 0.999), percent=True).high == 1.0


def test_steps_have_a_corner_at_each_rise_and_rows_go_from_the_audit_to_the_proof():
    line = Series("a", 0, (Point(0, 0), Point(0.5, 0.2), Point(1, 1)))
    assert chart("steps").paths(line) == [[(0, 0), (0.5, 0), (0.5, 0.2), (1, 0.2), (1, 1)]]
    proven = Series("a", 0, (Point(0.3, 0.5, kind="proven"), Point(0.1, 0.5, kind="audited")))
    assert chart("rows").paths(proven) == [[(0.1, 0.5), (0.3, 0.5)]]
    unproven = Series("a", 0, (Point(0.1, 0.5, kind="audited"),))
    assert chart("rows").paths(unproven) == [[(0.1, 0.5), (1, 0.5)]]


@SOME
@given(st.lists(st.floats(0, 300), max_size=12), st.floats(1, 20))
def test_labels_keep_their_order_and_never_cover_each_other(places, gap):
    places = sorted(places)
    found = spread(places, gap, 0, 300)
    assert all(after - before >= gap * (1 - 1e-9) for before, after in pairwise(found))
    assert all(-1e-9 <= place <= 300 for place in found)
    free = all(after - before >= gap for before, after in pairwise(places))
    assert not free or found == pytest.approx(places)


def test_the_few_that_matter_are_the_recommended_the_best_of_each_kind_and_the_best_that_fell(comparison):
    assert matter(comparison) == ["dp-sgd", "logits", "neuron-gaussian", "dp-sgd-adaptive", "quantile-flat"]


def test_bands_are_one_standard_error_wide():
    drawing = Drawing(chart("straight"), "wide", 100, 100, left=0, right=0, top=0, bottom=0)
    one = Series("a", 0, (Point(0, 0.5, error=0.1), Point(1, 0.5, error=0.2)))
    assert drawing.band(one) == "M0.0 40.0L100.0 30.0L100.0 70.0L0.0 60.0Z"
    assert drawing.band(Series("a", 0, (Point(0, 0.5),))) == ""


def chart(lines):
    return Chart("a", "a chart", "", Axis("x", 0, 1), Axis("y", 0, 1), (), lines)
