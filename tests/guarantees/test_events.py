from __future__ import annotations

import math

import attr
import pytest

from noiseproof.errors import SettingError
from noiseproof.guarantees.events import (
    ComposedDpEvent,
    DpEvent,
    EventLog,
    GaussianDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    ReplaceOneDpEvent,
    SelfComposedDpEvent,
    sampled_gaussian,
)

STEP = GaussianDpEvent(2.0)


def test_a_log_keeps_equal_events_in_a_row_as_one():
    log = EventLog()
    assert log.event == NoOpDpEvent()
    for _ in range(3):
        log.append(GaussianDpEvent(2.0))
    log.append(STEP, count=4)
    assert log.event == SelfComposedDpEvent(STEP, 7)
    log.append(PureDpEvent(0.1))
    log.append(STEP)
    assert log.event == ComposedDpEvent([SelfComposedDpEvent(STEP, 7), PureDpEvent(0.1), STEP])
    assert len(log) == 9


def test_reading_the_event_does_not_change_the_log():
    log = EventLog()
    log.append(STEP, 2)
    assert log.event == log.event
    assert len(log) == 2


def test_nothing_can_happen_less_than_never():
    log = EventLog()
    log.append(STEP, 0)
    assert len(log) == 0
    with pytest.raises(SettingError, match="-1 times"):
        log.append(STEP, -1)


@pytest.mark.parametrize("event", [PureDpEvent(0.5), PureDpEvent(0.5, "replace-one", True), ReplaceOneDpEvent(STEP)])
def test_own_events_are_frozen_and_compare_by_what_they_say_as_dp_accountings_do(event):
    assert isinstance(event, DpEvent)
    assert len({event, attr.evolve(event)}) == 1
    with pytest.raises(AttributeError):
        event.event = event.epsilon = None


def test_sampled_gaussian_steps_are_written_as_short_as_they_are():
    assert sampled_gaussian(0.1, 2.0, 5) == SelfComposedDpEvent(PoissonSampledDpEvent(0.1, STEP), 5)
    assert sampled_gaussian(1, 2) == STEP
    assert sampled_gaussian(0.1, 2, 0) == NoOpDpEvent()


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "word"),
    [
        (1.1, 1, 1, "rate"),
        (-0.1, 1, 1, "rate"),
        (math.nan, 1, 1, "rate"),
        (0.1, -1, 1, "sigma"),
        (0.1, math.nan, 1, "sigma"),
        (0.1, math.inf, 1, "sigma"),
        (0.1, 1, -1, "steps"),
        (0.1, 1, 1.5, "steps"),
        (0.1, 1, math.nan, "steps"),
    ],
)
def test_impossible_steps_are_refused(rate, sigma, steps, word):
    with pytest.raises(SettingError, match=word):
        sampled_gaussian(rate, sigma, steps)
