"""Numbers and counts by every method that can: within the budget, within the bounds, better than a constant."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import noiseproof as npf
from noiseproof import methods
from noiseproof.attacks import AttackSplit, infer_membership
from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.releases import DataRelease, bundles, evaluate

ABLE = [name for name, each in methods.registry().items() if "regression" in each.tasks]
OTHERS = [name for name in methods.registry() if name not in ABLE]
QUICK = {"steps": 2, "generator_steps": 20, "generated": 50, "width": 50}


def line(count=600, seed=0, task="regression"):
    """A number that is nearly linear in four features."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(count, 4, generator=generator)
    labels = features @ torch.tensor([0.5, -0.4, 0.3, 0.0]) + 0.3 + 0.03 * torch.randn(count, generator=generator)
    public = Public(shape=(4,), classes=(), task=task, target_bounds=(0.0, 20.0))
    return Dataset("line", features, labels.clamp(0, 1), public)


def test_the_methods_that_predict_numbers_are_those_that_are_said_to():
    assert set(ABLE) >= {"none", "dp-sgd", "dp-sgd-bounded", "dp-sgd-adaptive", "functional", "noisy-gradient"}
    assert set(ABLE) >= {"dp-gan", "teachers", "shard-mean", "logits"}


@pytest.mark.parametrize("name", ABLE)
def test_a_number_is_predicted_within_the_budget_and_the_bounds(name, tmp_path):
    kind = methods.get(name)
    quick = QUICK if issubclass(kind, methods.get("dp-gan")) else {}
    release = npf.train(name, line(), epsilon=8.0, queries=5, seed=0, **quick)
    card = release.card
    assert (card.proven is not None) == kind.proves
    if kind.proves:
        assert card.proven.epsilon <= 8.0 * (1 + 1e-6)
    release.save(tmp_path / "bundle")
    again = bundles.load(tmp_path / "bundle")
    if isinstance(release, DataRelease):
        assert again.dataset.labels.dtype == torch.float32
        assert 0 <= float(again.dataset.labels.min()) <= float(again.dataset.labels.max()) <= 1
        assert again.public.target_bounds == (0.0, 20.0)
        return
    answers = again.predict(line(5, seed=1).features)
    assert answers.shape == (5, 1)
    assert ((answers >= 0) & (answers <= 1)).all()


@pytest.mark.parametrize("name", ["dp-sgd", "dp-sgd-adaptive", "functional", "none"])
def test_what_is_linear_is_found_at_a_moderate_epsilon(name):
    found = evaluate(npf.train(name, line(2000), epsilon=3.0, seed=0), line(500, seed=1))
    assert found.ranked_by == "r2"
    assert found.r2 > 0.8


@pytest.mark.parametrize("name", ["dp-sgd", "functional"])
def test_counts_are_predicted_too(name):
    found = evaluate(npf.train(name, line(2000, task="count"), epsilon=8.0, seed=0), line(500, seed=1, task="count"))
    assert found.r2 > 0.5


@pytest.mark.parametrize("name", OTHERS)
def test_other_methods_refuse_in_one_sentence_before_anything_is_spent(name):
    with pytest.raises(UnsupportedError, match="predicts classes"):
        npf.train(name, line(60), epsilon=1.0, seed=0)


@pytest.mark.parametrize(("name", "share"), [("functional", 0.9), ("functional", 0.5), ("dp-sgd", 0.9), ("none", 0.9)])
def test_intervals_hold_as_many_targets_as_was_asked_for(name, share, tmp_path):
    release = npf.train(name, line(4000), epsilon=3.0, seed=0, interval=share)
    found = evaluate(release, line(4000, seed=1))
    assert found.coverage == pytest.approx(share, abs=0.03)
    card = release.card
    if card.proven is not None:
        assert 2.9 < card.proven.epsilon <= 3.0 * (1 + 1e-6)
        assert any("width of intervals" in note for note in card.notes)
        assert len(release.event_log) == 2
    release.save(tmp_path / "bundle")
    again = bundles.load(tmp_path / "bundle").predict(line(50, seed=1).features)
    assert again.shape == (50, 3)
    assert ((again[:, 1] <= again[:, 0]) & (again[:, 0] <= again[:, 2])).all()


def test_a_persons_many_records_count_once_for_the_width_of_intervals():
    quiet = line(2000)
    loud = dataclasses.replace(quiet, labels=(quiet.labels + 0.5).clamp(0, 1)).take(torch.arange(1000))
    # One person has a third of all records, all of them far off.
    features, labels = torch.cat([quiet.features, loud.features]), torch.cat([quiet.labels, loud.labels])
    groups = torch.cat([torch.arange(2000), torch.full((1000,), 2000)])
    crowd = Dataset("crowd", features, labels, quiet.public, groups)
    release = npf.train("functional", crowd, epsilon=8.0, seed=0, interval=0.9)
    alone = npf.train("functional", quiet, epsilon=8.0, seed=0, interval=0.9)
    assert release.margin == pytest.approx(alone.margin, rel=0.2)


def test_classes_have_no_intervals():
    with pytest.raises(SettingError, match="not for classes"):
        npf.train("functional", "breast-cancer", epsilon=1.0, interval=0.9)


def test_the_loss_attack_finds_numbers_that_were_learned_by_heart():
    random = torch.Generator().manual_seed(3)

    def noise(count):
        public = Public(shape=(40,), classes=(), task="regression", target_bounds=(0.0, 1.0))
        features, labels = torch.rand(count, 40, generator=random), torch.rand(count, generator=random)
        return Dataset("noise", features, labels, public)

    members, others = noise(60), noise(60)
    learned = npf.train("none", members, epsilon=1.0, seed=0, epochs=400, lr=0.01, network="mlp")
    assert infer_membership(learned, AttackSplit(members, others), "loss").auc > 0.9
    with pytest.raises(SettingError, match="can be attacked by loss"):
        infer_membership(learned, AttackSplit(members, others), "gap")


def test_a_threshold_moves_the_label_and_costs_nothing():
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(800, generator=generator) < 0.1).long()
    features = (0.4 + 0.2 * labels[:, None] + 0.2 * torch.rand(800, 3, generator=generator)).clamp(0, 1)
    rare = Dataset("rare", features, labels, Public(shape=(3,), classes=("no", "yes"), class_shares=(0.9, 0.1)))
    plain, moved = (npf.train("dp-sgd", rare, epsilon=8.0, seed=0, threshold=value) for value in (None, 0.05))
    assert plain.card.proven == moved.card.proven
    assert torch.equal(plain.predict(features), moved.predict(features))
    named = [release.named(release.predict(features)).sum() for release in (plain, moved)]
    assert named[1] > named[0]
    weighted = npf.train("dp-sgd", rare, epsilon=8.0, seed=0, class_weights="balanced")
    assert weighted.card.proven == plain.card.proven
