from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import BudgetError, SettingError, UnsupportedError
from noiseproof.privacy import Budget, Filter, accountants, gaussian_dp, renyi
from noiseproof.privacy.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
    sampled_gaussian,
)
from noiseproof.privacy.steps import read

pure_events = st.one_of(
    st.builds(PureDpEvent, st.floats(0.001, 1.5), bounded_range=st.booleans()),
    st.builds(LaplaceDpEvent, st.floats(0.5, 50)),
    st.builds(PoissonSampledDpEvent, st.floats(0.01, 1), st.builds(PureDpEvent, st.floats(0.01, 1.5))),
)
any_events = st.one_of(
    pure_events,
    st.builds(GaussianDpEvent, st.floats(0.5, 50)),
    st.builds(PoissonSampledDpEvent, st.floats(0.001, 1), st.builds(GaussianDpEvent, st.floats(0.5, 10))),
    st.builds(SelfComposedDpEvent, st.builds(GaussianDpEvent, st.floats(5, 50)), st.integers(1, 5)),
)
budgets = st.builds(
    Budget, st.floats(0.1, 10), st.sampled_from([1e-3, 1e-6]), st.sampled_from(["add-or-remove", "replace-one"])
)


def within(budget, accountant, order, events):
    """Whether the events as a whole are within what the filter's theorem allows, by this test's own arithmetic."""
    steps = read(ComposedDpEvent(events), budget.neighbours)
    slack = 1 + 1e-9
    if accountant == "rdp":
        at = np.array([order])
        return renyi.epsilon_at(at, renyi.curve(steps, [order]), budget.delta)[0] <= budget.epsilon * slack
    if accountant == "zcdp":
        return renyi.epsilon_of_rho(renyi.rho_of(steps), budget.delta) <= budget.epsilon * slack
    if accountant == "gdp":
        squares = 0.0
        for step in steps:
            mu = (2 if step.exchange else 1) / step.scale
            squares += step.count * (mu if step.law == "gaussian" else gaussian_dp.mu_of_pure(step.pure_epsilon)) ** 2
        return gaussian_dp.epsilon_of(math.sqrt(squares), budget.delta) <= budget.epsilon * slack
    return sum(step.count * step.pure_epsilon for step in steps) <= budget.epsilon * slack


@pytest.mark.parametrize("accountant", ["rdp", "zcdp", "gdp", "pure"])
@settings(deadline=None, derandomize=True, max_examples=25)
@given(budget=budgets, data=st.data())
def test_no_sequence_however_chosen_overspends(accountant, budget, data):
    guard = Filter(budget, accountant)
    paid = []
    for event in data.draw(st.lists(pure_events if accountant == "pure" else any_events, max_size=15)):
        # Adaptive: what is tried depends on what was refused before.
        before = (guard.spent, guard.left)
        if guard.fits(event):
            assert (guard.spent, guard.left) == before
            guard.spend(event)
            paid.append(event)
        else:
            with pytest.raises(BudgetError):
                guard.spend(event)
            assert (guard.spent, guard.left) == before
            guard.fits(NoOpDpEvent())
    assert within(budget, accountant, guard.order, paid)
    assert 0 <= guard.left <= 1
    assert guard.spent.epsilon <= budget.epsilon


@pytest.mark.parametrize("accountant", ["rdp", "zcdp", "gdp"])
def test_a_filter_buys_nearly_what_a_plan_would(accountant):
    budget = Budget(2.0, 1e-6)
    guard = Filter(budget, accountant)
    step, count = GaussianDpEvent(20.0), 0
    while guard.fits(step):
        guard.spend(step)
        count += 1
    assert accountants.epsilon(SelfComposedDpEvent(step, count), 1e-6).epsilon <= 2
    assert accountants.epsilon(SelfComposedDpEvent(step, int(count * 1.35)), 1e-6).epsilon > 2
    assert guard.spent.epsilon == pytest.approx(2, rel=0.05)
    assert guard.left < 0.05


def test_the_gdp_filter_is_exact_for_gaussians():
    budget = Budget(2.0, 1e-6)
    guard = Filter(budget, "gdp")
    sigma = 10 / gaussian_dp.mu_within(2.0, 1e-6)
    for _ in range(100):
        guard.spend(GaussianDpEvent(sigma))
    assert guard.spent.epsilon == pytest.approx(2)
    assert guard.left == pytest.approx(0, abs=1e-9)
    assert not guard.fits(GaussianDpEvent(1000 * sigma))


