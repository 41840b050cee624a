"""The paper's arithmetic, digit by digit, and where it is false."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError
from noiseproof.methods.losses import claims
from noiseproof.privacy import renyi
from noiseproof.privacy.events import Step


@pytest.mark.parametrize(
    ("bound", "batch", "expected"),
    [(20, 64, 0.3125), (23, 128, 0.1797), (28, 128, 0.2188), (25, 64, 0.3906)],
)
def test_table_two_sensitivities(bound, batch, expected):
    assert claims.sensitivity(bound, batch) == pytest.approx(expected, abs=5e-5)


def test_the_printed_sensitivity_of_mnist_at_batch_64_is_that_of_batch_128():
    assert claims.sensitivity(25, 128) == pytest.approx(0.1953, abs=5e-5)


def test_theorems_one_to_four_and_formula_23():
    renyi_epsilon = claims.renyi(0.01, 2.0, 0.5, 2.0)
    assert renyi_epsilon == pytest.approx(0.01 * 4 * 0.25 / (2 * 4))
    per_iteration = claims.generator(renyi_epsilon, 5, 1e-5)
    assert per_iteration == pytest.approx(4 * renyi_epsilon * math.sqrt(10 * math.log(1e5)))
    assert claims.total(per_iteration, 1000) == pytest.approx(1000 * per_iteration)
    assert claims.moments(0.01, 5, 1e-5, 2.0) == pytest.approx(0.01 * math.sqrt(5 * math.log(1e5)))


def test_one_formula_falls_with_the_square_of_the_noise_and_the_other_with_the_noise():
    assert claims.renyi(0.1, 2, 1, 4) / claims.renyi(0.1, 2, 1, 2) == pytest.approx(1 / 4)
    assert claims.moments(0.1, 5, 1e-5, 4) / claims.moments(0.1, 5, 1e-5, 2) == pytest.approx(1 / 2)


def test_step_d_is_false_at_sigma_005_and_order_8():
    # MNIST at batch 128: the theorem gives .187 where the truth is 69.5.
    rate, order, sensitivity, sigma = 128 / 60_000, 8.0, claims.sensitivity(28, 128), 0.05
    assert claims.renyi(rate, order, sensitivity, sigma) == pytest.approx(0.187, abs=5e-4)
    truth = float(renyi.curve([Step("gaussian", sigma / sensitivity, rate)], [order])[0])
    assert truth == pytest.approx(69.5, abs=0.05)


@given(st.floats(0.05, 50), st.floats(1e-4, 1.0), st.floats(1.1, 32.0), st.floats(0.01, 1.0))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_the_proofs_last_step_always_goes_the_wrong_way(sigma, rate, order, sensitivity):
    exponent = sensitivity**2 * order / (2 * sigma**2)
    if exponent < 600:
        before = claims.renyi_before_last_step(rate, order, sensitivity, sigma)
        assert claims.renyi(rate, order, sensitivity, sigma) <= before * (1 + 1e-9)


@given(st.floats(0.01, 100), st.integers(1, 20), st.integers(1, 5000))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_calibration_inverts_theorem_four(epsilon, steps, iterations):
    terms = {"rate": 0.01, "order": 2.0, "sensitivity": 0.3}
    sigma = claims.calibrated(epsilon, 1e-5, steps=steps, iterations=iterations, **terms)
    per_iteration = claims.iteration(0.01, 2.0, 0.3, sigma, steps, 1e-5)
    assert claims.total(per_iteration, iterations) == pytest.approx(epsilon)


def test_no_noise_has_no_finite_claim_and_an_order_must_exceed_one():
    assert claims.renyi(0.1, 2, 1, 0) == math.inf == claims.moments(0.1, 5, 1e-5, 0)
    with pytest.raises(SettingError, match="order"):
        claims.renyi(0.1, 1.0, 1, 1)
