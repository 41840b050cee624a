from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy.events import (
    ComposedDpEvent,
    DpEvent,
    EventLog,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    ReplaceOneDpEvent,
    SelfComposedDpEvent,
    sampled_gaussian,
)
from noiseproof.privacy.renyi import curve
from noiseproof.privacy.steps import Step, amplified, condense, merge_gaussians, read

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


@pytest.mark.parametrize(
    "event", [PureDpEvent(0.5, "replace-one", True), ReplaceOneDpEvent(STEP), ComposedDpEvent([STEP])]
)
def test_events_are_frozen_and_compare_by_what_they_say(event):
    assert isinstance(event, DpEvent)
    assert len({event, replace(event)}) == 1
    with pytest.raises(AttributeError):
        event.event = event.epsilon = event.events = None


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


ADD, REPLACE = "add-or-remove", "replace-one"
GAUSSIAN, LAPLACE = GaussianDpEvent(4.0), LaplaceDpEvent(10.0)


def test_equal_events_are_counted_together_wherever_they_are():
    event = ComposedDpEvent(
        [GAUSSIAN, SelfComposedDpEvent(ComposedDpEvent([LAPLACE, GAUSSIAN]), 3), NoOpDpEvent(), PureDpEvent(0.0)]
    )
    assert set(read(event, ADD)) == {Step("gaussian", 4.0, count=4), Step("laplace", 10.0, count=3)}


def test_exchanging_a_record_moves_a_sum_by_twice_its_norm():
    assert read(GAUSSIAN, REPLACE) == (Step("gaussian", 2.0),)
    assert read(LAPLACE, REPLACE) == (Step("laplace", 5.0),)
    assert read(PureDpEvent(0.3), REPLACE) == (Step("pure", 0.6),)
    assert read(PoissonSampledDpEvent(0.1, GAUSSIAN), REPLACE) == (Step("gaussian", 4.0, 0.1, exchange=True),)


def test_what_was_proven_under_replace_one_counts_as_it_is_there():
    assert read(ReplaceOneDpEvent(GAUSSIAN), REPLACE) == (Step("gaussian", 4.0),)
    assert read(ReplaceOneDpEvent(LAPLACE), REPLACE) == (Step("laplace", 10.0),)
    assert read(PureDpEvent(0.3, REPLACE), REPLACE) == (Step("pure", 0.3),)
    # The sample without the record may look like neither, so that sampling is no help.
    assert read(PoissonSampledDpEvent(0.1, ReplaceOneDpEvent(GAUSSIAN)), REPLACE) == (Step("gaussian", 4.0),)
    assert read(PoissonSampledDpEvent(0.1, PureDpEvent(0.3, REPLACE)), REPLACE) == (Step("pure", 0.3),)


def test_a_bounded_range_is_not_claimed_on_a_sample():
    # Each possible sample shifts the interval of losses, so that their mixture may have a longer one.
    assert read(PureDpEvent(0.3, REPLACE, True), REPLACE) == (Step("pure", 0.3, bounded_range=True),)
    assert read(PoissonSampledDpEvent(0.1, PureDpEvent(0.3, REPLACE, True)), REPLACE) == (Step("pure", 0.3),)
    assert read(PoissonSampledDpEvent(0.1, PureDpEvent(0.3, ADD, True)), ADD) == (Step("pure", 0.3, 0.1),)


@pytest.mark.parametrize("event", [ReplaceOneDpEvent(GAUSSIAN), PureDpEvent(0.3, REPLACE)])
def test_what_was_proven_under_replace_one_is_refused_under_add_or_remove(event):
    with pytest.raises(UnsupportedError, match=f"{type(event).__name__}.*replace-one.*add-or-remove"):
        read(event, ADD)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(0.01, 5), st.floats(0.01, 0.99))
def test_a_sampled_pure_mechanism_under_replace_one_loses_what_three_outcomes_can_lose(epsilon, rate):
    # Three laws on two outcomes: without the record, with it, with the other, as far apart as epsilon allows.
    low, high = 1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))
    (step,) = read(PoissonSampledDpEvent(rate, PureDpEvent(epsilon)), REPLACE)
    assert step.rate == 1
    for without in (low, 0.5, high):
        for one in (low, high):
            for other in (low, high):
                close = all(
                    abs(math.log(a / b)) <= epsilon + 1e-9 and abs(math.log((1 - a) / (1 - b))) <= epsilon + 1e-9
                    for a, b in ((one, without), (other, without))
                )
                if close:
                    mixed = [(1 - rate) * without + rate * p for p in (one, other)]
                    assert abs(math.log(mixed[0] / mixed[1])) <= step.scale + 1e-9
    assert step.scale <= 2 * epsilon


