from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from scipy.special import gammaln

from noiseproof.privacy import gaussian_dp, pld, renyi
from noiseproof.privacy.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    Step,
    read,
)
from noiseproof.privacy.pld import compose, for_delta, for_epsilon
from tests.privacy import oracle


def guess(steps, delta):
    return renyi.epsilon_of(steps, delta)[0]


def theirs(event, delta, neighbours="add-or-remove", interval=1e-4):
    relation = {"add-or-remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}
    return PLDAccountant(relation[neighbours], interval).compose(oracle.theirs(event)).get_epsilon(delta)


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize(
    ("rate", "sigma", "count", "delta"),
    [
        (0.01, 4.0, 10_000, 1e-5),
        (0.01, 1.0, 1000, 1e-5),
        (0.001, 0.5, 1000, 1e-6),
        (0.5, 20.0, 1000, 1e-6),
        (0.9, 1.0, 3, 1e-5),
        (0.01, 0.3, 10, 1e-5),
        (0.001, 0.4, 1, 1e-5),
    ],
)
def test_sampled_gaussians_have_dp_accountings_epsilon(rate, sigma, count, delta, neighbours):
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), count)
    steps = read(event, neighbours)
    ours, left = pld.epsilon_of(steps, delta, guess(steps, delta))
    # Their grid must be fine for many steps; for few, it would take long over what makes no difference.
    interval = 1e-4 if count >= 1000 else ours / 4000
    assert ours == pytest.approx(theirs(event, delta, neighbours, interval), rel=5e-4)
    assert left <= 1e-3 * ours


def test_mixed_steps_have_dp_accountings_epsilon():
    event = ComposedDpEvent(
        [
            SelfComposedDpEvent(PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0)), 50),
            SelfComposedDpEvent(PoissonSampledDpEvent(0.2, LaplaceDpEvent(3.0)), 20),
            SelfComposedDpEvent(LaplaceDpEvent(8.0), 5),
            GaussianDpEvent(3.0),
        ]
    )
    steps = read(event, "add-or-remove")
    ours, _ = pld.epsilon_of(steps, 1e-6, guess(steps, 1e-6))
    assert ours == pytest.approx(theirs(event, 1e-6), rel=1e-3)


@pytest.mark.parametrize(("epsilon", "count"), [(0.1, 100), (1.0, 20), (2.5, 3)])
def test_pure_steps_have_the_optimal_composition(epsilon, count):
    # Kairouz, Oh and Viswanath's theorem 3.3: the loss is (count - 2i) epsilon with binomial probabilities.
    i = np.arange(count + 1)
    logs = gammaln(count + 1) - gammaln(i + 1) - gammaln(count - i + 1) - count * np.log1p(math.exp(epsilon))
    mass, loss = np.exp(logs + (count - i) * epsilon), (count - 2 * i) * epsilon
    for delta in (1e-3, 1e-9):
        steps = [Step("pure", epsilon, count=count)]
        ours, _ = pld.epsilon_of(steps, delta, guess(steps, delta))
        exact = float(np.maximum(-np.expm1(ours - loss), 0) @ mass)
        assert exact <= delta
        slightly_less = float(np.maximum(-np.expm1(ours * (1 - 1e-3) - loss), 0) @ mass)
        assert slightly_less > delta


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12, 1e-30, 1e-100])
def test_gaussians_compose_to_a_gaussian_however_small_delta_is(delta):
    # Rates a hair below 1 keep the closed form out of it; the grid must find it by itself.
    steps = [Step("gaussian", 10.0 + k / 10, 1 - 1e-13, 10) for k in range(10)]
    mu = math.sqrt(sum(step.count / step.scale**2 for step in steps))
    exact = gaussian_dp.epsilon_of(mu, delta)
    ours, _ = pld.epsilon_of(steps, delta, guess(steps, delta))
    assert exact * (1 - 1e-6) <= ours <= exact * (1 + 1e-3)
    found, _ = pld.delta_of(steps, exact, renyi.delta_of(steps, exact)[0])
    assert delta * (1 - 1e-3) <= found <= delta * 1.1


def test_a_coarser_grid_only_overstates():
    steps = [Step("gaussian", 2.0, 0.05, 200), Step("pure", 0.05, 0.5, 30)]
    epsilons = [
        max(losses.epsilon_at(1e-5) for losses in compose(steps, interval, 1e-10, for_delta(1e-5)))
        for interval in (1e-1, 1e-2, 1e-3, 1e-4)
    ]
    assert epsilons == sorted(epsilons, reverse=True)
    deltas = [
        max(losses.delta_at(epsilons[-1]) for losses in compose(steps, interval, 1e-10, for_epsilon(epsilons[-1])))
        for interval in (1e-1, 1e-2, 1e-3, 1e-4)
    ]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[-1] == pytest.approx(1e-5, rel=1e-3)


def test_what_is_lost_on_the_way_is_never_promised():
    steps = [Step("gaussian", 2.0, 0.05, 200)]
    losses = compose(steps, 1e-2, 1e-3, for_delta(1e-5))[0]
    assert losses.lost > 1e-5
    assert losses.epsilon_at(1e-5) == math.inf


def test_hundreds_of_noise_levels_are_composed_within_a_few_percent_of_renyi():
    steps = [Step("gaussian", 1.5 + k / 200, 0.01) for k in range(600)]
    ours, _ = pld.epsilon_of(steps, 1e-5, guess(steps, 1e-5))
    event = ComposedDpEvent([PoissonSampledDpEvent(0.01, GaussianDpEvent(step.scale)) for step in steps[::60]])
    few = read(SelfComposedDpEvent(event, 60), "add-or-remove")
    sparse, _ = pld.epsilon_of(few, 1e-5, guess(few, 1e-5))
    assert ours < guess(steps, 1e-5)
    # Every sixtieth noise level sixty times is a little less noise than all of them.
    assert ours == pytest.approx(sparse, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "sigma", "count", "delta"),
    [(1e-4, 0.7, 10**6, 1e-8), (0.01, 5.0, 10**7, 1e-6), (0.5, 1.0, 10**5, 1e-5), (0.01, 500.0, 10**5, 1e-5)],
)
def test_hard_cases_settle_below_renyi(rate, sigma, count, delta):
    for exchange in (False, True):
        steps = [Step("gaussian", sigma, rate, count, exchange=exchange)]
        ours, left = pld.epsilon_of(steps, delta, guess(steps, delta))
        assert ours < guess(steps, delta)
        assert left < 1e-2 * ours
