"""Mechanisms release with the noise that their events say, and refuse what has no guarantee."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.privacy import AboveThreshold, Exponential, Gaussian, Laplace, NoisyMax, Reproducible, Secure
from noiseproof.privacy.events import GaussianDpEvent, LaplaceDpEvent, PureDpEvent

KINDS = {
    "reproducible": lambda seed: Reproducible(seed),
    "secure": lambda seed: Secure._for_test(seed.to_bytes(32, "little")),
}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


def test_events_say_what_was_released():
    assert Gaussian(sensitivity=3.0, sigma=1.5).event == GaussianDpEvent(1.5)
    assert Laplace(sensitivity=3.0, epsilon=0.5).event == LaplaceDpEvent(2.0)
    assert Exponential(sensitivity=3.0, epsilon=0.5).event == PureDpEvent(0.5, bounded_range=True)
    assert NoisyMax(sensitivity=3.0, epsilon=0.5, neighbours="replace-one").event == PureDpEvent(0.5, "replace-one")


def test_gaussian_noise_is_sigma_sensitivities(make):
    # Kolmogorov-Smirnov here and below: a false alarm once in 10^6.
    value = torch.linspace(-5, 5, 200_000, dtype=torch.float64)
    noise = Gaussian(sensitivity=3.0, sigma=1.5).release(value, make(1)) - value
    assert stats.kstest(noise.numpy() / 4.5, "norm").pvalue > 1e-6


def test_laplace_noise_is_sensitivity_over_epsilon(make):
    value = torch.linspace(-5, 5, 200_000, dtype=torch.float64)
    noise = Laplace(sensitivity=3.0, epsilon=0.5).release(value, make(2)) - value
    assert stats.kstest(noise.numpy() / 6, "laplace").pvalue > 1e-6


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.integers(0, 10**8))
def test_the_scale_covers_the_lattice_it_is_on(sensitivity, multiplier, coordinates):
    rng = Secure()
    mechanisms = (Gaussian(sensitivity, multiplier), 2), (Laplace(sensitivity, 1 / multiplier), 1)
    for mechanism, norm in mechanisms:
        growth = multiplier * coordinates ** (1 / norm) * 2.0**-30
        if growth > 0.5:
            continue  # near where it is refused
        scale = mechanism.scale(rng, coordinates)
        needed = multiplier * (sensitivity + rng.rounding(scale, coordinates, norm))
        assert needed * (1 - 1e-12) <= scale <= multiplier * sensitivity * (1 + growth + 1e-12)
        assert mechanism.scale(Reproducible(0), coordinates) == pytest.approx(multiplier * sensitivity, rel=1e-15)


def test_more_coordinates_than_the_lattice_can_hide_are_refused():
    with pytest.raises(SettingError, match="too many"):
        Laplace(sensitivity=1.0, epsilon=1e-3).scale(Secure(), 10**9)


def test_releases_can_be_made_in_place(make):
    value = torch.ones(100)
    assert Gaussian(1.0, 1.0).release(value, make(3), out=value) is value
    assert Laplace(1.0, 1.0).release(value, make(3), out=value) is value
    assert not torch.equal(value, torch.ones(100))


@pytest.mark.parametrize("monotone", [False, True])
def test_exponential_frequencies_are_exponential_in_the_score(make, monotone):
    # Chi-square: a false alarm once in 10^6.
    scores = torch.tensor([0.0, 1.0, 4.0, 2.5, -3.0])
    mechanism = Exponential(sensitivity=2.0, epsilon=1.2, monotone=monotone)
    chosen = mechanism.release(scores.expand(300_000, 5), make(4))
    law = special.softmax(scores.double().numpy() * 1.2 / (2.0 if monotone else 4.0))
    assert stats.chisquare(np.bincount(chosen.numpy(), minlength=5), 300_000 * law).pvalue > 1e-6


class Spy(Reproducible):
    """Keeps the logits that it is asked to choose by."""

    def choose(self, logits):
        self.logits = logits
        return super().choose(logits)


def probabilities(logits):
    with mpmath.workprec(200):
        weights = [mpmath.exp(float(logit)) for logit in logits]
        return [weight / sum(weights) for weight in weights]


@settings(deadline=None, derandomize=True, max_examples=150)
@given(
    st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=6),
    st.lists(st.floats(0, 1), min_size=6, max_size=6),
    st.floats(1e-6, 20),
    st.floats(1e-9, 1e9),
    st.booleans(),
)
def test_exponential_choices_are_epsilon_dp_in_the_numbers_really_computed(
    scores, moves, epsilon, sensitivity, monotone
):
    rng = Spy(0)
    mechanism = Exponential(sensitivity, epsilon, monotone=monotone)
    neighbour = []
    for score, move in zip(scores, moves, strict=False):
        moved = score + sensitivity * (move if monotone else 2 * move - 1)
        # A float sum may be further away than it should be: then the score stays.
        difference = Fraction(moved) - Fraction(score)
        neighbour.append(moved if abs(difference) <= sensitivity else score)
    worlds = []
    for world in (scores, neighbour):
        mechanism.release(torch.tensor(world, dtype=torch.float64), rng)
        worlds.append(probabilities(rng.logits))
    losses = [mpmath.log(a / b) for a, b in zip(*worlds, strict=True)]
    assert max(abs(loss) for loss in losses) <= epsilon
    assert max(losses) - min(losses) <= epsilon


def test_exponential_choices_are_epsilon_dp_where_rounding_does_its_worst():
    # Scores lie halfway between multiples of 2^-30, and the sensitivity is an odd number of these: ties, which go to even
    # multiples, move neighbours apart by a whole step more than they are. And the scores are so different that the
    # logits' own rounding shows.
    rng, epsilon, step = Spy(0), 9.7, 2.0**-30
    sensitivity = 1 + step
    mechanism = Exponential(sensitivity, epsilon)
    for far in range(20, 180, 3):
        worlds = []
        for move in (0.0, sensitivity):
            scores = [-far - 1.5 * step + move, 1.5 * step - move]
            mechanism.release(torch.tensor(scores, dtype=torch.float64), rng)
            worlds.append(probabilities(rng.logits))
        with mpmath.workprec(200):
            losses = [mpmath.log(a / b) for a, b in zip(*worlds, strict=True)]
        assert epsilon - 1e-6 < max(abs(loss) for loss in losses) <= epsilon


@pytest.mark.parametrize("monotone", [False, True])
def test_noisy_max_wins_as_often_as_two_laplace_variables_say(make, monotone):
    # P(a + X > b + Y) = 1 - (1/2 + d/4) exp(-d) for d = (a - b) / scale > 0. Binomial: a false alarm once in 10^6.
    scale = 1.5 / 0.8 * (1 if monotone else 2)
    mechanism = NoisyMax(sensitivity=1.5, epsilon=0.8, monotone=monotone)
    chosen = mechanism.release(torch.tensor([0.0, 2.0]).expand(200_000, 2), make(5))
    distance = 2.0 / scale
    law = 1 - (0.5 + distance / 4) * math.exp(-distance)
    assert stats.binomtest(int(chosen.sum()), 200_000, law).pvalue > 1e-6


def test_noisy_max_treats_equal_scores_alike(make):
    chosen = NoisyMax(sensitivity=1.0, epsilon=1.0).release(torch.zeros(60_000, 6), make(6))
    assert stats.chisquare(np.bincount(chosen.numpy(), minlength=6)).pvalue > 1e-6


def stopping_law(counts, threshold, scales):
    """P(the scan stops at each place, or nowhere), as a sum over the threshold's noise."""
    noise = np.linspace(-30, 30, 12_001) * scales[0]
    still = np.exp(-np.abs(noise) / scales[0])
    still, law = still / still.sum(), []
    for count in counts:
        distance = (threshold + noise - count) / scales[1]
        reached = np.where(distance > 0, np.exp(-np.abs(distance)) / 2, 1 - np.exp(-np.abs(distance)) / 2)
        law.append(float((still * reached).sum()))
        still = still * (1 - reached)
    return np.array([*law, float(still.sum())])


