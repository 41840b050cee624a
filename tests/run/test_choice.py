"""A paid choice: its proof includes all trainings and scores, and its score is what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from noiseproof import methods
from noiseproof.audits import audit
from noiseproof.data import Dataset, Split, from_arrays, load
from noiseproof.data import split as split_of
from noiseproof.data.dataset import Bought
from noiseproof.errors import DataError, SettingError, UnsupportedError
from noiseproof.methods import build
from noiseproof.methods.common import proven_game, seeded_by
from noiseproof.privacy import Budget, Gaussian, Reproducible, accountants, calibration, renyi
from noiseproof.privacy.events import ComposedDpEvent, EventLog, GaussianDpEvent, LaplaceDpEvent, SelectionDpEvent
from noiseproof.privacy.steps import read
from noiseproof.releases import ModelRelease, load_bundle
from noiseproof.run import choice
from noiseproof.run.choice import choose, count_table
from noiseproof.run.training import resolve

QUICK = [("dp-sgd", {"epochs": 2}), ("dp-sgd", {"epochs": 1, "lr": 1e-6}), ("functional", {})]


@pytest.fixture(scope="module")
def cancer():
    return load("breast-cancer")


@pytest.fixture(scope="module", params=["add-or-remove", "replace-one"])
def found(request, cancer):
    return choose(QUICK, cancer, Budget(3.0, 1e-5, request.param))


def test_the_card_proves_the_budget_for_the_choice_and_not_for_one_training(found):
    card = found.release.card
    assert card.verdict == "proven"
    assert 2.9 < card.proven.epsilon <= 3
    assert card.ran["epsilon of a training"] < 2.5
    assert any("how many trainings" in one for one in card.proven.assumptions)
    ((event, count),) = found.release.event_log
    assert isinstance(event, SelectionDpEvent)
    assert count == 1
    # Somebody is trained on or scored; whom an exchange moves to the other side may be both.
    assert len(event.events) == len(QUICK) + (card.neighbours == "add-or-remove")
    again = accountants.epsilon(event, card.proven.delta, neighbours=card.neighbours).epsilon
    assert again == pytest.approx(card.proven.epsilon)


def test_what_is_written_says_the_same_and_nothing_of_how_many_runs_there_were(found, tmp_path):
    found.release.save(tmp_path / "bundle")
    read = load_bundle(tmp_path / "bundle")
    assert read.card == found.release.card
    assert read.event_log == found.release.event_log
    written = json.loads((tmp_path / "bundle" / "card.json").read_text())["ran"]
    assert set(written) >= {"candidates", "chosen", "score"}
    assert "runs" not in written


def test_a_candidate_that_learns_nothing_is_not_chosen_where_the_other_was_run():
    """Seeds whose random numbers of runs let both candidates be run."""
    digits, blind = load("digits"), ("dp-sgd", {"epochs": 1, "lr": 1e-6})
    for seed in (0, 2):
        found = choose([("functional", {}), blind], digits, Budget(8.0), runs=4.0, rng=Reproducible(seed))
        assert found.candidate == 0
        assert found.score > 0.7


def test_the_score_without_noise_is_the_auc(cancer, monkeypatch):
    release = build("functional", {}).fit(None, cancer.train, Budget(3.0), rng=Reproducible(0))
    exact = roc_auc_score(cancer.test.labels, release.predict(cancer.test.features)[:, 1])
    score = choice._score(release, cancer, Gaussian(1.0, 1e-6), Reproducible(0))
    assert score == pytest.approx(exact, abs=0.05)


@given(st.integers(2, 6), st.integers(0, 2**31))
def test_one_record_moves_the_table_by_no_more_than_the_stated_sensitivity(classes, seed):
    generator = torch.Generator().manual_seed(seed)
    answers = torch.softmax(8 * torch.randn(12, classes, generator=generator, dtype=torch.float64), 1)
    answers[0] = torch.eye(classes, dtype=torch.float64)[0]
    labels = torch.randint(classes, (12,), generator=generator)
    moved = count_table(answers, labels) - count_table(answers[1:], labels[1:])
    assert float(moved.norm()) <= (1 if classes == 2 else classes) ** 0.5 + 1e-12


@given(st.integers(2, 6), st.lists(st.integers(1, 9), min_size=2, max_size=6), st.integers(0, 2**31))
def test_one_person_moves_the_table_by_no_more_however_many_records_they_have(classes, counts, seed):
    generator = torch.Generator().manual_seed(seed)
    groups = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    answers = torch.softmax(8 * torch.randn(len(groups), classes, generator=generator, dtype=torch.float64), 1)
    answers[: counts[0]] = answers[0]  # all of the first person's in one bin, which is the worst
    labels = torch.randint(classes, (len(groups),), generator=generator)
    labels[: counts[0]], labels[-1] = 0, 1
    data = from_arrays(torch.rand(len(groups), 2), labels, groups=groups, classes=classes, low=0, high=1)
    rest = data.take(groups > 0)
    moved = count_table(answers, labels, data.weights) - count_table(answers[groups > 0], rest.labels, rest.weights)
    assert float(moved.norm()) == pytest.approx((1 if classes == 2 else classes) ** 0.5)


def with_persons(split, most=4):
    """The same split, whose records are persons' of one to `most` records."""

    def owned(part):
        groups = torch.repeat_interleave(torch.arange(len(part)), 1 + torch.arange(len(part)) % most)[: len(part)]
        return replace(part, groups=groups)

    return replace(split, train=owned(split.train), test=owned(split.test))


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_a_choice_for_persons_is_proven_for_persons(cancer, neighbours, tmp_path):
    split, budget = with_persons(cancer), Budget(3.0, 1e-5, neighbours)
    found = choose(QUICK, split, budget)
    card = found.release.card
    assert (card.unit, card.claimed.unit, card.verdict) == ("person", "person", "proven")
    assert 2.9 < card.proven.epsilon <= 3
    assert card.ran["persons"] == split.train.persons
    assert "records" not in card.ran
    assert any("a person is in the training part" in one for one in card.proven.assumptions)
    again = accountants.epsilon(found.release.event_log[0][0], 1e-5, neighbours=neighbours).epsilon
    assert again == pytest.approx(card.proven.epsilon)
    found.release.save(tmp_path / "bundle")
    assert load_bundle(tmp_path / "bundle").card == card


