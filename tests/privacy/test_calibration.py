from __future__ import annotations

import math
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError
from noiseproof.privacy import accountants, calibration, gaussian_dp
from noiseproof.privacy.events import GaussianDpEvent, LaplaceDpEvent, SelfComposedDpEvent, sampled_gaussian

EPSILONS = [0.01, 0.1, 1.0, 10.0, 100.0]
HARD = [(0.01, 100_000), (0.001, 100_000), (0.5, 100_000), (1e-4, 1_000_000), (1.0, 100_000), (0.05, 1)]


def check(epsilon, delta, rate, steps, accountant="pld", neighbours="add-or-remove"):
    found = calibration.sigma(epsilon, delta, rate, steps, accountant=accountant, neighbours=neighbours)
    event = sampled_gaussian(rate, found.sigma, steps)
    spent = accountants.epsilon(event, delta, accountant=accountant, neighbours=neighbours)
    assert found.epsilon == spent.epsilon
    assert 0.99 * epsilon <= spent.epsilon <= epsilon
    return found


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.2, 50), (1.0, 10), (0.001, 10_000)])
def test_calibration_inverts_accounting_to_a_percent_and_never_exceeds_the_target(epsilon, rate, steps):
    check(epsilon, 1e-5, rate, steps)


@pytest.mark.parametrize("accountant", ["rdp", "zcdp", "advanced", "naive"])
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_every_bound_can_be_calibrated_to(accountant, neighbours):
    check(2.0, 1e-6, 0.05, 100, accountant, neighbours)


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 100.0])
def test_replace_one_takes_more_noise(epsilon):
    exchanged = check(epsilon, 1e-5, 0.05, 100, neighbours="replace-one")
    assert exchanged.sigma > check(epsilon, 1e-5, 0.05, 100).sigma


@pytest.mark.slow
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize(("rate", "steps"), HARD)
def test_hard_calibrations_invert_accounting_too(epsilon, rate, steps, neighbours):
    check(epsilon, 1e-5, rate, steps, neighbours=neighbours)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"), [(0.01, 0.01, 100_000), (1.0, 1e-4, 1_000_000), (100.0, 0.5, 10**5)]
)
def test_hard_calibrations_stay_within_two_gigabytes(epsilon, rate, steps):
    # In a process of its own, whose address space is limited: two gigabytes besides what imports take.
    code = (
        "import re, resource, scipy.fft, scipy.signal, dp_accounting\n"
        "from noiseproof.privacy import calibration\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        # Not ru_maxrss, which a new process inherits from the one that started it.
        "peak = int(re.search('VmHWM:[^0-9]*([0-9]+)', open('/proc/self/status').read())[1]) * 1024\n"
        "limit = used + 2 * 10**9 - peak\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "for neighbours in ('add-or-remove', 'replace-one'):\n"
        f"    found = calibration.sigma({epsilon}, 1e-5, {rate}, {steps}, neighbours=neighbours)\n"
        f"    assert 0.99 * {epsilon} <= found.epsilon <= {epsilon}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.floats(0.01, 100), st.floats(-10, -2), st.integers(1, 100_000), st.sampled_from(["add-or-remove", "replace-one"])
)
def test_without_sampling_the_noise_is_the_analytic_gaussians(epsilon, exponent, steps, neighbours):
    delta = 10**exponent
    found = calibration.sigma(epsilon, delta, 1.0, steps, neighbours=neighbours)
    times = 2 if neighbours == "replace-one" else 1
    assert found.sigma == pytest.approx(times * math.sqrt(steps) / gaussian_dp.mu_within(epsilon, delta), rel=1e-9)
    assert found.epsilon <= epsilon


def test_where_next_to_no_noise_is_enough_the_result_says_so():
    found = calibration.sigma(1.0, 1e-3, 1e-6, 10)
    assert found.epsilon <= 1
    assert "least" in found.note


