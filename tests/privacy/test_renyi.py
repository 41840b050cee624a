from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from noiseproof.privacy import accountants, gaussian_dp, renyi
from noiseproof.privacy.events import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from noiseproof.privacy.steps import Step
from tests.privacy.oracle import theirs as theirs_of

# dp-accounting's values at fractional orders are upper bounds (it adds up a series' absolute values): integers only.
ORDERS = [2, 3, 5, 8, 16, 32, 64, 200]


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0, 300.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.5, 0.99, 1.0])
def test_sampled_gaussians_have_dp_accountings_curve(rate, sigma):
    theirs = RdpAccountant(ORDERS).compose(theirs_of(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)))).rdp
    assert renyi.curve([Step("gaussian", sigma, rate)], ORDERS) == pytest.approx(theirs, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("rate", "sigma"), [(0.01, 1.0), (0.1, 0.5), (0.5, 10.0)])
def test_fractional_orders_have_the_integrals_value(rate, sigma):
    for order in (1.1, 1.5, 2.5, 7.3):

        def integrand(x, order=order):
            ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * sigma**2))
            return norm.pdf(x, 0, sigma) * ratio**order

        moment = quad(integrand, -12 * sigma, order + 12 * sigma, points=[0, 1, order], epsabs=1e-14, limit=500)[0]
        ours = renyi.curve([Step("gaussian", sigma, rate)], [order])[0]
        assert ours == pytest.approx(math.log(moment) / (order - 1), rel=1e-6, abs=1e-10)


@pytest.mark.parametrize(
    ("rate", "sigma", "order"), [(0.1, 1.0, 3.0), (0.5, 2.0, 8.5), (0.9, 0.7, 1.5), (0.01, 5.0, 40.0)]
)
def test_exchanged_gaussians_have_the_integrals_value(rate, sigma, order):
    def log_integrand(x):
        one = np.logaddexp(math.log1p(-rate) + norm.logpdf(x, 0, sigma), math.log(rate) + norm.logpdf(x, 1, sigma))
        other = np.logaddexp(math.log1p(-rate) + norm.logpdf(x, 0, sigma), math.log(rate) + norm.logpdf(x, -1, sigma))
        return order * one + (1 - order) * other

    x = np.linspace(-1 - 14 * sigma, 2 * order + 14 * sigma, 400_001)
    moment = np.trapezoid(np.exp(log_integrand(x)), x)
    ours = renyi.curve([Step("gaussian", sigma, rate, exchange=True)], [order])[0]
    assert ours == pytest.approx(math.log(moment) / (order - 1), rel=1e-6)


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_next_to_no_noise_costs_a_lot_and_is_no_error(neighbours):
    event = PoissonSampledDpEvent(0.1, GaussianDpEvent(1e-9))
    assert accountants.epsilon(event, 1e-5, accountant="rdp", neighbours=neighbours).epsilon > 1e15


def test_exchanging_without_sampling_is_a_gaussian_of_half_sigma():
    nearly = renyi.curve([Step("gaussian", 3.0, 1 - 1e-12, exchange=True)], [2.0, 10.0])
    assert nearly == pytest.approx(renyi.curve([Step("gaussian", 1.5)], [2.0, 10.0]), rel=1e-6)


@pytest.mark.parametrize("scale", [0.5, 3.0, 100.0])
def test_laplace_noise_has_dp_accountings_curve(scale):
    orders = [1.05, 1.5, 2, 10, 500]
    theirs = RdpAccountant(orders).compose(theirs_of(SelfComposedDpEvent(LaplaceDpEvent(scale), 3))).rdp
    assert renyi.curve([Step("laplace", scale, count=3)], orders) == pytest.approx(theirs, rel=1e-6)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(1e-3, 8), st.floats(1.01, 300))
def test_pure_losses_have_the_curve_of_randomised_response(epsilon, order):
    yes = 1 / (1 + math.exp(-epsilon))
    no = 1 / (1 + math.exp(epsilon))
    logs = [order * math.log(a) + (1 - order) * math.log(b) for a, b in ((yes, no), (no, yes))]
    divergence = float(np.logaddexp(*logs)) / (order - 1)
    ours = renyi.curve([Step("pure", epsilon)], [order])[0]
    assert ours == pytest.approx(divergence, rel=1e-6, abs=1e-12)
    bounded = renyi.curve([Step("pure", epsilon, bounded_range=True)], [order])[0]
    assert bounded == pytest.approx(min(ours, order * epsilon**2 / 8))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(1e-3, 8), st.floats(1e-3, 1), st.floats(1.01, 300))
