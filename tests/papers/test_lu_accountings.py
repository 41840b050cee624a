"""The paper's four accountings of DP-SGD: their formulas, their order, and what holds for the same noise."""

from __future__ import annotations

import math

import pytest

from noiseproof.errors import SettingError
from noiseproof.privacy import accountants, gaussian_dp
from noiseproof.privacy.events import GaussianDpEvent, SelfComposedDpEvent
from papers.lu.accountings import NAMES, accounting, advanced_sigma, naive_sigma, zcdp_sigma

LOCATION = {"records": 1200, "batch_size": 100, "epochs": 100}
DELTA = 1 / 12_000


def test_the_formulas_are_the_note_s():
    e, d, t = 2.0, 1e-5, 100
    assert naive_sigma(e, d, t) == pytest.approx(t * math.sqrt(2 * math.log(1.25 * t / d)) / e)
    root = math.sqrt(math.log(2 / d) + 2 * e) + math.sqrt(math.log(2 / d))
    assert advanced_sigma(e, d, t) == pytest.approx(math.sqrt(t * math.log(2.5 * t / d)) * root / e)
    root = math.sqrt(math.log(1 / d) + e) + math.sqrt(math.log(1 / d))
    assert zcdp_sigma(e, d, t) == pytest.approx(math.sqrt(t / 2) * root / e)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_zcdp_s_formula_is_what_the_accountant_of_that_name_gives_by_the_classical_conversion(epsilon):
    sigma = zcdp_sigma(epsilon, DELTA, 100)
    rho = 100 / (2 * sigma**2)
    assert rho + 2 * math.sqrt(rho * math.log(1 / DELTA)) == pytest.approx(epsilon)
    # Ours converts more tightly, and so never gives more.
    event = SelfComposedDpEvent(GaussianDpEvent(sigma), 100)
    assert accountants.epsilon(event, DELTA, accountant="zcdp").epsilon <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
def test_each_accounting_is_tighter_than_the_one_before(epsilon):
    found = {name: accounting(name, epsilon, **LOCATION) for name in NAMES}
    sigmas = [found[name].sigma for name in NAMES]
    assert sigmas == sorted(sigmas, reverse=True)
    for one in found.values():
        assert one.delta == pytest.approx(DELTA)
        assert one.partition_epsilon == pytest.approx(gaussian_dp.epsilon_of(10 / one.sigma, DELTA))


@pytest.mark.parametrize("name", ["naive", "advanced", "zcdp"])
def test_counting_epochs_holds_for_batches_that_partition_the_records(name):
    # Where an epoch is one Gaussian mechanism, the paper's noise is enough for a usual epsilon.
    assert accounting(name, 1.0, **LOCATION).partition_epsilon <= 1.0


def test_counting_steps_takes_more_noise_than_counting_epochs():
    for name in ("naive", "advanced", "zcdp"):
        one = accounting(name, 1.0, **LOCATION)
        assert one.step_sigma > 3 * one.sigma
    renyi = accounting("rdp", 1.0, **LOCATION)
    assert renyi.step_sigma == renyi.sigma
    assert renyi.poisson_epsilon == pytest.approx(1.0, rel=1e-2)
    # The other way round RDP's noise, which relies on sampling, is far too little for an epoch counted as one release.
    assert renyi.partition_epsilon > 1.0


@pytest.mark.parametrize(
    ("name", "settings"),
    [("pld", LOCATION), ("naive", {**LOCATION, "batch_size": 1201}), ("naive", {**LOCATION, "epochs": 0})],
)
def test_impossible_settings_are_refused(name, settings):
    with pytest.raises(SettingError):
        accounting(name, 1.0, **settings)
