"""Schedules follow their formulas; ANT follows its scores."""

from __future__ import annotations

import math

import pytest

from noiseproof.errors import SettingError
from noiseproof.methods.losses.gan import NoiseTuning


def _run(tuning, iterations):
    found = []
    for _ in range(iterations):
        found.append(tuning.sigma)
        tuning.advance()
    return found


@pytest.mark.parametrize(
    ("kind", "rate", "formula"),
    [
        ("constant", 0.3, lambda t: 10.0),
        ("time", 0.05, lambda t: 10 / (1 + 0.05 * t)),
        ("exp", 0.01, lambda t: 10 * math.exp(-0.01 * t)),
        ("step", 0.6, lambda t: 10 * 0.6 ** (t // 100)),
    ],
)
def test_formulas_of_the_iteration(kind, rate, formula):
    assert _run(NoiseTuning(kind, 10.0, rate), 350) == pytest.approx([formula(t) for t in range(350)])


def test_ant_lowers_the_noise_when_the_running_mean_gains_too_little():
    tuning = NoiseTuning("ant", 10.0, 0.8, every=1, threshold=0.1)
    for score, expected in ((0.5, 10.0), (0.9, 10.0), (0.7, 8.0), (0.7, 6.4), (1.9, 6.4)):
        assert tuning.wants_score
        tuning.advance(score)  # means: .5, .7, .7, .7, .94
        assert tuning.sigma == pytest.approx(expected)


def test_ant_looks_only_as_often_as_it_was_told():
    tuning = NoiseTuning("ant", 1.0, 0.5, every=3)
    looks = []
    for _ in range(9):
        looks.append(tuning.wants_score)
        tuning.advance(0.0 if tuning.wants_score else None)
    assert looks == [False, False, True] * 3
    assert tuning.sigma == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("kind", "start", "rate", "every"),
    [("step", 1.0, 0.0, 1), ("ant", 1.0, 1.5, 1), ("time", 1.0, -1.0, 1), ("exp", -1.0, 0.1, 1), ("step", 1.0, 0.5, 0)],
)
def test_impossible_schedules_are_refused(kind, start, rate, every):
    with pytest.raises(SettingError):
        NoiseTuning(kind, start, rate, every=every)