def test_an_order_chosen_for_what_is_planned_buys_more_of_it():
    budget = Budget(3.0, 1e-5)
    planned = sampled_gaussian(0.01, 0.8, 20)
    tuned, plain = Filter(budget, planned=planned), Filter(budget)
    assert tuned.order != plain.order

    def bought(guard):
        count = 0
        while guard.fits(planned):
            guard.spend(planned)
            count += 1
        return count

    assert bought(tuned) > bought(plain)


def test_ten_tenths_fit_into_one_and_no_eleventh():
    guard = Filter(Budget(1.0, 0.0), "pure")
    for _ in range(10):
        guard.spend(PureDpEvent(0.1))
    assert guard.spent.epsilon == pytest.approx(1)
    assert guard.spent.delta == 0
    with pytest.raises(BudgetError, match="does not fit"):
        guard.spend(PureDpEvent(1e-6))
    assert guard.spend(NoOpDpEvent()).epsilon == pytest.approx(1)


@pytest.mark.parametrize("accountant", ["rdp", "zcdp", "gdp"])
def test_a_person_of_several_sampled_records_pays_for_all_of_them(accountant):
    def prices(event):
        guard = Filter(Budget(100.0, 1e-5), accountant)
        guard.spend(event)
        return 1 - guard.left

    person = sampled_gaussian(0.05, 2.0, group_size=5)
    # All of them at once, as often as one of them comes: sampling helps only where the accountant knows it.
    assert prices(person) == pytest.approx(prices(sampled_gaussian(1 - 0.95**5, 2.0 / 5)))
    assert prices(person) > 5 * prices(sampled_gaussian(0.05, 2.0))


def test_under_replace_one_everything_costs_twice():
    guard = Filter(Budget(1.0, 0.0, "replace-one"), "pure")
    guard.spend(PureDpEvent(0.5))
    assert guard.left == pytest.approx(0)


@pytest.mark.parametrize("accountant", ["rdp", "zcdp", "gdp", "pure"])
def test_what_has_no_noise_never_fits(accountant):
    guard = Filter(Budget(100.0, 1e-5), accountant)
    assert not guard.fits(NonPrivateDpEvent())
    with pytest.raises(BudgetError):
        guard.spend(GaussianDpEvent(0.0))
    assert guard.left == 1


def test_gaussian_noise_has_no_place_in_a_pure_filter():
    assert not Filter(Budget(100.0, 0.1), "pure").fits(GaussianDpEvent(1e9))


@pytest.mark.parametrize("accountant", ["rdp", "pure"])
def test_threads_cannot_spend_the_same_budget_twice(accountant):
    budget = Budget(1.0, 1e-5)
    guard = Filter(budget, accountant)
    event = PureDpEvent(0.01)
    start = threading.Barrier(8)
    paid = []

    def spender():
        start.wait()
        for _ in range(100):
            try:
                guard.spend(event)
            except BudgetError:
                continue
            paid.append(event)

    threads = [threading.Thread(target=spender) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paid) < 800
    assert within(budget, accountant, guard.order, paid)
    assert not within(budget, accountant, guard.order, [*paid, event, event])


@pytest.mark.parametrize("accountant", ["pld", "advanced", "naive", "moments"])
def test_where_no_filter_is_known_none_is_made(accountant):
    with pytest.raises(UnsupportedError, match="rdp, zcdp, gdp, pure"):
        Filter(Budget(1.0), accountant)


def test_filters_with_a_delta_need_one():
    with pytest.raises(SettingError, match="delta"):
        Filter(Budget(1.0, 0.0), "rdp")


@pytest.mark.parametrize("planned", [NoOpDpEvent(), NonPrivateDpEvent()])
def test_an_order_is_not_chosen_by_a_plan_without_noise(planned):
    with pytest.raises(SettingError, match="planned"):
        Filter(Budget(1.0), planned=planned)


@pytest.mark.parametrize("accountant", ["rdp", "zcdp", "gdp", "pure"])
def test_a_filter_proves_the_budget_it_was_given_however_little_of_it_was_spent(accountant):
    budget = Budget(2.0, 1e-5)
    filter_ = Filter(budget, accountant)
    before = filter_.proof("an assumption")
    filter_.spend(PureDpEvent(0.1))
    assert filter_.spent.epsilon < 1.9
    assert filter_.proof("an assumption") == before
    assert (before.epsilon, before.delta) == (2.0, 0.0 if accountant == "pure" else 1e-5)
    assert before.accountant == f"{accountant} filter"
    assert before.assumptions == ("an assumption",)