def test_several_mechanisms_on_one_sample_are_one_step():
    both = ComposedDpEvent([GaussianDpEvent(3.0), SelfComposedDpEvent(GaussianDpEvent(4.0), 2)])
    (step,) = read(PoissonSampledDpEvent(0.1, both), ADD)
    assert step.rate == 0.1
    assert step.scale == pytest.approx((1 / 9 + 2 / 16) ** -0.5)
    (step,) = read(PoissonSampledDpEvent(0.1, SelfComposedDpEvent(PureDpEvent(0.2), 3)), ADD)
    assert step == Step("pure", pytest.approx(0.6), 0.1)
    # Amplifying each of them on its own would be wrong: they look at the same sample.
    assert step.pure_epsilon > 3 * amplified(0.2, 0.1)


def test_a_sample_of_a_sample_is_a_sample():
    assert read(PoissonSampledDpEvent(0.5, PoissonSampledDpEvent(0.1, GAUSSIAN)), ADD) == (Step("gaussian", 4.0, 0.05),)


def test_what_never_looks_at_a_record_costs_nothing():
    assert read(PoissonSampledDpEvent(0.0, NonPrivateDpEvent()), ADD) == ()
    assert read(ComposedDpEvent([NoOpDpEvent(), SelfComposedDpEvent(GAUSSIAN, 0)]), ADD) == ()


@pytest.mark.parametrize(
    "event",
    [NonPrivateDpEvent(), GaussianDpEvent(0), LaplaceDpEvent(0), PoissonSampledDpEvent(0.1, GaussianDpEvent(0))],
)
def test_what_has_no_noise_protects_nothing(event):
    assert read(ComposedDpEvent([GAUSSIAN, event]), ADD) is None


class StrangeDpEvent(DpEvent):
    pass


@pytest.mark.parametrize("neighbours", [ADD, REPLACE])
@pytest.mark.parametrize("event", [StrangeDpEvent(), PoissonSampledDpEvent(0.1, ComposedDpEvent([GAUSSIAN, LAPLACE]))])
def test_unknown_events_are_named_and_refused(event, neighbours):
    with pytest.raises(UnsupportedError, match=f"(StrangeDpEvent|Gaussian and other noise).*{neighbours}"):
        read(event, neighbours)


@pytest.mark.parametrize(
    "event",
    [
        GaussianDpEvent(-1),
        GaussianDpEvent(math.nan),
        LaplaceDpEvent(math.inf),
        PureDpEvent(-0.1),
        PureDpEvent(math.inf),
        PoissonSampledDpEvent(1.5, GAUSSIAN),
        SelfComposedDpEvent(GAUSSIAN, -1),
        PureDpEvent(0.1, "swap"),
    ],
)
def test_impossible_settings_are_refused(event):
    with pytest.raises(SettingError):
        read(event, ADD)


def test_unknown_neighbours_are_refused():
    with pytest.raises(SettingError, match="neighbours"):
        read(GAUSSIAN, "bounded")


@settings(deadline=None, derandomize=True, max_examples=50)
@given(
    st.lists(
        st.builds(Step, st.just("gaussian"), st.floats(0.5, 8), st.floats(0.01, 1), st.integers(1, 9)), min_size=1
    ),
    st.integers(1, 4),
)
def test_condensed_steps_are_few_count_the_same_and_never_leak_less(steps, most):
    few = condense(steps, most)
    assert len(few) <= max(most, 30)
    assert sum(s.count for s in few) == sum(s.count for s in steps)
    orders = [1.5, 4.0, 20.0]
    assert (curve(few, orders) >= curve(steps, orders) * (1 - 1e-9)).all()


def test_condensing_thousands_of_noise_levels_costs_little():
    steps = [Step("gaussian", 1 + k / 1000, 0.01) for k in range(4000)]
    few = condense(steps, 128)
    assert len(few) <= 128
    assert curve(few, [8.0])[0] <= curve(steps, [8.0])[0] * 1.05


def test_unsampled_gaussians_add_up_to_a_gaussian():
    steps = (Step("gaussian", 3.0, count=2), Step("gaussian", 4.0), Step("gaussian", 4.0, 0.5))
    merged = merge_gaussians(steps)
    assert merged == (Step("gaussian", 4.0, 0.5), Step("gaussian", pytest.approx((2 / 9 + 1 / 16) ** -0.5)))
