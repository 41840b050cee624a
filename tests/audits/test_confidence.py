"""Upper bounds on error rates hold for every rate: computed exactly, not sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm

from noiseproof.audits.confidence import clopper_pearson_upper, normal_deviations, pooled_upper, wilson_upper

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