COUNTS = np.array([0.0, 1.0, 5.0, 6.0, 6.0, 20.0])


@pytest.mark.parametrize("monotone", [False, True])
def test_a_scan_stops_where_its_law_says(make, monotone):
    law = stopping_law(COUNTS, 6.0, (2 / 0.7, (2 if monotone else 4) / 0.7))
    found = AboveThreshold(1.0, 0.7, monotone=monotone).release(
        torch.from_numpy(COUNTS).expand(50_000, 6), 6.0, make(9)
    )
    # Chi-squared: a false alarm once in 10^6.
    assert stats.chisquare(np.bincount(found.numpy(), minlength=7), law / law.sum() * 50_000).pvalue > 1e-6


@pytest.mark.parametrize("monotone", [False, True])
def test_one_record_moves_the_law_of_a_scan_by_no_more_than_epsilon(monotone):
    epsilon = 0.7
    scales = (2 / epsilon, (2 if monotone else 4) / epsilon)
    alike, late = np.full(30, 6.0), np.r_[np.full(40, 5.0), 6.0]
    moves = [
        *((COUNTS, move) for move in ([0, 0, 0, 1, 1, 1], [1] * 6, [0, 0, 0, 0, 0, 1])),
        *((alike, move) for move in (np.ones(30), np.arange(30) >= 20)),
        *((late, move) for move in (np.r_[np.ones(40), 0.0], np.ones(41), np.arange(41) >= 40)),
        *([] if monotone else [(COUNTS, [-1, -1, 1, 1, -1, 0]), (late, np.r_[np.ones(40), -1.0])]),
    ]
    losses = [
        np.abs(np.log(stopping_law(start, 6.0, scales) / stopping_law(start + np.array(move), 6.0, scales))).max()
        for start, move in moves
    ]
    # That it is nearly reached shows that the noise is no larger than it must be.
    assert 0.6 * epsilon < max(losses) <= epsilon + 1e-4


