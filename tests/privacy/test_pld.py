from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import binom, laplace, norm

from noiseproof.privacy import accountants, gaussian_dp, pld, renyi
from noiseproof.privacy.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    GroupDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SelfComposedDpEvent,
    sampled_gaussian,
)
from noiseproof.privacy.loss_grids import grids
from noiseproof.privacy.pld import compose, for_delta, for_epsilon
from noiseproof.privacy.steps import Step, read
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


@pytest.mark.parametrize(
    ("rate", "sigma", "size", "count"),
    [
        pytest.param(0.01, 1.0, 5, 1000, marks=pytest.mark.slow),
        pytest.param(0.1, 4.0, 25, 100, marks=pytest.mark.slow),
        (0.02, 2.0, 3, 300),
        (0.5, 3.0, 2, 1),
    ],
)
def test_sampled_records_of_one_person_have_dp_accountings_epsilon_of_a_mixture(rate, sigma, size, count):
    shares = list(binom.pmf(np.arange(size + 1), size, rate))
    theirs = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, list(range(size + 1)), shares, value_discretization_interval=1e-4
    )
    expected = theirs.self_compose(count).get_epsilon_for_delta(1e-5)
    event = sampled_gaussian(rate, sigma, count, group_size=size)
    found = accountants.epsilon(event, 1e-5)
    assert found.accountant == "pld"
    assert found.epsilon == pytest.approx(expected, rel=1e-3)
    # All of them whenever one is sampled: an upper bound, and what the other accountants are told.
    assert found.epsilon < accountants.epsilon(event, 1e-5, accountant="rdp").epsilon


def test_a_person_with_one_record_is_a_record_and_unsampled_groups_are_louder():
    one = accountants.epsilon(sampled_gaussian(0.1, 2.0, 50), 1e-5).epsilon
    assert accountants.epsilon(GroupDpEvent(sampled_gaussian(0.1, 2.0), 1), 1e-5).epsilon <= one
    assert accountants.epsilon(GroupDpEvent(GaussianDpEvent(6.0), 3), 1e-5).epsilon == pytest.approx(
        accountants.epsilon(GaussianDpEvent(2.0), 1e-5).epsilon
    )
    assert accountants.epsilon(GroupDpEvent(PureDpEvent(0.5), 4), 0.0).epsilon == pytest.approx(2.0)
    exchanged = accountants.epsilon(sampled_gaussian(0.1, 8.0, group_size=3), 1e-5, neighbours="replace-one").epsilon
    assert exchanged > accountants.epsilon(sampled_gaussian(0.1, 8.0), 1e-5, neighbours="replace-one").epsilon


def test_group_privacy_multiplies_epsilon():
    epsilon, delta = accountants.group_privacy(0.5, 1e-9, 4)
    assert epsilon == 2.0
    assert delta == pytest.approx(1e-9 * sum(math.exp(0.5 * place) for place in range(4)))
    assert accountants.group_privacy(0.7, 1e-6, 1) == pytest.approx((0.7, 1e-6))


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


def hockey_stick(p, q, epsilon, x):
    """The delta of a pair of densities at epsilon, by summing over a fine grid of outputs."""
    return float(np.maximum(p(x) - math.exp(epsilon) * q(x), 0).sum() * (x[1] - x[0]))


def on_grid(grid, epsilon):
    return grid.lost + float(np.maximum(-np.expm1(epsilon - grid.losses), 0) @ grid.mass)


def pair(step):
    law = norm if step.law == "gaussian" else laplace

    def mixture(centre):
        return lambda x: (1 - step.rate) * law.pdf(x, 0, step.scale) + step.rate * law.pdf(x, centre, step.scale)

    return mixture(1), mixture(-1) if step.exchange else lambda x: law.pdf(x, 0, step.scale)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.sampled_from(["gaussian", "laplace"]),
    st.floats(0.4, 5),
    st.sampled_from([0.01, 0.3, 0.9, 1.0]),
    st.booleans(),
    st.floats(-0.5, 2),
)
def test_a_grid_never_understates_a_step_and_hardly_overstates_it(law, scale, rate, exchange, epsilon):
    step = Step(law, scale, rate, exchange=exchange and law == "gaussian" and rate < 1)
    x = np.linspace(-40, 40, 200_001)
    p, q = pair(step)
    removed, added = grids(step, 1e-3, 1e-12)
    for grid, (a, b) in ((removed, (p, q)), (added, (q, p))):
        exact = hockey_stick(a, b, epsilon, x)
        # Between grid points delta is a chord over e^epsilon: at a kink at most a quarter of the interval above.
        assert exact - 1e-7 <= on_grid(grid, epsilon) <= exact + 2.6e-4 * math.exp(max(epsilon, 0.0))


