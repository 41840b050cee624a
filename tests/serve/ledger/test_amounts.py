"""Amounts add up exactly, costs round up, capacities round down, and events get the measure that composes."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import accountants
from noiseproof.privacy.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
)
from noiseproof.serve.ledger.amounts import ORDERS, SCALE, Amount

VALUES = st.floats(min_value=0, max_value=1e4, allow_nan=False)


def test_a_thousand_thousandths_make_one_and_not_one_more():
    cost, one = Amount.cost("pure", 0.001), Amount.capacity("pure", 1.0)
    assert (cost * 1000).fits(one)
    assert not (cost * 1001).fits(one)
    assert cost.times_within(one) == 1000


@settings(deadline=None, derandomize=True, max_examples=200)
@given(VALUES, st.integers(1, 900))
def test_costs_are_never_below_and_capacities_never_above_what_they_stand_for(value, count):
    # The decimal that a float is written as is within half of its last place.
    exact, slack = Fraction(value) * count, Fraction(math.ulp(value)) * count
    assert Fraction((Amount.cost("gdp", value) * count).units[0], SCALE) >= exact - slack
    assert Fraction((Amount.capacity("gdp", value) * count).units[0], SCALE) <= exact + slack


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.randoms(use_true_random=False))
def test_sums_do_not_depend_on_their_order(values, random):
    amounts = [Amount.cost("zcdp", value) for value in values]
    shuffled = random.sample(amounts, len(amounts))
    zero = amounts[0] * 0
    assert sum(amounts, start=zero) == sum(shuffled, start=zero)


def test_renyi_spends_must_fit_at_every_order():
    capacity = Amount("rdp", (10, 10), (2.0, 4.0))
    assert Amount("rdp", (10, 10), (2.0, 4.0)).fits(capacity)
    assert not Amount("rdp", (1, 11), (2.0, 4.0)).fits(capacity)
    assert Amount("rdp", (1, 3), (2.0, 4.0)).times_within(capacity) == 3


def test_what_costs_nothing_can_be_had_any_number_of_times():
    assert Amount.cost("pure", 0).times_within(Amount.capacity("pure", 0)) is None


@pytest.mark.parametrize("value", [-1e-9, math.nan, math.inf])
def test_what_is_no_amount_is_refused(value):
    with pytest.raises(SettingError):
        Amount.cost("pure", value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Amount("renyi", (1,)),
        lambda: Amount("rdp", (1,)),
        lambda: Amount("pure", (1, 2)),
        lambda: Amount("pure", (1,), (2.0,)),
        lambda: Amount("pure", (1,)) + Amount("gdp", (1,)),
        lambda: Amount("rdp", (1,), (2.0,)).fits(Amount("rdp", (1,), (3.0,))),
        lambda: Amount("pure", (1,)) - Amount("pure", (2,)),
    ],
)
def test_amounts_that_do_not_go_together_are_refused(make):
    with pytest.raises(SettingError):
        make()


@pytest.mark.parametrize(
    ("event", "measure", "value"),
    [
        (GaussianDpEvent(2.0), "gdp", 0.25),
        (SelfComposedDpEvent(GaussianDpEvent(2.0), 8), "gdp", 2.0),
        (LaplaceDpEvent(4.0), "pure", 0.25),
        (PureDpEvent(0.3), "pure", 0.3),
        (ComposedDpEvent([PureDpEvent(0.5), LaplaceDpEvent(2.0)]), "pure", 1.0),
        (ComposedDpEvent([GaussianDpEvent(1.0), PureDpEvent(1.0)]), "zcdp", 0.5 + math.tanh(0.5)),
        (NoOpDpEvent(), "pure", 0.0),
    ],
)
def test_an_event_is_charged_in_what_composes(event, measure, value):
    assert Amount.of_event(event, "add-or-remove") == Amount.cost(measure, value)


@pytest.mark.parametrize(
    ("event", "answers", "measure"),
    [
        (PureDpEvent(1.0), 1, "pure"),
        (PureDpEvent(1.0), 3, "pure"),
        (LaplaceDpEvent(10.0), 1000, "rdp"),
        (PureDpEvent(0.2, bounded_range=True), 1000, "zcdp"),
        (GaussianDpEvent(30.0), 1000, "gdp"),
    ],
)
def test_many_answers_are_charged_in_the_measure_in_which_they_cost_least(event, answers, measure):
    amount = Amount.of_event(event, "add-or-remove", answers=answers, delta=1e-5)
    assert amount.measure == measure
    best = accountants.epsilon(SelfComposedDpEvent(event, answers), 1e-5, accountant="rdp").epsilon
    assert (amount * answers).epsilon(1e-5) <= best * (1 + 2e-3)
    # While few are spent they cost little: no order is so small that its delta alone costs much.
    assert (amount * max(1, answers // 100)).epsilon(1e-5) <= max(0.15, 1 / answers) * best * (1 + 2e-3)


def test_exchanging_a_record_costs_what_removing_and_adding_do():
    assert Amount.of_event(GaussianDpEvent(2.0), "replace-one") == Amount.cost("gdp", 1.0)
    assert Amount.of_event(LaplaceDpEvent(4.0), "replace-one") == Amount.cost("pure", 0.5)


def test_what_protects_nothing_has_no_price():
    with pytest.raises(UnsupportedError):
        Amount.of_event(NonPrivateDpEvent(), "add-or-remove")


@pytest.mark.parametrize(
    ("event", "accountant", "tolerance"),
    [
        (GaussianDpEvent(3.0), "gdp", 1e-6),
        (PureDpEvent(0.05), "naive", 1e-6),
        (ComposedDpEvent([GaussianDpEvent(5.0), PureDpEvent(0.1)]), "zcdp", 1e-6),
        (PoissonSampledDpEvent(0.05, GaussianDpEvent(2.0)), "rdp", 0.03),  # a few orders instead of all
    ],
)
def test_many_answers_together_have_the_epsilon_that_the_accountant_gives_them(event, accountant, tolerance):
    delta = 0.0 if accountant == "naive" else 1e-5
    composed = accountants.epsilon(SelfComposedDpEvent(event, 200), delta, accountant=accountant).epsilon
    total = (Amount.of_event(event, "add-or-remove") * 200).epsilon(delta)
    assert composed * (1 - 1e-9) <= total <= composed * (1 + tolerance)


def test_no_delta_no_epsilon_for_gaussian_noise():
    assert Amount.cost("gdp", 0.1).epsilon(0) == math.inf
    assert Amount.cost("zcdp", 0).epsilon(0) == 0


def test_amounts_are_told_in_exact_decimals():
    assert Amount("pure", (1_500_000_000_001,)).to_json() == {"measure": "pure", "amounts": ["1.500000000001"]}
    assert Amount("pure", (0,)).to_json()["amounts"] == ["0"]
    assert Amount("rdp", (SCALE,) * len(ORDERS), ORDERS).to_json()["orders"] == list(ORDERS)
