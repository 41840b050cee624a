from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.privacy import concentrated, gaussian_dp, renyi
from noiseproof.privacy.events import Step


def test_a_gaussians_rho_is_one_over_two_sigma_squared_sampled_or_not():
    assert concentrated.rho_of([Step("gaussian", 4.0, count=5)]) == pytest.approx(5 / 32)
    assert concentrated.rho_of([Step("gaussian", 4.0, 0.01)]) == pytest.approx(1 / 32)
    assert concentrated.rho_of([Step("gaussian", 4.0, 0.01, exchange=True)]) == pytest.approx(1 / 8)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(1e-3, 20), st.booleans())
def test_a_pure_loss_is_within_its_rho_at_every_order_and_tightly(epsilon, bounded_range):
    step = Step("pure", epsilon, bounded_range=bounded_range)
    rho = concentrated.rho_of([step])
    orders = np.concatenate((1 + np.geomspace(1e-4, 1, 40), np.geomspace(2, 1e5, 40)))
    assert (renyi.curve([step], orders) <= rho * orders * (1 + 1e-6)).all()
    assert rho <= epsilon**2 / (8 if bounded_range else 2) * (1 + 1e-12)
    if not bounded_range:
        assert renyi.curve([step], [1 + 1e-6])[0] == pytest.approx(rho, rel=1e-3)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(-6, 2), st.floats(-12, -1))
def test_the_conversion_lies_between_the_exact_gaussian_and_the_closed_form(log_rho, log_delta):
    rho, delta = 10**log_rho, 10**log_delta
    epsilon = concentrated.epsilon_of(rho, delta)
    # Bun and Steinke's closed form is looser; a Gaussian of that rho is an example, so nothing can be below its epsilon.
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-12
    assert epsilon >= gaussian_dp.epsilon_of(math.sqrt(2 * rho), delta) - 1e-9
    if epsilon > 1e-6:
        assert concentrated.delta_of(rho, epsilon) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-5), (1.0, 1e-6), (50.0, 1e-9)])
def test_the_largest_rho_within_a_budget_uses_it_up(epsilon, delta):
    rho = concentrated.rho_within(epsilon, delta)
    assert concentrated.epsilon_of(rho, delta) <= epsilon
    assert concentrated.epsilon_of(rho * 1.001, delta) > epsilon
