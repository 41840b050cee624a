"""Axes put values where they belong, and ticks where they can be read."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.report.chart import Axis, Chart, padded
from noiseproof.report.series import Point, Series

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
    assert padded("accuracy", 0.5, 0.999, percent=True).high == 1.0


def test_every_point_can_be_focused_and_says_what_it_is():
    chart = Chart("a chart", Axis("x", 0, 1), Axis("y", 0, 1), 300, 200)
    chart.points(Series("a & b", 3, (Point(0.5, 0.5, 'a & b: "half"', "proven"),)))
    drawn = chart.svg("wide")
    assert 'tabindex="0"' in drawn
    assert 'aria-label="a &amp; b: &quot;half&quot;"' in drawn


def test_numbers_beside_equal_points_do_not_cover_each_other():
    chart = Chart("a chart", Axis("x", 0, 1), Axis("y", 0, 1), 300, 200)
    for number in range(6):
        chart.points(Series(str(number), number, (Point(0.5, 0.5, ""),)))
    assert len(set(chart._taken)) == 6