def test_persons_known_of_one_part_alone_are_refused_before_anything_is_spent(cancer):
    split = replace(with_persons(cancer), test=cancer.test)
    with pytest.raises(DataError, match="of both parts"):
        choose(QUICK, split, Budget(3.0))


def test_a_method_that_knows_no_persons_is_refused_before_anything_is_spent(cancer, monkeypatch):
    monkeypatch.setattr(methods.get("dp-mf"), "units", ("record",))
    with pytest.raises(UnsupportedError, match="several"):
        choose([("functional", {}), ("dp-mf", {})], with_persons(cancer), Budget(3.0))


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_an_audit_of_a_persons_score_comes_near_its_proof_and_rows_that_count_for_one_are_caught(task, monkeypatch):
    """A person of eight held-out records is there or not; the score's noised sum or table is looked at, as an adversary may."""
    budget, canary = Budget(3.0), torch.full((8, 2), 0.5)
    features, groups = torch.cat([torch.rand(40, 2), canary]), torch.cat([torch.arange(40), torch.full((8,), 40)])
    targets = torch.zeros(48, dtype=torch.int64) if task == "classification" else torch.zeros(48)
    targets[0] = 1
    given = {"classes": 2} if task == "classification" else {"task": task, "target_bounds": (0.0, 1.0)}
    data = from_arrays(features, targets, groups=groups, low=0, high=1, **given)
    split = Split(data, data)
    answers = (
        torch.ones(48, 1).double() if task != "classification" else torch.tensor([[0.9, 0.1]]).double().expand(48, 2)
    )
    release = object.__new__(ModelRelease)
    monkeypatch.setattr(ModelRelease, "predict", lambda self, asked: answers[: len(asked)])
    scorer = choice._scorer(split, budget)
    parts = [Split(data, data.take(groups < 40)), split]
    bin_of_all = 0 if task == "regression" else int(count_table(answers, targets).argmax())

    def play(world, trials, generator):
        rng, seen = seeded_by(generator), []
        with monkeypatch.context() as patch:
            real = Gaussian.release
            patch.setattr(Gaussian, "release", lambda *given: seen.append(real(*given)) or seen[-1])
            for _ in range(trials):
                choice._score(release, parts[world], scorer, rng)
        return torch.stack(seen).double()[:, bin_of_all]

    def played():
        proven = accountants.epsilon(scorer.event, budget.delta).proof()
        return audit(
            proven_game("a score", play, budget, proven, unit="person", gaussian=True),
            trials=4000,
            seed=1,
            confidence=1 - 1e-6,
        )

    found = played()
    assert found.proven.epsilon >= found.bound.epsilon >= 0.6 * found.proven.epsilon
    monkeypatch.setattr(Dataset, "weights", None)
    assert played().bound.epsilon > found.proven.epsilon