def test_sampled_pure_losses_are_the_worse_of_removal_and_addition(epsilon, rate, order):
    out = np.array([1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))])
    into = (1 - rate) * out + rate * out[::-1]
    both = [
        float(np.logaddexp.reduce(order * np.log(a) + (1 - order) * np.log(b))) / (order - 1)
        for a, b in ((into, out), (out, into))
    ]
    ours = renyi.curve([Step("pure", epsilon, rate)], [order])[0]
    assert ours == pytest.approx(max(both), rel=1e-5, abs=1e-11 / (order - 1))


def test_conversion_to_epsilon_is_dp_accountings():
    orders = np.array([1.5, 2.0, 8.0, 32.0, 64.0])
    for sigma in (0.5, 2.0, 50.0, 1e6):
        divergences = orders / (2 * sigma**2)
        theirs = compute_epsilon(orders, divergences, 1e-5)[0]
        assert renyi.epsilon_at(orders, divergences, 1e-5).min() == pytest.approx(theirs, rel=1e-9)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps", "delta"),
    [(0.01, 4.0, 10_000, 1e-5), (0.01, 1.0, 1000, 1e-5), (0.5, 20.0, 1000, 1e-6), (0.01, 500.0, 100_000, 1e-5)],
)
def test_the_best_order_is_found_so_that_epsilon_is_no_more_than_dp_accountings(rate, sigma, steps, delta):
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
    theirs = RdpAccountant().compose(theirs_of(event)).get_epsilon(delta)
    ours, order = renyi.epsilon_of([Step("gaussian", sigma, rate, steps)], delta)
    assert theirs * (1 - 2e-3) <= ours <= theirs * (1 + 1e-6)
    assert order > 1


def test_tiny_epsilons_find_their_large_orders():
    epsilon, order = renyi.epsilon_of([Step("gaussian", 4e5)], 1e-7)
    fine = np.geomspace(1e3, 1e7, 100_000)
    assert order > 1e4
    assert epsilon == pytest.approx(renyi.epsilon_at(fine, fine / (2 * 4e5**2), 1e-7).min(), rel=1e-3)


def test_thousands_of_noise_levels_add_up_as_they_should():
    steps = [Step("gaussian", 1 + k / 500, 0.01, 1 + k % 3) for k in range(800)]
    epsilon, order = renyi.epsilon_of(steps, 1e-5)
    one_by_one = sum(renyi.curve([step], [order])[0] for step in steps)
    assert renyi.curve(steps, [order])[0] == pytest.approx(one_by_one, rel=1e-9)
    assert epsilon == pytest.approx(renyi.epsilon_at(np.array([order]), np.array([one_by_one]), 1e-5)[0], rel=1e-9)


def test_a_gaussians_rho_is_one_over_two_sigma_squared_sampled_or_not():
    assert renyi.rho_of([Step("gaussian", 4.0, count=5)]) == pytest.approx(5 / 32)
    assert renyi.rho_of([Step("gaussian", 4.0, 0.01)]) == pytest.approx(1 / 32)
    assert renyi.rho_of([Step("gaussian", 4.0, 0.01, exchange=True)]) == pytest.approx(1 / 8)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(1e-3, 20), st.booleans())
def test_a_pure_loss_is_within_its_rho_at_every_order_and_tightly(epsilon, bounded_range):
    step = Step("pure", epsilon, bounded_range=bounded_range)
    rho = renyi.rho_of([step])
    orders = np.concatenate((1 + np.geomspace(1e-4, 1, 40), np.geomspace(2, 1e5, 40)))
    assert (renyi.curve([step], orders) <= rho * orders * (1 + 1e-6)).all()
    assert rho <= epsilon**2 / (8 if bounded_range else 2) * (1 + 1e-12)
    if not bounded_range:
        assert renyi.curve([step], [1 + 1e-6])[0] == pytest.approx(rho, rel=1e-3)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(-6, 2), st.floats(-12, -1))
def test_the_conversion_lies_between_the_exact_gaussian_and_the_closed_form(log_rho, log_delta):
    rho, delta = 10**log_rho, 10**log_delta
    epsilon = renyi.epsilon_of_rho(rho, delta)
    # Bun and Steinke's closed form is looser; a Gaussian of that rho is an example, so nothing can be below its epsilon.
    assert epsilon <= rho + 2 * math.sqrt(rho * math.log(1 / delta)) + 1e-12
    assert epsilon >= gaussian_dp.epsilon_of(math.sqrt(2 * rho), delta) - 1e-9
    if epsilon > 1e-6:
        assert renyi.delta_of_rho(rho, epsilon) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.01, 1e-5), (1.0, 1e-6), (50.0, 1e-9)])
def test_the_largest_rho_within_a_budget_uses_it_up(epsilon, delta):
    rho = renyi.rho_within(epsilon, delta)
    assert renyi.epsilon_of_rho(rho, delta) <= epsilon
    assert renyi.epsilon_of_rho(rho * 1.001, delta) > epsilon
