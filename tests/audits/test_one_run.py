"""One-run auditing: the bounds of Steinke et al. and of Mahloujifar et al., against an independent implementation."""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom, norm

from noiseproof.audits import (
    AuditError,
    Guesses,
    guess,
    one_run_bound,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    one_run_power,
    steinke_epsilon,
)
from noiseproof.audits.one_run import _approximate, _gaussian, contradicts, flip, p_value
from noiseproof.errors import SettingError
from noiseproof.privacy import gaussian_dp

CASES = [(1000, 1000, 700), (1000, 200, 190), (1000, 100, 100), (5000, 1000, 995), (50, 50, 40), (10_000, 500, 400)]


@pytest.fixture(scope="module")
def jax_auditing():
    """jax-privacy's `auditing` module, loaded by its file: the package would start JAX, which it never uses."""
    package = importlib.util.find_spec("jax_privacy")
    if package is None or not package.submodule_search_locations:
        pytest.skip("jax-privacy is not installed")
    spec = importlib.util.spec_from_file_location(
        "jax_privacy_auditing", f"{package.submodule_search_locations[0]}/auditing.py"
    )
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        # Its dataclasses look their module up by name.
        patch.setitem(sys.modules, "jax_privacy_auditing", module)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("canaries", "guessed", "correct"), CASES)
@pytest.mark.parametrize("delta", [0.0, 1e-5, 1e-3])
def test_p_values_are_those_of_jax_privacy(jax_auditing, canaries, guessed, correct, delta):
    for epsilon in (0.0, 0.5, 1.0, 3.0, 10.0):
        theirs = jax_auditing._one_run_p_value(canaries, guessed, correct, epsilon, delta)
        assert p_value(Guesses(canaries, guessed, correct), epsilon, delta) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(("canaries", "guessed", "correct"), CASES)
@pytest.mark.parametrize("delta", [1e-6, 1e-5, 1e-3])
def test_the_bound_is_jax_privacys_or_better(jax_auditing, canaries, guessed, correct, delta):
    guesses = Guesses(canaries, guessed, correct)
    theirs = jax_auditing._epsilon_one_run(0, canaries, guessed, correct, 0.05, delta)
    ours = one_run_epsilon(guesses, delta=delta)
    assert ours >= theirs - 2e-6
    # Ours exceeds theirs only where the f-DP argument for (epsilon, delta) itself refutes more.
    if p_value(guesses, ours - 1e-5, delta) <= 0.05:
        assert ours == pytest.approx(theirs, abs=2e-6)


@pytest.mark.parametrize(("canaries", "guessed", "correct", "delta"), [(1000, 200, 190, 1e-5), (50, 50, 40, 1e-3)])
def test_the_gaussian_bound_is_jax_privacys(jax_auditing, canaries, guessed, correct, delta):
    theirs = jax_auditing._epsilon_one_run_fdp(0, canaries, guessed, correct, 0.05, delta)
    ours = one_run_gaussian_epsilon(Guesses(canaries, guessed, correct), delta=delta)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_guesses_from_scores_give_the_same_bound_as_jax_privacy_from_the_same_scores(jax_auditing):
    rng = np.random.default_rng(0)
    included = rng.random(2000) < 0.5
    scores = rng.normal(size=2000) + 2.5 * included
    guesses = guess(scores, included, guess_in=300, guess_out=0)
    auditor = jax_auditing.CanaryScoreAuditor(scores[included], scores[~included])
    threshold = np.sort(scores)[-300]
    theirs = auditor.epsilon_one_run(0.05, 1e-5, threshold_strategy=jax_auditing.Explicit(threshold))
    assert p_value(guesses, theirs, 1e-5) == pytest.approx(0.05, abs=1e-6)
    assert one_run_epsilon(guesses, delta=1e-5) >= theirs - 2e-6 > 1


def test_abstaining_where_the_scores_say_little_refutes_more():
    rng = np.random.default_rng(0)
    included = rng.random(2000) < 0.5
    scores = rng.normal(size=2000) + 2 * included
    everything = one_run_epsilon(guess(scores, included, guess_in=1000, guess_out=1000), delta=0.0)
    surest = one_run_epsilon(guess(scores, included, guess_in=200, guess_out=200), delta=0.0)
    assert surest > everything > 1
    assert everything < one_run_bound(scores, included, delta=0.0).epsilon <= surest + 0.5


