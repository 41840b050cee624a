from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.privacy import classical, gaussian_dp
from noiseproof.privacy.events import Step
from noiseproof.privacy.pld import epsilon_of


def test_naive_composition_is_the_sum_at_equal_parts_of_delta():
    once = gaussian_dp.epsilon_of(1 / 4, 1e-5 / 100)
    assert classical.naive([Step("gaussian", 4.0, count=100)], 1e-5) == pytest.approx(100 * once)
    sampled = math.log1p(0.01 * math.expm1(gaussian_dp.epsilon_of(1 / 4, 1e-5 / 100 / 0.01)))
    assert classical.naive([Step("gaussian", 4.0, 0.01, 100)], 1e-5) == pytest.approx(100 * sampled)
    both = [Step("gaussian", 4.0, count=100), Step("pure", 0.1, count=7)]
    assert classical.naive(both, 1e-5) == pytest.approx(100 * once + 0.7)


def test_advanced_composition_has_the_theorems_value_for_pure_steps():
    epsilon, count, delta = 0.1, 500, 1e-6
    drift = count * epsilon * math.expm1(epsilon) / (math.exp(epsilon) + 1)
    odds = min(1 / delta, math.e + math.sqrt(count * epsilon**2) / delta)
    theorem = drift + math.sqrt(2 * count * epsilon**2 * math.log(odds))
    # Nothing of delta is needed by the steps, and the split comes to within a thousandth of giving it all away.
    assert classical.advanced([Step("pure", epsilon, count=count)], delta) == pytest.approx(theorem, rel=1e-4)


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
    naive, advanced = classical.naive(steps, delta), classical.advanced(steps, delta)
    assert advanced <= naive
    exact = epsilon_of(steps, delta, max(advanced, 1e-3))[0]
    assert exact <= advanced * (1 + 1e-3) + 1e-6


def test_pure_losses_add_up_and_gaussians_have_no_largest_loss():
    assert classical.pure_epsilon([Step("pure", 0.1, count=3), Step("laplace", 10.0)]) == pytest.approx(0.4)
    assert classical.pure_epsilon([Step("pure", 0.1), Step("gaussian", 9.0)]) == math.inf
