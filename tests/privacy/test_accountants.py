from __future__ import annotations

import copy
import math

import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import accountants, gaussian_dp
from noiseproof.privacy.accountants import Spent
from noiseproof.privacy.budget import ACCOUNTANTS
from noiseproof.privacy.events import (
    ComposedDpEvent,
    EventLog,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
    sampled_gaussian,
)
from noiseproof.privacy.pld import epsilon_of
from noiseproof.privacy.steps import Step
from tests.privacy.oracle import theirs

NEIGHBOURS = ["add-or-remove", "replace-one"]
ABADI = sampled_gaussian(0.01, 4.0, 10_000)


def epsilon(event, delta=1e-5, **settings):
    return accountants.epsilon(event, delta, **settings).epsilon


def test_the_setting_of_abadi_et_al():
    spent = {name: epsilon(ABADI, accountant=name) for name in ACCOUNTANTS}
    assert spent["pld"] == pytest.approx(PLDAccountant().compose(theirs(ABADI)).get_epsilon(1e-5), rel=5e-4)
    assert spent["rdp"] == pytest.approx(RdpAccountant().compose(theirs(ABADI)).get_epsilon(1e-5), rel=5e-4)
    # They converted by the first, looser formula.
    orders = RdpAccountant().orders
    divergences = RdpAccountant().compose(theirs(ABADI)).rdp
    assert (divergences + math.log(1e5) / (orders - 1)).min() == pytest.approx(1.26, abs=0.01)
    assert spent["pld"] < spent["rdp"] < 1.26 < spent["advanced"] < spent["naive"]
    assert spent["rdp"] < spent["zcdp"]


def test_every_bound_is_above_the_tightest_one():
    for neighbours in NEIGHBOURS:
        for event in (
            ABADI,
            SelfComposedDpEvent(GaussianDpEvent(9.0), 30),
            SelfComposedDpEvent(LaplaceDpEvent(20), 40),
        ):
            spent = {
                name: accountants.epsilon(event, 1e-6, accountant=name, neighbours=neighbours) for name in ACCOUNTANTS
            }
            tightest = spent["pld"].epsilon
            assert all(s.epsilon >= tightest * (1 - 1e-3) for s in spent.values() if s.bound)


def test_the_central_limit_is_labelled_and_proves_nothing():
    spent = accountants.epsilon(ABADI, 1e-5, accountant="gdp")
    assert not spent.bound
    assert "not a bound" in spent.note
    mu = 0.01 * math.sqrt(10_000 * math.expm1(1 / 16))
    assert spent.epsilon == pytest.approx(gaussian_dp.epsilon_of(mu, 1e-5))
    with pytest.raises(UnsupportedError, match="proves nothing"):
        spent.proof()
    assert not accountants.delta(ABADI, 1.0, accountant="gdp").bound


def test_gdp_is_exact_for_unsampled_gaussians_and_proven_for_all_that_is_not_sampled():
    event = SelfComposedDpEvent(GaussianDpEvent(10.0), 25)
    spent = accountants.epsilon(event, 1e-6, accountant="gdp")
    assert spent.bound
    assert spent.epsilon == epsilon(GaussianDpEvent(2.0), 1e-6)
    assert accountants.epsilon(ComposedDpEvent([event, PureDpEvent(0.1)]), 1e-6, accountant="gdp").bound


def test_zcdp_counts_sampled_steps_in_full_and_says_so():
    spent = accountants.epsilon(ABADI, 1e-5, accountant="zcdp")
    full = accountants.epsilon(SelfComposedDpEvent(GaussianDpEvent(4.0), 10_000), 1e-5, accountant="zcdp")
    assert spent.bound
    assert spent.epsilon == full.epsilon
    assert "full rate" in spent.note
    assert full.note is None


@pytest.mark.parametrize("accountant", ["pld", "rdp", "zcdp", "gdp"])
@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_k_gaussians_are_one_of_a_kth_of_the_variance(accountant, neighbours):
    many = epsilon(SelfComposedDpEvent(GaussianDpEvent(6.0), 9), accountant=accountant, neighbours=neighbours)
    assert many == pytest.approx(epsilon(GaussianDpEvent(2.0), accountant=accountant, neighbours=neighbours), rel=1e-3)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_replace_one_is_twice_the_sensitivity(accountant):
    for one, two in (
        (GaussianDpEvent(6.0), GaussianDpEvent(3.0)),
        (LaplaceDpEvent(6.0), LaplaceDpEvent(3.0)),
        (PureDpEvent(0.2), PureDpEvent(0.4)),
    ):
        exchanged = epsilon(one, accountant=accountant, neighbours="replace-one")
        assert exchanged == pytest.approx(epsilon(two, accountant=accountant))
    assert epsilon(PureDpEvent(0.2, "replace-one"), accountant=accountant, neighbours="replace-one") == pytest.approx(
        epsilon(PureDpEvent(0.2), accountant=accountant)
    )


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_what_is_known_of_exchanges_only_is_refused_under_add_or_remove(accountant):
    with pytest.raises(UnsupportedError, match=r"PureDpEvent.*add-or-remove"):
        epsilon(PureDpEvent(0.2, "replace-one"), accountant=accountant)