def test_guesses_take_the_highest_scores_for_in_and_the_lowest_for_out():
    scores, included = [5.0, -math.inf, 3.0, math.inf, 0.0], [True, True, False, True, False]
    assert guess(scores, included, guess_in=2, guess_out=1) == Guesses(5, 3, 2)
    assert guess(scores, included, guess_in=0, guess_out=0) == Guesses(5, 0, 0)
    assert guess(torch.tensor(scores), torch.tensor(included), guess_in=3, guess_out=2).correct == 3


small = settings(deadline=None, derandomize=True, max_examples=40)
counts = st.integers(1, 12).flatmap(lambda made: st.tuples(st.just(made), st.integers(0, made)))


@small
@given(counts=counts, more=st.integers(0, 5), epsilon=st.floats(0, 6), delta=st.sampled_from([0.0, 0.01]))
def test_both_bounds_hold_for_randomised_response_exactly(counts, more, epsilon, delta):
    """The worst epsilon-DP mechanism is right with probability q on each guess, independently: the tail is known."""
    made, correct = counts
    guesses = Guesses(made + more, made, correct)
    # Spends delta on telling the truth outright, as an (epsilon, delta)-DP mechanism may.
    truth = delta + (1 - delta) / (1 + math.exp(-epsilon))
    tail = float(binom.sf(correct - 1, made, truth))
    assert p_value(guesses, epsilon, delta) >= tail * (1 - 1e-9)
    for alpha in (0.01, 0.05, 0.3):
        if contradicts(made + more, made, correct, lambda rate: needed(rate, epsilon, delta), alpha):
            assert tail <= alpha * (1 + 1e-9)


def needed(rate, epsilon, delta):
    lines = (rate - delta) * math.exp(-epsilon), 1 - delta - (1 - rate) * math.exp(epsilon)
    return np.maximum(np.maximum(*lines), 0.0)


@small
@given(made=st.integers(1, 8), mu=st.floats(0.05, 4), seed=st.integers(0, 1000))
def test_the_gaussian_bound_holds_for_a_gaussian_mechanism_that_guesses_the_surest(made, mu, seed):
    """Each canary's coin plus normal noise: the best test of mu-GDP, guessing for the `made` largest |scores| of 8."""
    rng = np.random.default_rng(seed)
    rounds, canaries = 4000, 8
    coins = rng.random((rounds, canaries)) < 0.5
    scores = np.where(coins, mu / 2, -mu / 2) + rng.normal(size=coins.shape)
    surest = np.argsort(-np.abs(scores), axis=1)[:, :made]
    right = np.take_along_axis((scores > 0) == coins, surest, 1).sum(1)
    for correct in range(made + 1):
        if contradicts(canaries, made, correct, _gaussian(mu), 0.05):
            # A count of 4000 at rate 0.05 exceeds 300 less than once in 1e11; there are at most 9 x 40 comparisons.
            assert (right >= correct).sum() <= 300


@small
@given(counts=counts, more=st.integers(0, 5))
def test_the_bound_is_monotone_in_correct_guesses_and_confidence(counts, more):
    made, correct = counts
    bounds = [one_run_epsilon(Guesses(made + more, made, value), delta=1e-4) for value in range(correct, made + 1)]
    assert all(low <= high + 1e-9 for low, high in itertools.pairwise(bounds))
    surer = one_run_epsilon(Guesses(made + more, made, correct), delta=1e-4, confidence=0.99)
    assert surer <= bounds[0] + 1e-9


def largest_tail(canaries, made, correct, lines):
    """Brute force: the largest Pr[W >= correct] that the constraints allow, as a linear program over the law of W.

    The curve is given by `lines` (slope, offset) below the inverse of 1 - f: L(t - 1) >= slope R(t) + offset for each.
    """
    counts = np.arange(made + 1)
    rows, limits = [], []
    for t in range(1, made + 1):
        right, wrong = (
            np.where(counts >= t, counts, 0) / canaries,
            np.where(counts >= t - 1, made - counts, 0) / canaries,
        )
        for slope, offset in lines:
            rows.append(slope * right - wrong)
            limits.append(-offset)
    found = linprog(-(counts >= correct).astype(float), A_ub=rows, b_ub=limits, A_eq=np.ones((1, made + 1)), b_eq=[1.0])
    assert found.status == 0
    return -found.fun


