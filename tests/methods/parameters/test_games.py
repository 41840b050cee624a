"""The audit refutes the published methods' claim for a model, by du and by the number of draws, and never shard-mean."""

from __future__ import annotations

import pytest

from noiseproof.audits import audit
from noiseproof.methods.parameters import DpPg, DpPgp, ShardMean, ShardPg, training
from noiseproof.privacy import Budget, Proof


def bound(game, trials=200):
    return audit(game, trials=trials, timeout=None, confidence=1 - 1e-6)


@pytest.mark.parametrize("method", [DpPg(), DpPgp(), DpPgp(as_printed=True)], ids=lambda m: m.name)
def test_the_claim_for_a_model_is_refuted(method):
    result = bound(method.game(Budget(1.0)))
    assert (result.unit, result.neighbours) == ("model", "add-or-remove")
    assert result.claimed.epsilon == 1.0
    assert result.epsilon > 1.5
    assert result.verdict == "refuted"


def test_one_parameter_is_enough_to_refute_the_papers_du():
    """A single draw: only the sensitivity can be at fault."""
    result = bound(DpPg().game(Budget(1.0), parameters=1), trials=400)
    assert result.verdict == "refuted"


def test_with_the_true_du_one_parameter_keeps_the_claim_and_400_do_not():
    """With du mended, only the maximum over parameters is at fault: budgets of draws from the same models add up."""
    method = DpPg(sensitivity="true")
    assert bound(method.game(Budget(1.0), parameters=1), trials=2000).epsilon <= 1.0
    assert bound(method.game(Budget(1.0), parameters=400), trials=400).verdict == "refuted"


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("epsilon", [0.5, 4.0])
@pytest.mark.parametrize("method", [ShardMean(), ShardPg()], ids=lambda m: m.name)
def test_the_siblings_stand_at_every_budget(method, epsilon, neighbours):
    result = bound(method.game(Budget(epsilon, 1e-5, neighbours)), trials=2000)
    assert result.unit == "record"
    assert result.proven.epsilon <= epsilon
    assert result.epsilon <= result.proven.epsilon
    assert result.verdict == "proven"


def test_shard_means_game_comes_near_its_proof():
    """Else that it is never refuted would say little."""
    assert bound(ShardMean().game(Budget(4.0)), trials=20_000).epsilon > 3.5


@pytest.mark.parametrize(("epsilon", "share"), [(1.0, 0.3), (4.0, 0.5)])
def test_shard_pgs_game_shows_much_of_its_proof(epsilon, share):
    """Draws of three values are counted, not fitted by a normal curve: more trials would show more."""
    assert bound(ShardPg().game(Budget(epsilon)), trials=50_000).epsilon > share * epsilon


def test_draws_that_each_spend_the_whole_budget_are_caught(monkeypatch):
    """The game draws two parameters, so that it sees how their draws are composed."""
    honest = ShardPg.mechanism
    monkeypatch.setattr(ShardPg, "mechanism", lambda self, budget, shards, parameters: honest(self, budget, shards, 1))
    monkeypatch.setattr(
        ShardPg, "proof", lambda self, *_: Proof(epsilon=4.0, delta=0.0, accountant="of one of two draws")
    )
    assert bound(ShardPg().game(Budget(4.0)), trials=50_000).contradicts_proof


@pytest.mark.parametrize("method", [ShardMean(), ShardPg()], ids=lambda m: m.name)
def test_networks_that_learn_from_each_others_shards_are_caught(method, monkeypatch):
    """The games train: here every network moves as the last one does."""
    honest = training._train
    monkeypatch.setattr(training, "_train", lambda *arguments: honest(*arguments)[-1:].expand_as(arguments[-1][1]))
    result = bound(method.game(Budget(1.0)), trials=20_000)
    assert result.contradicts_proof
