"""An audit: which estimator it takes, what its result says, and what it says of claims and proofs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from noiseproof.audits import AuditError, audit
from noiseproof.errors import NoiseproofError
from noiseproof.privacy import Audit, Card, Claim, Game, Proof
from tests.audits.mechanisms import gaussian_game, laplace_game


def revealing(**promises):
    """A game in which the worlds can be told apart at sight."""

    def play(world, trials, generator):
        return torch.full((trials,), float(world), dtype=torch.float64)

    return Game("revealing", play, "add-or-remove", 1e-5, **promises)


def claim(epsilon, delta=1e-5):
    return Claim(epsilon=epsilon, delta=delta, source="somebody")


def proof(epsilon, delta=1e-5):
    return Proof(epsilon=epsilon, delta=delta, accountant="somebody's")


def test_a_claim_below_the_bound_is_refuted_and_one_above_it_is_not():
    result = audit(revealing(claimed=claim(1.0)), trials=200)
    assert result.epsilon > 3
    assert result.verdict == "refuted"
    assert audit(revealing(claimed=claim(100.0)), trials=200).verdict == "nothing proven"
    assert audit(revealing(), trials=200).verdict == "nothing proven"


def test_a_proof_below_the_bound_is_contradicted():
    broken = audit(revealing(claimed=claim(1.0), proven=proof(1.0)), trials=200)
    assert broken.contradicts_proof
    assert broken.verdict == "refuted"
    sound = audit(gaussian_game(1.0), trials=200)
    assert not sound.contradicts_proof
    assert sound.verdict == "proven"
    weaker = audit(replace(gaussian_game(1.0), claimed=claim(0.9)), trials=200)
    assert weaker.verdict == "weaker than claimed"


def test_the_gaussian_fit_is_used_where_the_game_says_that_scores_are_normal_and_nowhere_else():
    assert audit(gaussian_game(1.0), trials=100).bound.estimator == "gaussian"
    assert audit(laplace_game(1.0, delta=1e-5), trials=100).bound.estimator == "counting"
    assert audit(replace(gaussian_game(1.0), gaussian=False), trials=100).bound.estimator == "counting"
    pure = replace(gaussian_game(1.0), delta=0.0, claimed=None, proven=None)
    assert audit(pure, trials=100).bound.estimator == "counting"


def test_infinite_scores_are_not_normal_whatever_the_game_says():
    certain = replace(revealing(), play=lambda world, trials, _: torch.full((trials,), float("inf") if world else 0.0))
    assert audit(replace(certain, gaussian=True), trials=100).bound.estimator == "counting"


def test_the_result_becomes_a_cards_audit_and_plain_json():
    result = audit(revealing(claimed=claim(1.0), proven=proof(2.0)), trials=100, confidence=0.9, seed=3)
    assert result.audited == Audit(epsilon=result.epsilon, delta=1e-5, confidence=0.9, trials=100, game="revealing")
    document = json.loads(json.dumps(result.to_json()))
    assert document["claimed"]["epsilon"] == 1.0
    assert document["proven"]["epsilon"] == 2.0
    assert document["audited"]["epsilon"] == result.epsilon
    assert document["verdict"] == "refuted"
    assert (document["estimator"], document["seed"], document["contradicts_proof"]) == ("counting", 3, True)
    assert json.loads(json.dumps(audit(revealing(), trials=100).to_json()))["claimed"] is None


def test_a_card_with_the_audit_has_the_results_verdict():
    result = audit(revealing(claimed=claim(1.0)), trials=100)
    card = Card(
        method="m", place="none", neighbours="add-or-remove", randomness="secure", claimed=claim(1.0), why="because"
    )
    assert card.with_audit(result.audited).verdict == result.verdict == "refuted"


def test_the_same_seed_gives_the_same_result_and_another_seed_another():
    first, again, other = (audit(laplace_game(1.0), trials=500, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.bound != other.bound


def test_a_failing_mechanism_gives_an_error_and_no_result():
    def play(world, trials, generator):
        raise RuntimeError("private")

    with pytest.raises(AuditError, match="RuntimeError") as caught:
        audit(replace(revealing(), play=play), trials=100)
    assert isinstance(caught.value, NoiseproofError)
    assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    "promises",
    [
        {"claimed": claim(1.0, delta=1e-3)},
        {"proven": proof(1.0, delta=1e-3)},
        {"claimed": Claim(epsilon=1, delta=0, source="s", neighbours="replace-one")},
        {"claimed": Claim(epsilon=1, delta=0, source="s", unit="model")},
    ],
)
def test_a_game_cannot_be_set_against_a_promise_that_it_says_nothing_about(promises):
    with pytest.raises(ValueError, match="revealing"):
        revealing(**promises)