@pytest.mark.parametrize(
    ("canaries", "made", "correct"), [(12, 12, 10), (12, 6, 6), (30, 20, 15), (40, 10, 9), (25, 25, 3)]
)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.0), (1.0, 1e-3), (2.5, 0.02)])
def test_the_bound_by_an_approximate_curve_is_the_one_of_a_linear_program(canaries, made, correct, epsilon, delta):
    lines = [(math.exp(-epsilon), -delta * math.exp(-epsilon)), (math.exp(epsilon), 1 - delta - math.exp(epsilon))]
    tail = largest_tail(canaries, made, correct, lines)
    assert not contradicts(canaries, made, correct, _approximate(epsilon, delta), tail - 1e-6)
    assert tail > 1 - 1e-6 or contradicts(canaries, made, correct, _approximate(epsilon, delta), tail + 1e-6)


@pytest.mark.parametrize(
    ("canaries", "made", "correct", "mu"), [(20, 20, 17, 0.8), (30, 10, 9, 1.5), (15, 15, 15, 2.0)]
)
def test_the_bound_by_a_gaussian_curve_is_the_one_of_a_linear_program_with_its_tangents(canaries, made, correct, mu):
    places = np.linspace(-8, 8, 400)  # tangents of Phi(Phi^-1(x) - mu) at x = Phi(place)
    slopes = np.exp(mu * places - mu**2 / 2)
    lines = list(zip(slopes, norm.cdf(places - mu) - slopes * norm.cdf(places), strict=True))
    tail = largest_tail(canaries, made, correct, lines)
    # Tangents lie below the curve, and so allow a little more.
    assert contradicts(canaries, made, correct, _gaussian(mu), tail + 1e-6)
    assert not contradicts(canaries, made, correct, _gaussian(mu), tail * 0.98)


def test_many_bounds_at_once_are_those_of_one_after_the_other():
    guessed, correct, mu = np.array([50, 50, 20]), np.array([40, 30, 19]), np.array([[0.5], [1.0], [2.0], [3.0]])
    together = contradicts(100, guessed, correct, _gaussian(mu), 0.05)
    alone = [
        [contradicts(100, g, c, _gaussian(float(m)), 0.05) for g, c in zip(guessed, correct, strict=True)]
        for m in mu[:, 0]
    ]
    assert together.tolist() == np.array(alone).tolist()


def bounds_on_a_gaussian_mechanism(epsilon, canaries, guessed, runs, seed):
    """What Steinke et al.'s and the f-DP bound find in many runs of one Gaussian mechanism, each canary in its own place."""
    mu, rng, found = gaussian_dp.mu_within(epsilon, 1e-5), np.random.default_rng(seed), []
    known = {}
    for _ in range(runs):
        included = rng.random(canaries) < 0.5
        scores = rng.normal(size=canaries) + mu * included
        guesses = guess(scores, included, guess_in=guessed - guessed // 2, guess_out=guessed // 2)
        if guesses not in known:
            known[guesses] = tuple(bound(guesses, delta=1e-5) for bound in (steinke_epsilon, one_run_gaussian_epsilon))
        found.append(known[guesses])
    return np.array(found)


@pytest.mark.parametrize("epsilon", [2.0, 4.0, 8.0])
def test_the_f_dp_bound_is_sharper_than_steinkes_on_every_run_of_a_gaussian_mechanism(epsilon):
    steinke, sharper = bounds_on_a_gaussian_mechanism(epsilon, 1000, 125, runs=3, seed=1).T
    assert (sharper > steinke).all()
    assert (sharper <= epsilon).all()


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [2.0, 4.0, 8.0])
def test_the_f_dp_bound_covers_the_truth_in_200_runs(epsilon):
    """Of 200 bounds at 95% more than 30 above the truth happen less than once in a million times."""
    steinke, sharper = bounds_on_a_gaussian_mechanism(epsilon, 1000, 125, runs=200, seed=2).T
    assert binom.sf(30, 200, 0.05) < 1e-6
    assert (sharper > epsilon).sum() <= 30
    assert np.median(sharper) > 1.3 * np.median(steinke)


