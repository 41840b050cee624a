"""Coverage and power of audits, on mechanisms whose epsilon is known exactly."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from scipy.stats import binom, kstest, laplace, norm

from noiseproof.audits import audit
from noiseproof.errors import SettingError
from noiseproof.privacy import gaussian_dp
from tests.audits.mechanisms import gaussian_game, laplace_game, randomised_response_game

AUDITS = 200
MOST = 27
"""Of 200 audits whose bounds exceed the truth with probability 0.05 each, more than 27 do so less than once in 1e6."""

GAMES = {
    "gaussian-1": gaussian_game(1.0),
    "gaussian-4": gaussian_game(4.0),
    "laplace-1": laplace_game(1.0),
    "laplace-2": laplace_game(2.0),
    "response-0.5": randomised_response_game(0.5),
    "response-3": randomised_response_game(3.0),
}


def epsilons(game, trials, audits):
    return [audit(game, trials=trials, seed=seed, timeout=None).epsilon for seed in range(audits)]


def exceeding(game, trials):
    return sum(epsilon > game.proven.epsilon for epsilon in epsilons(game, trials, AUDITS))


def test_the_allowed_number_of_overshoots_is_a_binomial_test_at_one_in_a_million():
    assert binom.sf(MOST, AUDITS, 0.05) < 1e-6 < binom.sf(MOST - 1, AUDITS, 0.05)


@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES.keys())
def test_the_bound_exceeds_the_truth_in_at_most_one_audit_of_twenty(game):
    assert exceeding(game, trials=500) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES.values(), ids=GAMES.keys())
def test_the_bound_exceeds_the_truth_in_at_most_one_audit_of_twenty_of_ten_thousand_trials(game):
    assert exceeding(game, trials=10_000) <= MOST


@pytest.mark.parametrize(
    ("name", "estimator"),
    [("gaussian-1", "gaussian"), ("gaussian-4", "gaussian"), ("laplace-1", "counting"), ("laplace-2", "counting")],
)
def test_ten_thousand_trials_reach_most_of_the_truth(name, estimator):
    """The median of 11 audits: single audits miss 60% less than once in 50, so six of eleven less than once in 1e7."""
    game = GAMES[name]
    assert audit(game, trials=100).bound.estimator == estimator
    assert statistics.median(epsilons(game, trials=10_000, audits=11)) >= 0.6 * game.proven.epsilon


def test_games_are_the_mechanisms_that_they_say():
    """Kolmogorov-Smirnov of 20,000 draws, each at a false-alarm rate of 1e-7."""
    mu = gaussian_dp.mu_within(1.0, 1e-5)
    for world in (0, 1):
        generator = torch.Generator().manual_seed(world)
        noise = gaussian_game(1.0).play(world, 20_000, generator) - mu * world
        assert kstest(noise.numpy(), norm().cdf).pvalue > 1e-7
        noise = laplace_game(2.0).play(world, 20_000, generator) - world
        assert kstest(noise.numpy(), laplace(scale=0.5).cdf).pvalue > 1e-7
        told = randomised_response_game(1.0).play(world, 20_000, generator)
        lies = int((told != world).sum())
        assert 1e-7 < binom.cdf(lies, 20_000, 1 / (1 + math.e)) < 1 - 1e-7


def test_an_impossible_epsilon_is_refused():
    for game in (gaussian_game, laplace_game, randomised_response_game):
        with pytest.raises(SettingError):
            game(0.0)