def test_an_exchange_may_change_both_parts_and_is_accounted_as_training_and_score():
    """Under replace-one a newcomer on the other side pushes another one over."""
    people = from_arrays(torch.rand(60, 2), torch.arange(60) % 2, classes=2, low=0, high=1)
    before = split_of(people, relation="replace-one")
    changed = set()
    for step in range(60):
        features = people.features.clone()
        features[before.rows[0][0]] = step / 60  # somebody of the training part becomes somebody else
        after = split_of(replace(people, features=features), relation="replace-one")
        changed.add(
            tuple(
                not part.features.equal(old.features)
                for part, old in ((after.train, before.train), (after.test, before.test))
            )
        )
    assert (True, True) in changed
    candidates, split = (
        [("functional", {}), ("functional", {"ridge": 0.1})],
        load("breast-cancer", neighbours="replace-one"),
    )
    ((event, _),) = choose(candidates, split, Budget(3.0, 1e-5, "replace-one")).release.event_log
    assert all(isinstance(each, ComposedDpEvent) and len(each.events) == 2 for each in event.events)


def test_methods_that_cannot_say_their_event_are_refused_in_words(cancer):
    with pytest.raises(UnsupportedError, match="votes cannot take part in a paid choice"):
        choose([("dp-sgd", {}), ("votes", {})], cancer, Budget(3.0))
    with pytest.raises(UnsupportedError, match="functional cannot take part"):
        choose([("functional", {"relevance_share": 0.2})], cancer, Budget(3.0))
    with pytest.raises(UnsupportedError, match="dp-gan cannot take part"):
        choose([("dp-gan", {"tuning": "ant"})], cancer, Budget(3.0))
    with pytest.raises(SettingError, match="at least one method"):
        choose([], cancer, Budget(3.0))


def test_a_training_that_did_more_than_it_stated_is_not_released(cancer):
    budget = Budget(3.0)
    release = build("functional", {}).fit(None, cancer.train, budget, rng=Reproducible(0))
    refused = partial(pytest.raises, UnsupportedError, match="more to the records than it had stated")
    with refused():
        choice._check_ran(release, build("functional", {}).planned_event(cancer.train, Budget(1.0)), budget)
    # As much at the budget's delta, and more at other orders, which a selection is accounted for by.
    gaussian, laplace = (
        GaussianDpEvent(calibration.sigma(2.9, 1e-5, 1.0, 1, accountant="rdp").sigma),
        LaplaceDpEvent(1 / 3),
    )
    ran, stated = (accountants.epsilon(one, 1e-5, accountant="rdp").epsilon for one in (gaussian, laplace))
    assert ran <= stated
    release.event_log = ((gaussian, 1),)
    with refused():
        choice._check_ran(release, laplace, budget)


STATED = {
    **{name: {"epochs": 1} for name in ("dp-sgd", "dp-sgd-bounded", "dp-sgd-adaptive", "dp-mf", "shard-mean")},
    **{name: {"steps": 2, "model": model} for name, model in (("dp-gan", "dense"), ("zero-gan", "features"))},
    "functional": {},
    "marginals": {},
}


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("name", STATED)
def test_what_is_stated_beforehand_is_what_runs(cancer, name, unit):
    if unit not in methods.get(name).units:
        pytest.skip(f"{name} refuses persons")
    cancer, budget = cancer if unit == "record" else with_persons(cancer), Budget(2.0)
    method = build(name, STATED[name])
    release = method.fit(method.network(cancer.train.public), cancer.train, budget, rng=Reproducible(0))
    log = EventLog()
    for event, count in release.event_log:
        log.append(event, count)
    ran, stated = (
        renyi.curve(read(event, budget.neighbours), [1.5, 4.0, 64.0])
        for event in (log.event, method.planned_event(cancer.train, budget))
    )
    assert ran == pytest.approx(stated, rel=1e-6)