@pytest.mark.parametrize(
    "step",
    [
        Step("gaussian", 0.01, 0.001),
        Step("gaussian", 0.05, 0.3, exchange=True),
        Step("gaussian", 1e5, 1e-6),
        Step("laplace", 0.01, 0.5),
        Step("pure", 900.0, 0.2),
        Step("pure", 1e-9, 1.0),
        Step("gaussian", 2.0, 1 - 1e-12),
    ],
)
def test_extreme_steps_keep_their_mass(step):
    low, high = (0.0, 900.0) if step.scale == 900 else (0.0, 1 / step.scale)
    for grid in grids(step, max(high - low, 1e-9) / 1000, 1e-12):
        assert (grid.mass >= 0).all()
        assert grid.mass.sum() + grid.lost == pytest.approx(1, abs=1e-9)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(1e-2, 5), st.sampled_from([0.01, 0.5, 1.0]), st.floats(0, 5))
def test_pure_losses_are_those_of_randomised_response(epsilon, rate, at):
    out = np.array([1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))])
    into = (1 - rate) * out + rate * out[::-1]
    removed, added = grids(Step("pure", epsilon, rate), epsilon / 999.5, 1e-12)
    for grid, (a, b) in ((removed, (into, out)), (added, (out, into))):
        exact = float(np.maximum(a - math.exp(at) * b, 0).sum())
        assert exact - 1e-12 <= on_grid(grid, at) <= exact + epsilon / 999


def test_no_pair_of_records_is_worse_than_opposite_ones_when_one_is_exchanged():
    # With any two contributions in the unit ball (a plane holds them and the origin), no delta exceeds that of the pair
    # (1-q) N(0) + q N(1) and (1-q) N(0) + q N(-1) that replace-one accounting rests on.
    axis = np.linspace(-9, 9, 361)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(rate, sigma, at):
        def bell(centre):
            return np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)

        return (1 - rate) * bell((0, 0)) + rate * bell(at)

    for rate, sigma in ((0.1, 1.0), (0.5, 0.7), (0.9, 1.5)):
        for epsilon in (0.05, 0.5, 1.5):
            worst = (density(rate, sigma, (1, 0)), density(rate, sigma, (-1, 0)))
            bound = np.maximum(worst[0] - math.exp(epsilon) * worst[1], 0).sum() * cell
            for angle in np.linspace(0, math.pi, 7):
                for length in (0.5, 1.0):
                    other = density(rate, sigma, (length * math.cos(angle), length * math.sin(angle)))
                    delta = np.maximum(worst[0] - math.exp(epsilon) * other, 0).sum() * cell
                    assert delta <= bound + 1e-6


def exact_delta_of_one_step(epsilon, sigma, rate):
    """Of one Poisson-sampled Gaussian step, for the record's removal, with 60 digits."""
    with mpmath.workdps(60):
        x = sigma**2 * mpmath.log((mpmath.exp(epsilon) - 1 + rate) / rate) + mpmath.mpf(0.5)
        with_record, without = (mpmath.erfc((x - centre) / sigma / mpmath.sqrt(2)) / 2 for centre in (1, 0))
        return rate * with_record + (1 - rate - mpmath.exp(epsilon)) * without


@pytest.mark.parametrize("delta", [1e-40, 1e-60, 1e-120, 1e-200, 1e-280, 1e-300])
@pytest.mark.parametrize(("sigma", "rate", "exchange"), [(1.0, 0.01, False), (0.5, 0.001, False), (0.5, 0.001, True)])
def test_at_the_smallest_deltas_many_steps_have_no_less_than_one_of_them(sigma, rate, exchange, delta):
    steps = [Step("gaussian", sigma, rate, 100, exchange)]
    found, _ = pld.epsilon_of(steps, delta, guess(steps, delta))
    # What holds for a hundred steps holds for each, and exchanging a record is no less than removing one.
    assert math.isinf(found) or exact_delta_of_one_step(found, sigma, rate) <= delta * (1 + 1e-6)
    if delta > 1e-100:
        assert found < 1.1 * guess(steps, delta)
    back, _ = pld.delta_of(steps, 30.0, renyi.delta_of(steps, 30.0)[0])
    assert exact_delta_of_one_step(30.0, sigma, rate) <= back * (1 + 1e-6)
