"""Private selection costs what the theorems say, which a calculation by brute force never exceeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import chisquare

from noiseproof.errors import BudgetError, NoiseproofError, SettingError, UnsupportedError
from noiseproof.privacy import Budget, Candidate, EventLog, Filter, Reproducible, Secure, accountants, renyi, select
from noiseproof.privacy.events import (
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    PureDpEvent,
    SelectionDpEvent,
    event_from_json,
    event_to_json,
    sampled_gaussian,
)
from noiseproof.privacy.selection import law_of_runs
from noiseproof.privacy.steps import SelectionStep, Step, read

STOPPINGS = ["geometric", "logarithmic", "poisson"]
ORDERS = np.array([1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0])


def selected(masses, runs, stopping):
    """The law of the best of a random number of draws, and last the chance of no draw, by the draws' masses in order."""
    least, logits = law_of_runs(runs, stopping)
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    numbers = least + np.arange(len(weights))
    upto = np.cumsum(masses)
    # The best is a result if it comes up and all draws are no better: weights times upto^k - (upto - mass)^k.
    found = [weights @ np.where(numbers > 0, masses[0] ** np.maximum(numbers, 1), 0.0)]
    for most, mass in zip(upto[1:], masses[1:], strict=True):
        found.append(weights @ (most**numbers * -np.expm1(numbers * np.log1p(-mass / most))))
    return np.array([*found, weights[0] if least == 0 else 0.0])


def gaussian_masses(edges, mean, sigma):
    z = np.concatenate([[-np.inf], (edges - mean) / sigma, [np.inf]])
    return np.where(z[1:] + z[:-1] < 0, ndtr(z[1:]) - ndtr(z[:-1]), ndtr(-z[:-1]) - ndtr(-z[1:]))


def divergence(p, q, order):
    inside = (p > 0) | (q > 0)
    with np.errstate(divide="ignore"):
        logs = order * np.log(p[inside]) + (1 - order) * np.log(q[inside])
    return float(np.logaddexp.reduce(logs)) / (order - 1)


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_a_choice_costs_a_person_of_several_sampled_records_more_than_one_run(neighbours):
    run = sampled_gaussian(0.05, 2.0, 20, group_size=5)
    once = accountants.epsilon(run, 1e-5, neighbours=neighbours).epsilon
    for stopping in STOPPINGS:
        chosen = accountants.epsilon(SelectionDpEvent([run], 3.0, stopping), 1e-5, neighbours=neighbours).epsilon
        assert chosen > once


@pytest.mark.parametrize("stopping", STOPPINGS)
@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.floats(0.01, 1), min_size=2, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.floats(0.05, 2),
    st.floats(1.5, 20),
)
def test_no_pure_mechanism_exceeds_the_bound(stopping, weights, raised, epsilon, runs):
    # Neighbours whose likelihoods differ by e^epsilon at most, and results ordered by their score.
    base = np.array(weights)
    tilted = base * np.where(raised[: len(base)], math.exp(epsilon / 2), math.exp(-epsilon / 2))
    p, q = (selected(w / w.sum(), runs, stopping) for w in (base, tilted))
    # Normalising moves all by one factor more; the ratios that result lie in an interval of length epsilon.
    ratios = np.log((tilted / tilted.sum()) / (base / base.sum()))
    step = SelectionStep(
        "selection", runs, candidates=((Step("pure", float(np.abs(ratios).max())),),), stopping=stopping
    )
    bound = renyi.curve([step], ORDERS)
    for order, most in zip(ORDERS, bound, strict=True):
        assert max(divergence(p, q, order), divergence(q, p, order)) <= most + 1e-9
    assert np.abs(np.log(p[p > 0]) - np.log(q[q > 0])).max() <= step.pure_epsilon + 1e-9


@pytest.mark.parametrize("stopping", STOPPINGS)
@pytest.mark.parametrize(("sigma", "runs"), [(1.0, 2.0), (2.0, 10.0), (6.0, 30.0), (20.0, 5.0)])
def test_the_best_of_noisy_gaussians_does_not_exceed_the_bound(stopping, sigma, runs):
    edges = np.linspace(-6 * sigma, 1 + 6 * sigma, 60)
    p, q = (selected(gaussian_masses(edges, mean, sigma), runs, stopping) for mean in (0, 1))
    event = SelectionDpEvent([GaussianDpEvent(sigma)], runs, stopping)
    bound = renyi.curve(read(event, "add-or-remove"), ORDERS)
    once = renyi.curve([Step("gaussian", sigma)], ORDERS)
    for order, most, single in zip(ORDERS, bound, once, strict=True):
        found = max(divergence(p, q, order), divergence(q, p, order))
        assert found <= most
        assert most >= single


def test_choosing_without_paying_would_exceed_what_one_run_costs():
    # The brute-force calculation is not idle: the best of many runs does leak more than one of them.
    edges = np.linspace(-6, 7, 200)
    p, q = (selected(gaussian_masses(edges, mean, 1.0), 30.0, "poisson") for mean in (0, 1))
    assert divergence(p, q, 2.0) > 1.2 * float(renyi.curve([Step("gaussian", 1.0)], [2.0])[0])