def test_replace_one_lies_between_add_or_remove_and_its_group_of_two():
    one = epsilon(sampled_gaussian(0.05, 2.0, 100))
    exchanged = epsilon(sampled_gaussian(0.05, 2.0, 100), neighbours="replace-one")
    assert one < exchanged < epsilon(sampled_gaussian(0.05, 1.0, 100))


settings_of_steps = {
    "rate": st.floats(1e-3, 0.5),
    "sigma": st.floats(0.6, 20),
    "steps": st.integers(1, 2000),
    "exponent": st.floats(-9, -3),
    "neighbours": st.sampled_from(NEIGHBOURS),
}


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@settings(deadline=None, derandomize=True, max_examples=8)
@given(more=st.floats(1.05, 2), **settings_of_steps)
def test_epsilon_falls_with_noise_and_delta_and_rises_with_steps_and_rate(
    accountant, more, rate, sigma, steps, exponent, neighbours
):
    delta = 10**exponent

    def of(rate=rate, sigma=sigma, steps=steps, delta=delta):
        return epsilon(sampled_gaussian(rate, sigma, steps), delta, accountant=accountant, neighbours=neighbours)

    # Two grids may round a loss distribution differently, by a part in a thousand at most.
    here = of() * (1 + 1e-3) + 1e-9
    assert of(sigma=sigma * more) <= here
    assert of(delta=delta * more) <= here
    if steps > 1:
        assert of(steps=steps // 2) <= here
    assert of(rate=rate / more) <= here


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@settings(deadline=None, derandomize=True, max_examples=4)
@given(**settings_of_steps)
def test_delta_inverts_epsilon(accountant, rate, sigma, steps, exponent, neighbours):
    event = sampled_gaussian(rate, sigma, steps)
    spent = accountants.epsilon(event, 10**exponent, accountant=accountant, neighbours=neighbours)
    if spent.epsilon > 1e-3:
        back = accountants.delta(event, spent.epsilon, accountant=accountant, neighbours=neighbours)
        assert back.delta == pytest.approx(spent.delta, rel=0.05)
        assert back.epsilon == spent.epsilon


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_nothing_costs_nothing_and_what_has_no_noise_costs_everything(accountant):
    assert accountants.epsilon(NoOpDpEvent(), 0.0, accountant=accountant).epsilon == 0
    assert accountants.delta(EventLog().event, 0.0, accountant=accountant).delta == 0
    for bare in (NonPrivateDpEvent(), GaussianDpEvent(0.0), sampled_gaussian(0.01, 0.0, 5)):
        spent = accountants.epsilon(ComposedDpEvent([GaussianDpEvent(1.0), bare]), 1e-5, accountant=accountant)
        assert spent.epsilon == math.inf
        assert accountants.delta(bare, 3.0, accountant=accountant).delta == 1
        with pytest.raises(UnsupportedError, match="infinite"):
            spent.proof()


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_at_delta_0_largest_losses_add_up(accountant):
    event = ComposedDpEvent(
        [SelfComposedDpEvent(LaplaceDpEvent(10.0), 3), PoissonSampledDpEvent(0.5, PureDpEvent(0.2))]
    )
    assert epsilon(event, 0.0, accountant=accountant) == pytest.approx(0.3 + math.log1p(0.5 * math.expm1(0.2)))
    assert epsilon(GaussianDpEvent(1e6), 0.0, accountant=accountant) == math.inf


def test_a_pure_event_costs_no_more_than_its_epsilon_however_it_is_accounted_for():
    assert epsilon(PureDpEvent(0.5), 1e-9) == pytest.approx(0.5, rel=1e-3)
    assert epsilon(PureDpEvent(0.5), 1e-9, accountant="rdp") <= 0.5
    once = epsilon(SelfComposedDpEvent(PureDpEvent(0.05, bounded_range=True), 400), 1e-6, accountant="rdp")
    assert once < epsilon(SelfComposedDpEvent(PureDpEvent(0.05), 400), 1e-6, accountant="rdp")


def test_a_spend_becomes_a_proof():
    spent = accountants.epsilon(ABADI, 1e-5)
    proof = spent.proof("Poisson sampling")
    assert (proof.epsilon, proof.delta, proof.accountant) == (spent.epsilon, 1e-5, "pld")
    assert proof.assumptions == ("Poisson sampling",)


def test_reading_a_number_changes_no_state():
    log = EventLog()
    log.append(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 10)
    before = copy.deepcopy(log.event)
    first = [accountants.epsilon(log.event, 1e-5, accountant=name) for name in ACCOUNTANTS]
    again = [accountants.epsilon(log.event, 1e-5, accountant=name) for name in reversed(ACCOUNTANTS)]
    assert first == again[::-1]
    assert log.event == before
    assert len(log) == 10


def test_a_schedule_of_a_thousand_noise_levels_is_accounted_for():
    event = ComposedDpEvent([PoissonSampledDpEvent(0.01, GaussianDpEvent(1 + k / 500)) for k in range(1000)])
    tight, loose = accountants.epsilon(event, 1e-5), accountants.epsilon(event, 1e-5, accountant="rdp")
    assert tight.bound
    assert 0 < tight.epsilon < loose.epsilon
    assert tight.epsilon > epsilon(sampled_gaussian(0.01, 3.0, 1000))


@pytest.mark.parametrize(
    ("by_pld", "left", "by_renyi", "value", "accountant", "note"),
    [
        (2.0, 0.5, 1.5, 1.5, "rdp", "too coarse"),
        (2.0, 0.5, 3.0, 2.0, "pld", "25%"),
        (2.0, 1e-6, 3.0, 2.0, "pld", None),
        (0.0, 0.5, 3.0, 0.0, "pld", None),
    ],
)
def test_where_the_grid_is_too_coarse_the_tighter_bound_is_taken_and_said(
    by_pld, left, by_renyi, value, accountant, note, monkeypatch
):
    monkeypatch.setattr(accountants.pld, "epsilon_of", lambda *_: (by_pld, left))
    monkeypatch.setattr(accountants.renyi, "epsilon_of", lambda *_: (by_renyi, 2.0))
    found = accountants._account.__wrapped__((Step("gaussian", 1.0, 0.1),), 1e-5, True, "pld")
    assert found[:3] == (value, accountant, True)
    assert found[3] is None if note is None else note in found[3]


def test_a_sample_that_hardly_ever_holds_a_record_needs_no_epsilon():
    # Eight times one in two million is more than delta, but what is then seen hardly tells.
    assert epsilon(sampled_gaussian(5e-7, 7.0, 8), 4e-7, neighbours="replace-one") == 0


@pytest.mark.parametrize("delta", [-0.1, 1.0, math.nan])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(SettingError, match="delta"):
        accountants.epsilon(ABADI, delta)


@pytest.mark.parametrize("bad", [-0.1, math.inf, math.nan])
def test_impossible_epsilons_are_refused(bad):
    with pytest.raises(SettingError, match="epsilon"):
        accountants.delta(ABADI, bad)


def test_unknown_accountants_and_neighbours_are_refused():
    with pytest.raises(SettingError, match="pld, rdp, zcdp, gdp, advanced, naive"):
        accountants.epsilon(ABADI, 1e-5, accountant="moments")
    with pytest.raises(SettingError, match="neighbours"):
        accountants.epsilon(ABADI, 1e-5, neighbours="swap")


def test_a_spend_is_a_plain_value():
    assert Spent(1.0, 1e-5, "pld", "add-or-remove") == Spent(1.0, 1e-5, "pld", "add-or-remove")


def test_naive_composition_is_the_sum_at_equal_parts_of_delta():
    once = gaussian_dp.epsilon_of(1 / 4, 1e-5 / 100)
    assert accountants.naive([Step("gaussian", 4.0, count=100)], 1e-5) == pytest.approx(100 * once)
    sampled = math.log1p(0.01 * math.expm1(gaussian_dp.epsilon_of(1 / 4, 1e-5 / 100 / 0.01)))
    assert accountants.naive([Step("gaussian", 4.0, 0.01, 100)], 1e-5) == pytest.approx(100 * sampled)
    both = [Step("gaussian", 4.0, count=100), Step("pure", 0.1, count=7)]
    assert accountants.naive(both, 1e-5) == pytest.approx(100 * once + 0.7)


def test_advanced_composition_has_the_theorems_value_for_pure_steps():
    epsilon, count, delta = 0.1, 500, 1e-6
    drift = count * epsilon * math.expm1(epsilon) / (math.exp(epsilon) + 1)
    odds = min(1 / delta, math.e + math.sqrt(count * epsilon**2) / delta)
    theorem = drift + math.sqrt(2 * count * epsilon**2 * math.log(odds))
    # Nothing of delta is needed by the steps, and the split comes to within a thousandth of giving it all away.
    assert accountants.advanced([Step("pure", epsilon, count=count)], delta) == pytest.approx(theorem, rel=1e-4)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    st.floats(0.8, 20),
    st.sampled_from([0.01, 0.3, 1.0]),
    st.integers(1, 300),
    st.sampled_from([1e-3, 1e-6]),
    st.booleans(),
)
def test_classical_composition_is_never_below_the_exact_one(sigma, rate, count, delta, exchange):
    steps = [Step("gaussian", sigma, rate, count, exchange=exchange and rate < 1)]
    naive, advanced = accountants.naive(steps, delta), accountants.advanced(steps, delta)
    assert advanced <= naive
    exact = epsilon_of(steps, delta, max(advanced, 1e-3))[0]
    assert exact <= advanced * (1 + 1e-3) + 1e-6


def test_pure_losses_add_up_and_gaussians_have_no_largest_loss():
    assert accountants.pure_epsilon([Step("pure", 0.1, count=3), Step("laplace", 10.0)]) == pytest.approx(0.4)
    assert accountants.pure_epsilon([Step("pure", 0.1), Step("gaussian", 9.0)]) == math.inf
