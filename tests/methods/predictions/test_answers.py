"""Answers with a proof: their losses are exact, their noise is calibrated, and what they cost together fits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError
from noiseproof.methods.predictions.answers import (
    ExponentialAnswer,
    GaussianAnswer,
    LaplaceAnswer,
    ScoreChange,
    VoteAnswer,
    calibrate,
    from_json,
    least_noise,
    onto_simplex,
)
from noiseproof.privacy import Budget, Reproducible, Secure, accountants
from noiseproof.privacy.events import SelfComposedDpEvent

RELATIONS = ["add-or-remove", "replace-one"]
CHANGES = {near: ScoreChange(l1=2.0, l2=math.sqrt(2), span=2.0, neighbours=near) for near in RELATIONS}


def histograms(voters: int, classes: int):
    for cuts in itertools.combinations(range(voters + classes - 1), classes - 1):
        edges = (-1, *cuts, voters + classes - 1)
        yield tuple(b - a - 1 for a, b in itertools.pairwise(edges))


@pytest.mark.parametrize(("voters", "classes"), [(1, 2), (1, 5), (2, 2), (2, 4), (3, 3), (5, 2), (5, 3), (6, 4)])
@pytest.mark.parametrize("amount", [0.05, 0.7, 3.0])
def test_the_loss_of_a_vote_is_the_largest_over_all_neighbouring_counts(voters, classes, amount):
    largest = 0.0
    for counts in histograms(voters, classes):
        before = torch.log_softmax(amount * torch.tensor(counts, dtype=torch.float64), 0)
        for a, b in itertools.permutations(range(classes), 2):
            if counts[a]:
                moved = list(counts)
                moved[a], moved[b] = moved[a] - 1, moved[b] + 1
                after = torch.log_softmax(amount * torch.tensor(moved, dtype=torch.float64), 0)
                largest = max(largest, float((before - after).abs().max()))
    assert VoteAnswer("replace-one", amount, voters, classes).loss == pytest.approx(largest, abs=1e-9)


def test_one_voter_is_randomised_response():
    answer = calibrate(lambda amount: VoteAnswer("add-or-remove", amount, 1, 30), Budget(5.0, 0.0))
    assert answer.amount == pytest.approx(5.0, rel=2e-4)
    kept = math.exp(answer.amount) / (math.exp(answer.amount) + 29)
    counts = torch.zeros(100_000, 30, dtype=torch.float64)
    counts[:, 7] = 1
    share = float(answer.noised(counts, Reproducible(0))[:, 7].mean())
    assert abs(share - kept) < 5 * math.sqrt(kept * (1 - kept) / 100_000)  # one false alarm in a million


def test_a_vote_s_loss_does_not_overflow():
    assert VoteAnswer("replace-one", 5.0, 1000, 10).loss == pytest.approx(10.0, rel=1e-6)


def every_answer(near: str):
    return [
        GaussianAnswer(near, 0.3, 1.5),
        LaplaceAnswer(near, 0.3, 2.0),
        ExponentialAnswer(near, 0.3, 2.0),
        VoteAnswer(near, 0.3, 7, 3),
    ]


@pytest.mark.parametrize("near", RELATIONS)
@pytest.mark.parametrize("index", range(4))
def test_each_event_alone_covers_the_cost(near, index):
    """What a ledger would charge by an event is not less than what the card proves."""
    answer = every_answer(near)[index]
    for answers in (1, 50):
        cost, _ = answer.cost(answers, 1e-5)
        for event in answer.events:
            composed = SelfComposedDpEvent(event, answers)
            spent = accountants.epsilon(composed, 1e-5, accountant="rdp", neighbours=near).epsilon
            # A single answer is charged its plain epsilon, from which delta could take a few parts in 100,000.
            assert cost <= spent * (1 + 1e-4)


@settings(deadline=None, derandomize=True, max_examples=12)
@given(
    st.floats(0.05, 20),
    st.sampled_from([1, 10, 1000]),
    st.sampled_from(RELATIONS),
    st.sampled_from(["label", "probabilities"]),
)
def test_calibrated_answers_fit_into_their_budget_and_use_it(epsilon, queries, near, kind):
    budget = Budget(epsilon, 1e-5, near, queries)
    answer = least_noise(CHANGES[near], kind, budget)
    proof = answer.proof(budget)
    assert 0.999 * epsilon < proof.epsilon <= epsilon
    more = Budget(epsilon, 1e-5, near, 4 * queries)
    assert least_noise(CHANGES[near], kind, more).spread > answer.spread


def test_few_answers_are_best_with_laplace_noise_and_many_with_gaussian():
    few, many = (
        least_noise(CHANGES["replace-one"], "probabilities", Budget(1.0, 1e-5, "replace-one", q)) for q in (1, 1000)
    )
    assert isinstance(few, LaplaceAnswer)
    assert isinstance(many, GaussianAnswer)
    assert isinstance(
        least_noise(CHANGES["replace-one"], "probabilities", Budget(1.0, 0.0, "replace-one", 1000)), LaplaceAnswer
    )


def test_gaussian_noise_without_a_delta_is_refused():
    with pytest.raises(SettingError, match="delta"):
        calibrate(lambda amount: GaussianAnswer("add-or-remove", amount, 1.0), Budget(1.0, 0.0))


def test_moves_known_for_other_neighbours_are_refused():
    with pytest.raises(SettingError, match="replace-one"):
        least_noise(CHANGES["replace-one"], "label", Budget(1.0))


def test_secure_noise_is_no_smaller_than_what_rounding_needs():
    scores = torch.zeros(1000, 3, dtype=torch.float64)
    for answer in every_answer("add-or-remove"):
        noised = answer.noised(scores, Secure._for_test(bytes(32)))
        assert noised.shape == scores.shape
        assert torch.isfinite(noised).all()


@pytest.mark.parametrize("index", range(4))
def test_an_answer_is_the_same_after_json(index):
    answer = every_answer("replace-one")[index]
    assert from_json(answer.to_json()) == answer


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
def test_the_projection_is_the_nearest_probability_vector(values, other):
    scores = torch.tensor([values], dtype=torch.float64)
    nearest = onto_simplex(scores)
    assert float(nearest.sum()) == pytest.approx(1)
    assert float(nearest.min()) >= 0
    some = torch.tensor([other[: len(values)]], dtype=torch.float64)
    some /= some.sum()
    assert float((scores - nearest).norm()) <= float((scores - some).norm()) + 1e-9
    torch.testing.assert_close(onto_simplex(some), some)