def test_records_that_are_sampled_one_by_one_are_stated_for_a_person_who_has_several(cancer):
    split, budget = with_persons(cancer), Budget(2.0)
    method = build("dp-sgd", {"epochs": 1, "person_sampling": "records", "max_records_per_person": 3})
    release = method.fit(method.network(split.train.public), split.train, budget, rng=Reproducible(0))
    stated = method.planned_event(split.train, budget)
    choice._check_ran(release, stated, budget)
    for neighbours in ("add-or-remove", "replace-one"):
        one = accountants.epsilon(stated, 1e-5, neighbours=neighbours).epsilon
        chosen = SelectionDpEvent([stated], 3.0, "logarithmic")
        assert accountants.epsilon(chosen, 1e-5, neighbours=neighbours).epsilon > one


def test_bounds_read_off_the_records_prove_nothing_here_either():
    features, labels = torch.rand(300, 3) * 9, torch.randint(2, (300,))
    whole = from_arrays(features, labels)
    split = replace(load("breast-cancer"), train=whole.take(torch.arange(200)), test=whole.take(torch.arange(200, 300)))
    card = choose([("functional", {})], split, Budget(1.0), runs=1.5).release.card
    assert card.proven is None
    assert card.verdict == "nothing proven"


def test_shard_mean_says_its_event_beforehand_and_can_be_chosen(cancer):
    fitting = resolve("shard-mean", cancer.train, epsilon=3.0)
    for neighbours in ("add-or-remove", "replace-one"):
        budget = Budget(3.0, 1e-5, neighbours)
        release = fitting.fit(cancer.train, budget, rng=Reproducible(0))
        assert release.event_log == ((fitting.method.planned_event(cancer.train, budget), 1),)
        found = accountants.epsilon(release.event_log[0][0], 1e-5, neighbours=neighbours).epsilon
        assert found == pytest.approx(release.card.proven.epsilon)
    chosen = choose([("shard-mean", {}), ("functional", {})], cancer, Budget(3.0), rng=Reproducible(0))
    assert chosen.release.card.proven.epsilon <= 3.0 * (1 + 1e-6)


def test_bounds_that_were_bought_are_paid_for_beside_the_choice(cancer):
    """They were bought of the held-out records, too, whose scores cost all that a choice among trainings may."""
    bought = Bought(columns=("a",), epsilon=2.0, delta=0.0, unit="record", neighbours="add-or-remove")
    split = replace(cancer, train=replace(cancer.train, public=replace(cancer.train.public, bought=bought)))
    candidates = [("functional", {}), ("functional", {"ridge": 0.1})]
    found = choose(candidates, split, Budget(6.0), rng=Reproducible(1)).release
    plain = choose(candidates, cancer, Budget(4.0), rng=Reproducible(1)).release
    assert found.card.ran["score's noise"] == plain.card.ran["score's noise"]
    assert found.card.proven.epsilon == pytest.approx(plain.card.proven.epsilon + 2.0)
    assert found.card.proven.epsilon <= found.card.claimed.epsilon == 6.0
    assert "bought from the records" in found.card.notes[-1]
    assert found.public.bought == bought
    # So it is where a method is called by itself, which leaves its budget to whoever calls it.
    fitting = resolve("functional", split.train, epsilon=4.0)
    alone = fitting.method.fit(fitting.network, split.train, Budget(4.0), rng=Reproducible(1)).card
    assert alone.proven.epsilon == pytest.approx(6.0)
    assert alone.notes.count(bought.note) == 1
    with pytest.raises(SettingError, match="on the run's terms"):
        choose(candidates, split, Budget(6.0, 1e-5, "replace-one"))
    with pytest.raises(UnsupportedError, match="intervals"):
        choose([("functional", {"interval": 0.9})] * 2, cancer, Budget(3.0))


def test_synthetic_records_are_chosen_by_what_is_learned_from_them_alone(cancer, tmp_path):
    candidates = [("marginals", {}), ("dp-gan", {"steps": 1, "model": "dense"})]
    found = choose(candidates, cancer, Budget(8.0), runs=2.0, rng=Reproducible(3))
    assert found.release.kind == "data"
    assert found.release.card.proven.epsilon <= 8
    assert 0 <= found.score <= 1
    found.release.save(tmp_path / "bundle")
    assert load_bundle(tmp_path / "bundle").card == found.release.card
