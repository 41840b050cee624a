"""Persons: every proven method bounds what one person with several records does, and its card says so."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from noiseproof import methods
from noiseproof.audits import audit, gaussian_bound, play
from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import UnsupportedError
from noiseproof.methods.common import clipped_sum_game, draw_shards
from noiseproof.methods.gradients.preconditioner import side_moments
from noiseproof.methods.inputs.functional import Functional
from noiseproof.methods.predictions.logits import Logits
from noiseproof.methods.predictions.votes import Votes
from noiseproof.privacy import Budget, Reproducible
from noiseproof.run.training import train

BY_PERSON = [name for name, kind in methods.registry().items() if "person" in kind.units]
OTHERS = [name for name in methods.registry() if name not in BY_PERSON]
RELATIONS = ("add-or-remove", "replace-one")
WHOLE = ("dp-gan", "zero-gan")
"""Methods whose games train afresh in every trial."""


def quick(name: str) -> dict[str, object]:
    """Settings that make a training short, those of them that the method has."""
    short = {"epochs": 1, "steps": 3, "generator_steps": 2, "components": 8, "models": 2, "relevance_share": 0.2}
    short |= {"generated": 30, "width": 30, "relevance_epochs": 1, "iterations": 3}
    return {field.name: short[field.name] for field in fields(methods.get(name)) if field.name in short}


def made(persons: int = 150, most: int = 9, seed: int = 0) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, most + 1, (persons,), generator=generator)
    groups = torch.repeat_interleave(torch.arange(persons), counts)
    labels = torch.randint(2, (len(groups),), generator=generator)
    features = (torch.rand(len(groups), 4, generator=generator) / 2 + 0.4 * labels[:, None]).clamp(0, 1)
    order = torch.randperm(len(groups), generator=generator)
    return Dataset("made", features[order], labels[order], Public((4,), ("0", "1")), groups[order])


def test_all_proven_methods_of_our_own_know_persons():
    ours = [name for name, kind in methods.registry().items() if kind.proves and kind.paper is None]
    assert [name for name in ours if name not in BY_PERSON] == []


@pytest.mark.parametrize("name", BY_PERSON)
def test_a_card_states_a_persons_epsilon_and_no_number_of_records(name):
    dataset = made()
    release = train(name, dataset, epsilon=3, seed=1, queries=3, **quick(name))
    card = release.card
    assert card.unit == card.claimed.unit == "person"
    assert card.proven is not None
    assert card.proven.epsilon <= 3.0 * (1 + 1e-9)
    assert card.ran["persons"] == 150
    assert "records" not in card.ran
    assert "for one person" in card.text
    assert not any("number of records" in text for text in card.proven.assumptions)
    document = card.to_json()
    assert str(len(dataset)) not in document


@pytest.mark.parametrize("name", OTHERS)
def test_any_other_method_refuses_persons_before_it_trains_or_says_that_it_promises_them_nothing(name, monkeypatch):
    kind = methods.get(name)
    with pytest.raises(UnsupportedError, match="nothing for a person"):
        methods.build(name).person_game(Budget(1.0))
    if kind.paper is None and kind.place != "none":
        monkeypatch.setattr(kind, "fit", None)  # nothing is trained, and so nothing spent
        with pytest.raises(UnsupportedError, match="person's several"):
            train(name, made(), epsilon=1, seed=0)
        return
    card = train(name, made(), epsilon=3, seed=1, **quick(name)).card
    assert card.unit in ("record", "model", "batch")
    assert any("of a person's records together it says nothing" in note for note in card.notes)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", BY_PERSON)
def test_an_audit_with_a_canary_person_does_not_refute_a_persons_epsilon(name, relation):
    """At 99.9999% confidence: a right proof fails this once in a million."""
    game = methods.build(name).person_game(Budget(2.0, 1e-5, relation))
    assert game.unit == game.claimed.unit == "person"
    found = audit(game, trials=100 if name in WHOLE else 500, seed=3, confidence=1 - 1e-6)
    assert found.audited.epsilon <= game.proven.epsilon
    assert found.verdict == "proven"


COUNTED = {"votes", "teachers", "logits", "shard-pg"}
"""Methods whose games are not Gaussian, so that counting finds less."""


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("name", [name for name in BY_PERSON if name not in COUNTED])
def test_an_audit_of_a_gaussian_mechanism_comes_near_its_proof_for_a_person(name, relation):
    """At 10,000 trials and 95% confidence, seeded; the games of dp-gan take some ten minutes each."""
    game = methods.build(name).person_game(Budget(1.0, 1e-5, relation))
    assert game.gaussian
    assert audit(game, trials=10_000, seed=7, timeout=None).epsilon > 0.6 * game.proven.epsilon


def test_an_audit_that_is_exactly_at_the_proof_exceeds_it_as_often_as_its_confidence_allows():
    """shard-mean's game attains 99.9% of its sensitivity, so that 95% bounds exceed the proof for about one seed in twenty.

    Where 5% may, 46 or more of 400 do with probability 2e-7, and none with 1e-8.
    """
    game = methods.build("shard-mean").person_game(Budget(1.0, 1e-5))
    found = [
        gaussian_bound(play(game, trials=500, seed=seed), delta=1e-5, confidence=0.95).epsilon for seed in range(400)
    ]
    assert 0 < sum(epsilon > game.proven.epsilon for epsilon in found) < 46


def test_the_record_level_mistake_is_caught():
    """DP-SGD that is not told whose records are whose: a person of five refutes its epsilon."""
    method = methods.build("dp-sgd")

    def gradients(module, sigma, rng):
        return method._private(module, sigma, sample_rate=1.0, rng=rng)

    told = clipped_sum_game("told", gradients, Budget(1.0), canaries=5)
    untold = clipped_sum_game("not told", gradients, Budget(1.0), canaries=5, grouped=False)
    assert audit(told, trials=300, seed=1).verdict == "proven"
    found = audit(untold, trials=300, seed=1, confidence=1 - 1e-6)
    assert found.verdict == "refuted"
    assert found.audited.epsilon > 2 * untold.proven.epsilon


def test_a_person_lies_in_one_shard():
    dataset = made()
    shards = draw_shards(Reproducible(2), dataset, 7)
    assert torch.cat(shards).sort().values.tolist() == list(range(len(dataset)))
    owners = [set(dataset.groups[shard].tolist()) for shard in shards]
    assert sum(map(len, owners)) == len(set().union(*owners)) == dataset.persons


def moved(dataset: Dataset, person: int) -> tuple[Dataset, Dataset]:
    """The data set, and its neighbour without that person."""
    return dataset, dataset.take((dataset.groups != person).nonzero().flatten())


def test_sums_move_by_no_more_than_one_persons_share():
    everyone, without = moved(made(), 4)
    plan = Functional().plan(everyone, Budget(1.0))
    assert float((plan.sums(everyone) - plan.sums(without)).norm()) <= 1.0
    ones = replace(everyone, groups=None)
    assert float((plan.sums(ones) - plan.sums(ones.take((everyone.groups != 4).nonzero().flatten()))).norm()) > 1.0


def test_a_persons_votes_move_a_score_by_one_at_most():
    everyone, without = moved(made(), 4)
    query = everyone.features[everyone.groups == 4][:1]
    scores = [Votes().fit(None, each, Budget(1.0), rng=Reproducible(0))._scores(query) for each in (everyone, without)]
    assert float((scores[0] - scores[1]).abs().sum()) <= 1.0 + 1e-9


def test_a_persons_records_pull_a_logit_no_further_than_one_record_may():
    everyone, without = moved(made(), 4)
    method = Logits(features="raw", regularisation=1.0)
    weights = [
        method.fit(None, each, Budget(1.0), rng=Reproducible(0))._tensors["weights"] for each in (everyone, without)
    ]
    assert float((weights[0] - weights[1]).norm()) <= method.score_change(1.0, "add-or-remove", 2).l2


def test_a_persons_statistics_are_means_over_their_records():
    records = torch.rand(3, 1, 5, generator=torch.Generator().manual_seed(1)) / 5
    mean = torch.stack([side_moments(record[None]) for record in records]).mean(0)
    torch.testing.assert_close(side_moments(records, torch.full((3,), 1 / 3).double()), mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "options", [{"person_sampling": "records", "max_records_per_person": 3}, {"person_gradient": "sum"}]
)
def test_both_ways_of_sampling_stay_within_the_budget(options):
    card = train("dp-sgd", made(), epsilon=2, seed=1, epochs=2.0, **options).card
    assert card.unit == "person"
    assert 1.5 < card.proven.epsilon <= 2.0
    assert {name: card.ran[name] for name in options} == options


def test_with_one_record_each_a_person_is_a_record():
    """The same noise and nearly the same weights, with and without persons: only the sampler's way there differs."""
    alone = replace(made(most=1), groups=torch.arange(150))
    cards = [train("dp-sgd", each, epsilon=2, seed=1, epochs=2.0).card for each in (alone, replace(alone, groups=None))]
    assert cards[0].proven.epsilon == cards[1].proven.epsilon
    assert cards[0].ran["noise_multiplier"] == cards[1].ran["noise_multiplier"]


def test_what_is_planned_depends_on_the_number_of_persons_alone():
    few, many = made(most=1), made(most=30)
    cards = [train("dp-sgd", each, epsilon=2, seed=1, epochs=2.0).card for each in (few, many)]
    assert cards[0].ran == cards[1].ran
