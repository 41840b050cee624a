"""Upper bounds on error rates hold for every rate: computed exactly, not sampled."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, binomtest, norm

from noiseproof.audits import Event, counting_bound, gaussian_bound
from noiseproof.audits.two_worlds import clopper_pearson_upper, normal_deviations, pooled_upper, wilson_upper
from noiseproof.errors import SettingError
from noiseproof.privacy import gaussian_dp

exact = settings(deadline=None, derandomize=True, max_examples=200)
alphas = st.sampled_from([0.2, 0.05, 0.01, 1e-6])
rates = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)


@exact
@given(trials=st.integers(1, 400), share=st.floats(0, 1), alpha=alphas)
def test_clopper_pearson_is_scipys_exact_interval(trials, share, alpha):
    errors = round(share * trials)
    interval = binomtest(errors, trials).proportion_ci(1 - 2 * alpha, method="exact")
    assert clopper_pearson_upper(errors, trials, alpha) == pytest.approx(interval.high, rel=1e-6)


@exact
@given(trials=st.integers(1, 200), rate=rates, alpha=alphas)
def test_clopper_pearson_misses_the_rate_at_most_as_often_as_it_says(trials, rate, alpha):
    errors = np.arange(trials + 1)
    missed = clopper_pearson_upper(errors, trials, alpha) < rate * (1 - 1e-12)
    assert binom.pmf(errors, trials, rate)[missed].sum() <= alpha * (1 + 1e-9)


def test_clopper_pearson_broadcasts_over_errors_and_alphas():
    bounds = clopper_pearson_upper(np.array([[0], [3], [10]]), 10, np.array([0.05, 0.5]))
    assert bounds.shape == (3, 2)
    assert bounds[2].tolist() == [1.0, 1.0]
    assert (bounds[:2, 0] > bounds[:2, 1]).all()


@exact
@given(trials=st.integers(1, 60), first=rates, second=rates, alpha=alphas)
def test_pooled_errors_of_two_worlds_miss_their_mean_rate_at_most_as_often_as_they_say(trials, first, second, alpha):
    errors = np.arange(2 * trials + 1)
    law = np.convolve(*(binom.pmf(np.arange(trials + 1), trials, rate) for rate in (first, second)))
    bounds = np.array([pooled_upper(int(count), 2 * trials, alpha) for count in errors])
    missed = bounds < (first + second) / 2 * (1 - 1e-12)
    assert law[missed].sum() <= alpha * (1 + 1e-9)


def test_pooling_is_tighter_than_splitting_the_confidence():
    pooled = pooled_upper(400, 2000, 0.05)
    split = float(clopper_pearson_upper(200, 1000, 0.025))
    assert pooled < split


@exact
@given(trials=st.integers(30, 5000), share=st.floats(0.05, 0.95))
def test_wilson_is_near_the_exact_bound(trials, share):
    errors = round(share * trials)
    close = float(wilson_upper(np.array([errors], dtype=np.float64), trials, normal_deviations(0.025))[0])
    assert close == pytest.approx(float(clopper_pearson_upper(errors, trials, 0.025)), abs=1.5 / trials + 0.005)


def test_normal_deviations_are_normal_quantiles():
    assert normal_deviations(0.025) == pytest.approx(norm.isf(0.025))
    assert normal_deviations(0.0) == np.inf


# The bound of two worlds: what it refutes, whichever way the scores tell the worlds apart, and what it does not.


N = 2000


def laplace(epsilon, seed=0, trials=N):
    rng = np.random.default_rng(seed)
    return rng.laplace(0, 1 / epsilon, trials), rng.laplace(1, 1 / epsilon, trials)


def normal(mu, seed=0, trials=N):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, trials), rng.normal(mu, 1, trials)


def test_scores_that_always_tell_the_worlds_apart_refute_as_much_as_the_number_of_trials_can():
    bound = counting_bound((np.zeros(N), np.ones(N)), delta=1e-5)
    assert (bound.falsely, bound.missed, bound.counted) == (0, 0, N // 2)
    # The rule of three: no error in n trials leaves a rate of about 3/n possible.
    assert math.log(N / 2 / 3.3) < bound.epsilon < math.log(N / 2 / 2.9)


def test_the_bound_follows_from_its_counts_by_clopper_pearson():
    bound = counting_bound(laplace(2.0), delta=0.01)
    counted, shares = bound.counted, [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95]

    def upper(errors, alpha):
        return beta.ppf(1 - alpha, errors + 1, counted - errors)

    by_share = [
        math.log((1 - 0.01 - upper(bound.missed, 0.05 * (1 - share))) / upper(bound.falsely, 0.05 * share))
        for share in shares
    ]
    assert any(bound.epsilon == pytest.approx(epsilon, rel=1e-9) for epsilon in by_share)


@pytest.mark.parametrize("scores", [np.zeros(N), np.full(N, math.inf), np.random.default_rng(1).normal(size=N)])
def test_equal_scores_in_both_worlds_refute_nothing(scores):
    assert counting_bound((scores, scores), delta=0.0).epsilon == 0
    assert gaussian_bound((scores, scores), delta=1e-5).epsilon == 0


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("swap", [False, True])
def test_side_and_direction_of_the_scores_do_not_matter(side, swap):
    first, second = (side * part for part in laplace(2.0, trials=10_000))
    scores = (second, first) if swap else (first, second)
    assert 1.4 < counting_bound(scores, delta=0.0).epsilon < 2
    assert gaussian_bound(scores, delta=1e-5).mu > 1


def test_the_direction_that_leaks_more_is_found():
    # World 1 sometimes gives itself away, world 0 never does: accusing world 1 refutes much, accusing world 0 little.
    rng = np.random.default_rng(0)
    bound = counting_bound((np.zeros(N), (rng.random(N) < 0.3).astype(float)), delta=0.0)
    assert bound.event.accuses == 1
    assert bound.epsilon > 4


def test_an_interval_is_found_where_no_half_line_tells_the_worlds_apart():
    rng = np.random.default_rng(0)
    scores = (rng.uniform(-1, 1, N), rng.normal(0, 0.01, N))
    bound = counting_bound(scores, delta=0.0)
    # No half-line has more than twice the mass in one world than in the other.
    assert bound.epsilon > 2.5
    assert bound.event.high is not None


def test_infinite_scores_are_certain_ones():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(2, N))
    scores = (noise[0], np.where(rng.random(N) < 0.3, math.inf, noise[1]))
    bound = counting_bound(scores, delta=0.0)
    assert bound.falsely == 0
    assert bound.epsilon > 4
    below = (np.full(N, -math.inf), np.full(N, math.inf))
    assert counting_bound(below, delta=0.0).missed == 0
    assert gaussian_bound(below, delta=1e-5).missed == 0


def test_ties_at_a_threshold_are_kept_together():
    rng = np.random.default_rng(0)
    scores = (rng.integers(0, 3, N).astype(float), rng.integers(1, 4, N).astype(float))
    bound = counting_bound(scores, delta=0.0)
    assert bound.event.low % 1 == 0.5
    assert bound.falsely == 0


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    trials=st.integers(5, 300),
    delta=st.sampled_from([0.0, 1e-5, 0.1]),
    values=st.sampled_from([1, 2, 5, 10**9]),
)
def test_any_scores_give_a_finite_bound_and_a_consistent_event(seed, trials, delta, values):
    rng = np.random.default_rng(seed)
    scores = tuple(rng.integers(0, values, trials) / values for _ in range(2))
    scores = tuple(np.where(rng.random(trials) < 0.1, rng.choice([-math.inf, math.inf], trials), s) for s in scores)
    for bound in (counting_bound(scores, delta=delta), gaussian_bound(scores, delta=max(delta, 1e-9))):
        assert 0 <= bound.epsilon < math.inf
        counting = tuple(part[trials - bound.counted :] for part in scores)
        assert bound.event.errors(counting) == (bound.falsely, bound.missed)


def test_what_is_outside_an_event_is_its_complement():
    scores = np.array([-math.inf, 0.0, 1.0, 2.0, math.inf])
    assert Event(1, 1.0).happens(scores).tolist() == [False, False, True, True, True]
    assert Event(1, 1.0, 2.0).happens(scores).tolist() == [False, False, True, False, False]
    assert Event(1, 1.0, 2.0, outside=True).happens(scores).tolist() == [True, True, False, True, True]


def test_a_larger_delta_or_confidence_refutes_less():
    scores = (np.zeros(N), np.ones(N))
    smallest = counting_bound(scores, delta=0.5, confidence=0.95).epsilon
    surer = counting_bound(scores, delta=0.0, confidence=0.999).epsilon
    assert max(smallest, surer) < counting_bound(scores, delta=0.0, confidence=0.95).epsilon


def test_the_gaussian_fit_bounds_mu_from_the_pooled_errors():
    bound = gaussian_bound(normal(1.0), delta=1e-5)
    errors, trials = bound.falsely + bound.missed, 2 * bound.counted
    assert bound.counted == N * 4 // 5
    assert bound.mu == pytest.approx(-2 * norm.ppf(beta.ppf(0.95, errors + 1, trials - errors)), rel=1e-9)
    assert bound.epsilon == pytest.approx(gaussian_dp.epsilon_of(bound.mu, 1e-5))
    assert 0.8 < bound.mu < 1.0


def test_the_gaussian_fit_refutes_more_than_counting_on_a_gaussian_pair():
    scores = normal(1.0, trials=10_000)
    counted, fitted = (bound(scores, delta=1e-5).epsilon for bound in (counting_bound, gaussian_bound))
    assert counted < 0.6 * fitted < 0.6 * gaussian_dp.epsilon_of(1.0, 1e-5)


def test_the_gaussian_fit_is_wrong_without_its_assumption():
    # The middle of a Laplace pair's curve looks like mu = 1.03, whose epsilon at 1e-5 is far above the true 1.
    assert 2 * norm.isf(math.exp(-0.5) / 2) == pytest.approx(1.03, abs=0.005)
    assert gaussian_dp.epsilon_of(1.03, 1e-5) == pytest.approx(4.5, abs=0.1)
    assert gaussian_bound(laplace(1.0), delta=1e-5).epsilon > 3
    assert counting_bound(laplace(1.0), delta=1e-5).epsilon < 1


@pytest.mark.parametrize(
    ("scores", "options", "words"),
    [
        ((np.zeros(N), np.zeros(N - 1)), {}, "same number of trials"),
        ((np.zeros(4), np.zeros(4)), {}, "at least 5"),
        ((np.zeros((5, 5)), np.zeros((5, 5))), {}, "one score a trial"),
        ((np.zeros(N), np.full(N, math.nan)), {}, "NaN"),
        ((np.zeros(N), np.ones(N)), {"confidence": 1.0}, "confidence"),
        ((np.zeros(N), np.ones(N)), {"delta": 1.0}, "delta"),
    ],
)
@pytest.mark.parametrize("estimate", [counting_bound, gaussian_bound])
def test_what_cannot_be_bounded_is_refused(estimate, scores, options, words):
    with pytest.raises(SettingError, match=words):
        estimate(scores, **{"delta": 1e-5, **options})


def test_the_gaussian_fit_needs_a_delta():
    with pytest.raises(SettingError, match="delta 0"):
        gaussian_bound(normal(1.0), delta=0.0)
