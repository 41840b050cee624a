from __future__ import annotations

import math

import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from noiseproof.privacy.gaussian_dp import delta_of, epsilon_of, mu_of_pure, mu_within


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0, 400.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_epsilon_is_that_of_the_analytic_gaussian_mechanism(sigma, delta):
    theirs = gaussian_mechanism.get_epsilon_gaussian(sigma, delta)
    assert epsilon_of(1 / sigma, delta) == pytest.approx(theirs, rel=1e-6, abs=1e-9)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(0.01, 100), st.floats(-12, -1))
def test_the_largest_mu_within_a_budget_uses_it_up_and_never_exceeds_it(epsilon, exponent):
    delta = 10**exponent
    mu = mu_within(epsilon, delta)
    assert delta_of(mu, epsilon) <= delta
    assert epsilon_of(mu, delta) <= epsilon * (1 + 1e-12)
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-6)
    assert delta_of(mu * (1 + 1e-6), epsilon) > delta


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(1e-3, 20), st.floats(0, 30))
def test_epsilon_and_delta_are_inverse_to_each_other(mu, epsilon):
    delta = delta_of(mu, epsilon)
    if 1e-100 < delta < 0.9 and epsilon > 0:
        assert epsilon_of(mu, delta) == pytest.approx(epsilon, rel=1e-5, abs=1e-9)


def test_there_is_no_finite_epsilon_at_delta_0_and_none_is_needed_without_loss():
    assert epsilon_of(1.0, 0.0) == math.inf
    assert epsilon_of(0.0, 0.0) == 0
    assert delta_of(0.0, 0.0) == 0
    assert delta_of(math.inf, 5.0) == 1


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(0.01, 12), st.floats(1e-6, 1 - 1e-6))
def test_what_is_pure_is_no_easier_to_tell_apart_than_its_gaussians(epsilon, false_alarms):
    mu = mu_of_pure(epsilon)
    missed = max(0.0, 1 - math.exp(epsilon) * false_alarms, math.exp(-epsilon) * (1 - false_alarms))
    assert norm.cdf(norm.isf(false_alarms) - mu) <= missed + 1e-9
    # Tight: the curves touch where both errors are the same.
    both = 1 / (1 + math.exp(epsilon))
    assert norm.cdf(norm.isf(both) - mu) == pytest.approx(both, rel=1e-6)
