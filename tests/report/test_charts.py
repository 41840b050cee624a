"""Axes put values where they belong, and ticks where they can be read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.report.charts import Axis, Chart, Drawing, Point, Series

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


def test_shares_end_at_one():
    assert Axis.around("accuracy", (0.5, 0.999), percent=True).high == 1.0


def test_steps_have_a_corner_at_each_rise_and_rows_join_points_of_equal_height():
    line = Series("a", 0, (Point(0, 0), Point(0.5, 0.2), Point(1, 1)))
    assert chart("steps").paths(line) == [[(0, 0), (0.5, 0), (0.5, 0.2), (1, 0.2), (1, 1)]]
    rows = Series("a", 0, (Point(3, 0.5), Point(1, 0.5), Point(2, 0.9)))
    assert chart("rows").paths(rows) == [[(1, 0.5), (3, 0.5)], [(2, 0.9), (2, 0.9)]]


def test_numbers_beside_equal_points_do_not_cover_each_other():
    drawing = Drawing(chart("straight"), "wide", 300, 200)
    assert len({drawing.label(150, 80) for _ in range(6)}) == 6


def chart(lines):
    return Chart("a", "a chart", "", Axis("x", 0, 1), Axis("y", 0, 1), (), lines)
