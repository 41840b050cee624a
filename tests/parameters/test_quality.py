"""Draws are repeated until one is accurate enough, and no more often than stated."""

from __future__ import annotations

import itertools

import pytest

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.parameters.quality import Quality, redraw


def test_the_first_draw_above_the_threshold_is_published():
    drawn = itertools.count(1)
    assert redraw(lambda: next(drawn), lambda value: value / 10, Quality(0.3)) == (4, 4)


def test_without_a_threshold_the_first_draw_is_published_and_never_tested():
    assert redraw(lambda: "drawn", lambda _: 1 / 0, None) == ("drawn", 1)


def test_an_impossible_threshold_stops_after_the_stated_number_of_draws():
    drawn = []
    with pytest.raises(NoiseproofError, match=r"none of 7 draws was more accurate than 0\.9; nothing was published"):
        redraw(lambda: drawn.append(1), lambda _: 0.9, Quality(0.9, most=7))
    assert len(drawn) == 7


@pytest.mark.parametrize("settings", [{"threshold": 1.1}, {"threshold": -0.1}, {"threshold": 0.5, "most": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SettingError):
        Quality(**settings)
