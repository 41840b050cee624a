"""Schedules follow their formulas and depend on nothing but the step."""

from __future__ import annotations

import math

import pytest

from noiseproof.errors import SettingError
from noiseproof.gradients.schedules import Schedule


def test_each_kind_follows_its_formula():
    assert [Schedule(2.0).at(t) for t in (0, 5, 999)] == [2.0] * 3
    assert Schedule(2.0, "exponential", 0.1).at(7) == pytest.approx(2 * math.exp(-0.7))
    assert [Schedule(2.0, "step", 0.5, every=10).at(t) for t in (0, 9, 10, 25)] == [2.0, 2.0, 1.0, 0.5]


@pytest.mark.parametrize("start", [0.0, -1.0, math.inf, math.nan])
def test_a_schedule_starts_at_a_positive_number(start):
    with pytest.raises(SettingError):
        Schedule(start)


def test_a_step_schedule_needs_a_factor_and_an_interval():
    with pytest.raises(SettingError):
        Schedule(1.0, "step", 0.0)
    with pytest.raises(SettingError):
        Schedule(1.0, "step", 0.5, every=0)