def test_a_scan_that_reaches_nothing_says_so(make):
    found = AboveThreshold(1.0, 1.0).release(torch.zeros(3, 4), 1e6, make(10))
    assert found.tolist() == [4, 4, 4]
    assert AboveThreshold(1.0, 1.0).release(torch.full((3, 4), 1e6), 0.0, make(10)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("mechanism", [Exponential, NoisyMax])
def test_any_number_of_rows_is_served(make, mechanism):
    choice = mechanism(sensitivity=1.0, epsilon=1.0)
    assert choice.release(torch.zeros(4, 5, 3), make(7)).shape == (4, 5)
    assert choice.release(torch.zeros(3), make(7)).shape == ()
    assert choice.release(torch.zeros(0, 3), make(7)).shape == (0,)
    assert choice.release(torch.zeros(2, 1), make(7)).tolist() == [0, 0]
    assert choice.release(torch.tensor([[0, 10**6]]), make(7)).tolist() == [1]  # counts are scores


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_settings_without_a_guarantee_are_refused(bad):
    for mechanism in (Gaussian, Laplace, Exponential, NoisyMax):
        with pytest.raises(SettingError):
            mechanism(bad, 1.0)
        with pytest.raises(SettingError):
            mechanism(1.0, bad)


@pytest.mark.parametrize("mechanism", [Exponential, NoisyMax])
def test_choices_without_a_guarantee_are_refused(mechanism):
    with pytest.raises(SettingError, match="at least"):
        mechanism(1.0, 1e-10)
    with pytest.raises(SettingError, match="monotone"):
        mechanism(1.0, 1.0, neighbours="replace-one", monotone=True)
    with pytest.raises(SettingError, match="neighbours"):
        mechanism(1.0, 1.0, neighbours="next door")


def test_values_that_are_no_numbers_are_refused_without_being_told(make):
    value = torch.tensor([271828.0, math.nan])
    for mechanism in (Gaussian(1.0, 1.0), Laplace(1.0, 1.0), Exponential(1.0, 1.0), NoisyMax(1.0, 1.0)):
        with pytest.raises(NoiseproofError, match="NaN") as error:
            mechanism.release(value, make(8))
        assert "271828" not in str(error.value)
    for mechanism in (Exponential(1.0, 1.0), NoisyMax(1.0, 1.0)):
        with pytest.raises(NoiseproofError, match="nothing to choose"):
            mechanism.release(torch.empty(3, 0), make(8))
