"""Numbers and counts by every method that can: within the budget, within the bounds, better than a constant."""

from __future__ import annotations

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


def test_intervals_hold_most_of_the_targets():
    """Their coverage is not proven, and with noise less than was asked for: .68 to .76 of .9 over three seeds here."""
    release = npf.train("dp-sgd", line(4000), epsilon=8.0, seed=0, interval=0.9)
    found = evaluate(release, line(1000, seed=1))
    assert 0.6 < found.coverage <= 1
    assert found.r2 > 0.7


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