@pytest.mark.parametrize("stopping", STOPPINGS)
@pytest.mark.parametrize("runs", [1.5, 8.0, 100.0])
def test_the_number_of_runs_has_the_mean_that_is_accounted_for(stopping, runs):
    least, logits = law_of_runs(runs, stopping)
    weights = np.exp(logits - logits.max())
    assert (weights / weights.sum()) @ (least + np.arange(len(weights))) == pytest.approx(runs, rel=1e-9)
    assert least == (stopping == "poisson") * -1 + 1
    if stopping == "geometric":
        assert np.diff(logits) == pytest.approx(math.log1p(-1 / runs))


def test_a_pure_selection_is_purely_private():
    event = SelectionDpEvent([PureDpEvent(0.1), PureDpEvent(0.05)], 8.0)
    assert accountants.epsilon(event, 0.0).epsilon == pytest.approx(0.3)
    assert accountants.epsilon(event, 0.0, neighbours="replace-one").epsilon == pytest.approx(0.6)
    fewer = SelectionDpEvent([PureDpEvent(0.1)], 8.0, "logarithmic")
    assert accountants.epsilon(fewer, 0.0).epsilon == pytest.approx(0.2)


def test_the_worst_candidate_counts_and_free_ones_do_not():
    dear, cheap = sampled_gaussian(0.01, 1.0, 500), sampled_gaussian(0.01, 2.0, 500)
    found = accountants.epsilon(SelectionDpEvent([cheap, dear, NoOpDpEvent()], 5.0), 1e-5)
    assert found.epsilon == accountants.epsilon(SelectionDpEvent([dear], 5.0), 1e-5).epsilon
    assert found.accountant == "rdp"
    assert "private selection" in found.note
    alone = accountants.epsilon(dear, 1e-5).epsilon
    assert alone < found.epsilon < 3 * alone
    assert accountants.epsilon(SelectionDpEvent([NoOpDpEvent()], 5.0), 1e-5).epsilon == 0
    assert accountants.epsilon(SelectionDpEvent([dear, NonPrivateDpEvent()], 5.0), 1e-5).epsilon == math.inf


def test_what_has_no_theorem_is_infinite_or_refused_never_too_small():
    event = SelectionDpEvent([GaussianDpEvent(5.0)], 5.0)
    for name in ("zcdp", "gdp", "naive", "advanced"):
        assert accountants.epsilon(event, 1e-5, accountant=name).epsilon == math.inf
        assert accountants.delta(event, 1.0, accountant=name).delta == pytest.approx(1)
    with pytest.raises(UnsupportedError, match="SelectionDpEvent"):
        accountants.epsilon(PoissonSampledDpEvent(0.1, event), 1e-5)
    with pytest.raises(BudgetError):
        Filter(Budget(3.0), "zcdp").spend(event)
    budget = Filter(Budget(8.0), "rdp", planned=event)
    assert budget.spend(event).epsilon <= 8.0


@pytest.mark.parametrize(
    ("events", "runs", "stopping", "word"),
    [
        ([], 5.0, "geometric", "candidate"),
        ([GaussianDpEvent(1.0)], 1.0, "geometric", "runs"),
        ([GaussianDpEvent(1.0)], math.nan, "poisson", "runs"),
        ([GaussianDpEvent(1.0)], 5.0, "always", "stopping"),
    ],
)
def test_impossible_selections_are_refused(events, runs, stopping, word):
    with pytest.raises(SettingError, match=word):
        SelectionDpEvent(events, runs, stopping)


def test_a_selection_is_written_to_a_journal_and_read_again():
    event = SelectionDpEvent([sampled_gaussian(0.1, 2.0, 3), PureDpEvent(0.1)], 5.0, "logarithmic")
    assert event_from_json(event_to_json(event)) == event


@pytest.mark.parametrize("stopping", STOPPINGS)
def test_the_best_run_is_chosen_as_often_as_it_should_be(stopping):
    candidates = [Candidate(lambda rng, at=at: (at, at), PureDpEvent(0.1)) for at in range(4)]
    expected = selected(np.full(4, 0.25), 3.0, stopping)
    counts = np.zeros(5)
    rng = Reproducible(5)
    for number in range(2000):
        found = select(candidates, rng.spawn(number), EventLog(), runs=3.0, stopping=stopping)
        counts[4 if found is None else found.index] += 1
    possible = expected > 0
    # A false alarm once in a million.
    assert chisquare(counts[possible], 2000 * expected[possible] / expected[possible].sum()).pvalue > 1e-6
    assert (stopping == "poisson") == bool(counts[4])


def test_a_selection_is_paid_for_before_the_first_run_and_names_what_won():
    log, seen = EventLog(), []

    def run(rng):
        seen.append(log.event)
        return "weights", float(rng.uniform(()))

    found = select([Candidate(run, GaussianDpEvent(4.0))], Secure(), log, runs=4.0)
    event = SelectionDpEvent([GaussianDpEvent(4.0)], 4.0)
    assert log.event == event
    assert set(seen) == {event}
    assert (found.index, found.result) == (0, "weights")


def test_a_score_that_is_no_number_is_refused():
    with pytest.raises(NoiseproofError, match="NaN"):
        select([Candidate(lambda rng: (None, math.nan), PureDpEvent(0.1))], Reproducible(0), EventLog(), runs=3.0)


def test_a_private_choice_finds_the_better_candidate():
    def candidate(right):
        return Candidate(
            lambda rng: (right, float(rng.add_laplace(torch.tensor(float(right)), 10.0))), PureDpEvent(0.1)
        )

    found = select([candidate(300), candidate(900)], Reproducible(1), EventLog(), runs=20.0)
    assert found.result == 900