def test_noise_never_rests_on_the_central_limit():
    with pytest.raises(SettingError, match="no bound"):
        calibration.sigma(1.0, 1e-5, 0.01, 100, accountant="gdp")
    with pytest.raises(SettingError, match="no bound"):
        calibration.steps(1.0, 1e-5, 0.01, 2.0, accountant="gdp")


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps", "word"),
    [
        (0.0, 1e-5, 0.1, 10, "epsilon"),
        (math.inf, 1e-5, 0.1, 10, "epsilon"),
        (1.0, 0.0, 0.1, 10, "delta 0"),
        (1.0, 1.0, 0.1, 10, "delta"),
        (1.0, 1e-5, 1.1, 10, "rate"),
        (1.0, 1e-5, 0.0, 10, "no noise to calibrate"),
        (1.0, 1e-5, 0.1, 0, "no noise to calibrate"),
        (1.0, 1e-5, 0.1, -3, "steps"),
        (1.0, 1e-5, 0.1, 2.5, "steps"),
    ],
)
def test_impossible_settings_are_refused(epsilon, delta, rate, steps, word):
    with pytest.raises(SettingError, match=word):
        calibration.sigma(epsilon, delta, rate, steps)


@pytest.mark.parametrize(("epsilon", "rate", "sigma"), [(1.0, 0.01, 2.0), (10.0, 0.1, 1.0), (0.5, 1.0, 30.0)])
def test_the_most_steps_fit_and_a_percent_more_do_not(epsilon, rate, sigma):
    count = calibration.steps(epsilon, 1e-5, rate, sigma)

    def spent(steps):
        return accountants.epsilon(sampled_gaussian(rate, sigma, steps), 1e-5).epsilon

    assert spent(count) <= epsilon
    assert spent(count + 1 + count // 100) > epsilon


def test_no_step_fits_where_one_is_too_many_and_any_number_where_none_looks():
    assert calibration.steps(0.1, 1e-5, 1.0, 1.0) == 0
    with pytest.raises(SettingError, match="any number"):
        calibration.steps(0.1, 1e-5, 0.0, 1.0)
    with pytest.raises(SettingError, match="delta 0"):
        calibration.steps(0.1, 0.0, 0.1, 1.0)


def test_other_mechanisms_are_calibrated_by_their_own_functions():
    def laplace(scale):
        return accountants.epsilon(SelfComposedDpEvent(LaplaceDpEvent(scale), 20), 1e-6).epsilon

    scale = calibration.calibrate(laplace, 1.5)
    assert 0.997 * 1.5 <= laplace(scale) <= 1.5

    def queries(mu):
        return accountants.epsilon(SelfComposedDpEvent(GaussianDpEvent(1 / mu), 1000), 1e-6).epsilon

    mu = calibration.calibrate(queries, 4.0, increasing=True, tolerance=1e-6)
    assert mu == pytest.approx(gaussian_dp.mu_within(4.0, 1e-6) / math.sqrt(1000), rel=1e-5)
    assert queries(mu) <= 4


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(-3, -0.1), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.booleans())
def test_power_laws_are_inverted_from_any_start(power, target, start, increasing):
    power = -power if increasing else power
    found = calibration.calibrate(
        lambda x: 3 * x**power, target, start=start, low=1e-60, high=1e60, increasing=increasing
    )
    assert 0.998 * target <= 3 * found**power <= target


def test_a_jump_over_the_target_ends_on_the_safe_side():
    found = calibration.calibrate(lambda x: 5.0 if x < 2 else 0.1, 1.0)
    assert found == pytest.approx(2, rel=1e-9)
    assert found >= 2
    assert calibration.calibrate(lambda x: math.inf if x < 2 else 0.0, 1.0) == pytest.approx(2, rel=1e-9)


def test_a_target_out_of_reach_is_refused_and_one_always_met_gives_the_least():
    with pytest.raises(SettingError, match="meets the target"):
        calibration.calibrate(lambda x: 5.0, 1.0)
    assert calibration.calibrate(lambda x: 0.5, 1.0, low=0.25) == 0.25
    with pytest.raises(SettingError, match="target"):
        calibration.calibrate(lambda x: x, 0.0)