def test_the_power_of_one_run_says_what_could_have_been_found():
    power = one_run_power(1000, delta=1e-5, confidence=0.95, claimed=2.0, gaussian=True)
    assert power.largest > 8
    assert 2.0 < power.found_from["Gaussian"] < 6.0
    few = one_run_power(10, delta=1e-5, confidence=0.95, claimed=8.0, gaussian=False)
    assert few.found_from == {"Gaussian": None}
    assert "too little" in few.sentence


def test_no_guess_or_no_luck_refutes_nothing():
    assert one_run_epsilon(Guesses(100, 0, 0), delta=1e-5) == 0
    assert one_run_epsilon(Guesses(100, 100, 50), delta=1e-5) == 0
    assert one_run_gaussian_epsilon(Guesses(100, 100, 50), delta=1e-5) == 0


def test_all_guesses_correct_refute_what_the_number_of_guesses_can():
    # q^r = 0.05 at q = e^eps / (1 + e^eps).
    truth = 0.05 ** (1 / 200)
    assert one_run_epsilon(Guesses(200, 200, 200), delta=0.0) == pytest.approx(math.log(truth / (1 - truth)), abs=1e-6)


def test_bounds_on_randomised_response_exceed_its_epsilon_in_at_most_one_of_twenty_runs():
    """400 audits at rate 0.05 exceed 45 times less than once in a million; each audit's bound is tight here."""
    epsilon, canaries, runs = 1.0, 500, 400
    rng = np.random.default_rng(0)
    right = rng.binomial(canaries, 1 / (1 + math.exp(-epsilon)), runs)
    bounds = {int(count): one_run_epsilon(Guesses(canaries, canaries, int(count)), delta=0.0) for count in set(right)}
    exceeded = sum(bounds[int(count)] > epsilon for count in right)
    assert binom.sf(45, runs, 0.05) < 1e-6
    assert exceeded <= 45
    assert np.mean([bounds[int(count)] for count in right]) > 0.75


def test_the_gaussian_bound_comes_near_the_truth_on_a_gaussian_mechanism():
    mu, canaries = 2.0, 5000
    rng = np.random.default_rng(0)
    included = rng.random(canaries) < 0.5
    scores = np.where(included, mu / 2, -mu / 2) + rng.normal(size=canaries)
    bound = one_run_gaussian_epsilon(guess(scores, included, guess_in=250, guess_out=250), delta=1e-5)
    truth = gaussian_dp.epsilon_of(mu, 1e-5)
    assert 0.6 * truth < bound < truth


def test_coins_are_fair_and_follow_the_generator():
    coins = flip(10_000, torch.Generator().manual_seed(0))
    assert torch.equal(coins, flip(10_000, torch.Generator().manual_seed(0)))
    assert coins.dtype == torch.bool
    # Ten thousand fair coins are more than 250 off the middle once in 1.7 million times.
    assert abs(int(coins.sum()) - 5000) < 250


def test_a_score_that_is_nan_is_reported_and_nothing_is_bounded():
    with pytest.raises(AuditError, match="canary 1 is NaN") as caught:
        guess([0.0, math.nan, 1.0], [True, False, True], guess_in=1, guess_out=0)
    assert caught.value.failure == "nan"


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: Guesses(10, 5, 6), "impossible"),
        (lambda: Guesses(10, 11, 6), "impossible"),
        (lambda: guess([1.0, 2.0], [True], guess_in=1, guess_out=0), "one score and one coin"),
        (lambda: guess([1.0, 2.0], [True, False], guess_in=2, guess_out=1), "do not fit"),
        (lambda: one_run_epsilon(Guesses(10, 5, 5), delta=1.0), "delta"),
        (lambda: one_run_epsilon(Guesses(10, 5, 5), delta=0.0, confidence=0.0), "confidence"),
        (lambda: one_run_gaussian_epsilon(Guesses(10, 5, 5), delta=0.0), "delta 0"),
    ],
)
def test_impossible_guesses_and_settings_are_refused(act, words):
    with pytest.raises(SettingError, match=words):
        act()
