"""The stated power is what audits then have: with the stated true epsilon the claim falls in four audits of five."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from noiseproof.audits import one_run_bound, one_run_power
from noiseproof.audits.observed import WEIGHTS, tell_apart
from noiseproof.audits.power import CHANCE, two_worlds_power
from noiseproof.audits.two_worlds import counting_bound
from noiseproof.privacy import gaussian_dp

TRIALS, LEARNING, AUDITS = 500, 200, 100

# Far from the stated chance: at that chance, fewer or more are refuted in one case of a million.
FEWEST, MOST = (int(binom.ppf(level, AUDITS, CHANCE)) for level in (5e-7, 1 - 5e-7))


def released(numbers):
    """What an audit of a program sees of a release of some numbers."""
    numbers = np.asarray(numbers, float)
    return {**{f"{place}": numbers[place : place + 1] for place in range(len(numbers))}, WEIGHTS: numbers}


def audited(mechanism, rng):
    """The bound that an audit of a program gives, by the rule of `audit_program`, without starting programs."""
    seen = [[released(mechanism(world, rng)) for _ in range(TRIALS)] for world in (0, 1)]
    told = tell_apart((seen[0][:LEARNING], seen[1][:LEARNING]), ())
    scores = [np.array([told.score(run) for run in world[LEARNING:]]) for world in seen]
    return counting_bound((scores[0], scores[1]), delta=0.0, confidence=0.95, choosing=told.scores)


@pytest.mark.slow
def test_an_audit_of_a_program_has_the_power_that_it_states():
    def number(epsilon):
        return lambda world, rng: [world + rng.laplace(scale=1 / epsilon)]

    power = two_worlds_power(audited(number(3.0), np.random.default_rng(0)), TRIALS, 2.0)
    truth = power.found_from["Laplace"]
    found = [audited(number(truth), np.random.default_rng(1000 + run)).epsilon for run in range(AUDITS)]
    assert FEWEST <= sum(bound > 2.0 for bound in found) <= MOST
    assert max(found) <= power.largest


@pytest.mark.slow
@pytest.mark.parametrize(("claimed", "gaussian"), [(2.0, True), (1.0, False)])
def test_an_audit_of_one_run_has_the_power_that_it_states(claimed, gaussian):
    canaries, delta = 1000, 1e-5
    power = one_run_power(canaries, delta=delta, confidence=0.95, claimed=claimed, gaussian=gaussian)
    mu = gaussian_dp.mu_within(power.found_from["Gaussian"], delta)
    refuted = 0
    for run in range(AUDITS):
        rng = np.random.default_rng(5000 + run)
        coins = rng.random(canaries) < 0.5
        scores = rng.normal(size=canaries) + mu * np.where(coins, 0.5, -0.5)
        refuted += one_run_bound(scores, coins, delta=delta, gaussian=gaussian).epsilon > claimed
    assert refuted >= FEWEST  # the best of several numbers of guesses finds more than the one that is stated


# None of these was looked at while the way of learning scores was settled (see docs/guide/audit-someone-else.md).
INCOMES = np.random.default_rng(7).integers(5000, 60000, 200)
COUNTS = np.bincount(np.minimum(19, INCOMES // 5000), minlength=20).astype(float)


def histogram(epsilon):
    """20 counts; the canary is alone in the last."""
    return lambda world, rng: COUNTS + world * (np.arange(20) == 19) + rng.laplace(scale=1 / epsilon, size=20)


def sum_that_is_not_cut(world, rng):
    """Noise for incomes up to 100,000 at epsilon 2, and an income of 250,000."""
    return [INCOMES.sum() + 250_000 * world + rng.laplace(scale=50_000)]


@pytest.mark.slow
def test_liars_that_nothing_was_tuned_on_are_refuted_and_an_honest_one_is_not():
    def refuted(mechanism, runs):
        return sum(audited(mechanism, np.random.default_rng(9000 + run)).epsilon > 2 for run in range(runs))

    assert refuted(histogram(5.0), 20) >= 18
    assert refuted(sum_that_is_not_cut, 20) >= 18
    assert refuted(histogram(2.0), 20) <= 8  # of 20 at 5% each, more in one case of five million
