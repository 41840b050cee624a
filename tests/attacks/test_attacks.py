"""Attacks gain on a network that has memorised, nothing on one that has seen nobody, and see answers only."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scipy.stats import norm

from noiseproof.attacks import (
    Attack,
    AttackSplit,
    LabelOnlyAttack,
    LiraAttack,
    LossAttack,
    ShadowAttack,
    ShadowModels,
    attack,
    attack_names,
    infer_membership,
    register_attack,
)
from noiseproof.attacks.attack import logit_confidence
from noiseproof.attacks.result import best_threshold
from noiseproof.errors import BudgetError, DataError, SettingError
from noiseproof.methods.predictions.lu import Convexified
from noiseproof.networks import Training
from noiseproof.releases import bundles
from noiseproof.run.training import train

from .conftest import TRAINING, Target


@pytest.fixture(scope="module")
def drawn(split, network):
    return ShadowModels.drawn(network, split.pool, count=8, size=len(split.members), training=TRAINING, seed=1)


@pytest.fixture(scope="module")
def halves(split, network):
    return ShadowModels.halves(network, split.records, count=8, training=TRAINING, seed=1)


@pytest.fixture(scope="module")
def attacks(split, drawn, halves):
    return {
        "shadow": ShadowAttack.fit(drawn, training=Training(epochs=20, lr=0.01)),
        "loss": LossAttack(),
        "loss on shadows": LossAttack.fit(drawn),
        "lira": LiraAttack(halves, online=True),
        "lira, own variances": LiraAttack(halves, online=True, fixed_variance=False),
        "lira offline": LiraAttack(drawn, online=False),
        "gap": LabelOnlyAttack(),
        "label-only": LabelOnlyAttack(split.pool, copies=6),
    }


NAMES = ["shadow", "loss", "loss on shadows", "lira", "lira, own variances", "lira offline", "gap", "label-only"]


@pytest.mark.parametrize("name", NAMES)
def test_every_attack_tells_members_of_a_network_that_has_memorised(attacks, target, split, name):
    found = attacks[name].against(target, split, resamples=200)
    assert found.measures["advantage"].low > 0.15
    assert found.measures["auc"].low > 0.6


@pytest.mark.parametrize("name", NAMES)
def test_no_attack_gains_on_a_network_that_has_seen_nobody(attacks, stranger, split, name):
    # 400 records: the standard deviation of an advantage is at most 0.1, of an AUC 0.03; five of them.
    found = attacks[name].against(stranger, split, resamples=200)
    assert abs(found.advantage) < 0.5
    assert abs(found.auc - 0.5) < 0.15


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_asks_about_the_attacked_records_only_and_counts_its_queries(attacks, target, split, name):
    found = attacks[name].against(target, split, resamples=50)
    assert found.queries == sum(len(asked) for asked in target.asked)
    assert found.queries == len(split.records) * (7 if name == "label-only" else 1)
    assert torch.equal(target.asked[0], split.records.features)


def test_a_target_that_charges_is_asked_once_and_refuses_whole(attacks, memorised, network, split):
    poor = Target(memorised, network, queries_left=len(split.records) - 1)
    with pytest.raises(BudgetError):
        attacks["shadow"].against(poor, split)
    assert poor.queries_left == len(split.records) - 1
    limited = split.limited(100)
    found = attacks["shadow"].against(poor, limited, resamples=50)
    assert (found.queries, len(found.scores)) == (100, 100)


def test_noisy_answers_leave_less_to_gain(attacks, target, split):
    class Noisy:
        def predict(self, features):
            noise = torch.randn(len(features), 3, generator=torch.Generator().manual_seed(0))
            return (target.predict(features).log() + 8 * noise).softmax(1)

    for name in ("shadow", "loss", "lira"):
        plain, noisy = (attacks[name].against(each, split, resamples=50) for each in (target, Noisy()))
        assert noisy.auc < plain.auc - 0.1


def test_the_gap_attacks_advantage_is_the_accuracy_gap(target, split):
    right = [
        float((target.predict(part.features).argmax(1) == part.labels).double().mean())
        for part in (split.members, split.nonmembers)
    ]
    assert LabelOnlyAttack().against(target, split).advantage == pytest.approx(right[0] - right[1])


def test_the_loss_threshold_is_the_best_one_on_shadow_models(drawn):
    attack = LossAttack.fit(drawn)
    scores = drawn.confidences(drawn.pool)
    known = drawn.inside | drawn.outside
    assert attack.threshold == best_threshold(scores[known], drawn.inside[known])
    assert attack.threshold_from == "shadow models"


@pytest.mark.parametrize("fixed", [True, False])
def test_online_lira_is_the_ratio_of_the_records_normal_likelihoods(halves, target, split, fixed):
    scores = LiraAttack(halves, online=True, fixed_variance=fixed).scores(target, split.records)
    shadow = halves.confidences(split.records, logit=True).numpy()
    seen = logit_confidence(target.predict(split.records.features), split.records.labels).numpy()
    inside = halves.inside.numpy()
    spread = {}
    for side, mask in (("in", inside), ("out", ~inside)):
        own = np.array([shadow[mask[:, i], i].var(ddof=1) for i in range(len(seen))])
        spread[side] = np.sqrt(np.full(len(seen), own.mean()) if fixed else own)
    for i in (0, 7, len(seen) - 1):
        ins, outs = shadow[inside[:, i], i], shadow[~inside[:, i], i]
        expected = norm.logpdf(seen[i], ins.mean(), spread["in"][i]) - norm.logpdf(
            seen[i], outs.mean(), spread["out"][i]
        )
        assert float(scores[i]) == pytest.approx(expected, rel=1e-6)


def test_offline_lira_counts_standard_deviations_above_what_others_answer(drawn, target, split):
    scores = LiraAttack(drawn, online=False, fixed_variance=False).scores(target, split.records)
    shadow = drawn.confidences(split.records, logit=True).numpy()
    seen = logit_confidence(target.predict(split.records.features), split.records.labels).numpy()
    np.testing.assert_allclose(scores, (seen - shadow.mean(0)) / shadow.std(0, ddof=1), rtol=1e-6)


def test_online_lira_attacks_the_records_of_its_shadow_models_only(halves, drawn, target, split):
    other = AttackSplit(split.nonmembers, split.members)
    with pytest.raises(SettingError, match="trained on"):
        LiraAttack(halves, online=True).against(target, other)
    with pytest.raises(SettingError, match="halves"):
        LiraAttack(drawn, online=True)


def test_a_class_that_no_shadow_model_saw_is_taken_for_nonmembers(drawn, network, target, split):
    pool = split.pool.take(split.pool.labels != 2)
    shadows = ShadowModels.drawn(network, pool, count=2, training=Training(epochs=1))
    found = ShadowAttack.fit(shadows, training=Training(epochs=1)).against(target, split, resamples=50)
    assert not found.guesses[found.labels == 2].any()


def test_an_attack_network_for_all_classes_does_not_look_at_labels(attacks, drawn, target, split):
    attack = ShadowAttack.fit(drawn, by_class=False, training=Training(epochs=2, lr=0.01))
    others = dataclasses.replace(split.records, labels=(split.records.labels + 1) % 3)
    assert torch.equal(attack.scores(target, split.records), attack.scores(target, others))
    by_class = attacks["shadow"]
    assert not torch.equal(by_class.scores(target, split.records), by_class.scores(target, others))


def test_a_release_that_answers_nan_is_reported(split):
    class Broken:
        def predict(self, features):
            return torch.full((len(features), 3), float("nan"))

    with pytest.raises(DataError, match="diverged"):
        LossAttack().against(Broken(), split)


@pytest.mark.parametrize("name", ["shadow", "loss", "lira", "lira-offline", "gap", "label-only"])
def test_attacks_can_be_run_by_name(target, split, name):
    found = infer_membership(target, split, name, shadows=4, training=Training(epochs=15, batch_size=25, lr=0.01))
    assert found.attack in (name, "label-only", "lira")
    assert found.measures["auc"].low > 0.5


def test_an_auditors_attack_needs_no_pool(target, split):
    auditor = AttackSplit(split.members, split.nonmembers)
    found = infer_membership(target, auditor, "shadow", shadows=4, training=TRAINING)
    assert found.measures["advantage"].low > 0
    with pytest.raises(SettingError, match="pool"):
        infer_membership(target, auditor, "lira-offline", shadows=2, training=Training(epochs=1))


def test_unknown_attacks_are_refused(target, split):
    with pytest.raises(SettingError, match="there are shadow, lira, lira-offline, rmia, rmia-offline, strongest, loss"):
        infer_membership(target, split, "guess")
    with pytest.raises(SettingError, match="synthetic records"):
        infer_membership(target, split, "nearest")
    assert set(attack_names()) >= {"shadow", "loss", "lira"}


def test_label_only_settings_are_checked(split):
    for settings in ({"copies": -1}, {"copies": 1}, {"largest": 0.0}):
        with pytest.raises(SettingError):
            LabelOnlyAttack(**settings)


def test_an_attack_of_a_users_own_is_run_by_its_name(target, split, monkeypatch):
    monkeypatch.setattr(attack, "_REGISTRY", dict(attack.attacks()))

    @register_attack
    class SureAttack(Attack):
        name = "sure"

        def scores(self, target, records):
            return target.predict(records.features).amax(1)

    found = infer_membership(target, split, "sure")
    assert (found.attack, found.queries) == ("sure", len(split.records))
    assert found.auc > 0.5
    assert attack_names("answers")[-1] == "sure"
    with pytest.raises(ValueError, match="two attacks"):
        register_attack(SureAttack)


def test_shadow_models_are_trained_like_the_release(split, monkeypatch, tmp_path):
    """With its network, loss, l2 and steps, also after the release was saved and loaded."""
    settings = {"epochs": 3, "batch_size": 20, "lr": 0.01, "l2": 0.01}
    release = train("neuron-laplace", split.members, epsilon=100.0, queries=1000, seed=0, **settings)
    release.save(tmp_path / "bundle")
    trained = []

    def remember(network, pool, *, training, **options):
        trained.append((network, training))
        raise SettingError("enough was seen.")

    monkeypatch.setattr(ShadowModels, "drawn", remember)
    for target in (release, bundles.load(tmp_path / "bundle")):
        with pytest.raises(SettingError, match="enough"):
            infer_membership(target, split, "shadow")
    for network, training in trained:
        assert network.name == "lu-mlp"
        assert (training.epochs, training.batch_size, training.lr, training.l2) == (3, 20, 0.01, 0.01)
        assert training.loss == Convexified(1.0, "paper")


def test_a_release_that_answers_labels_is_attacked_by_its_labels(memorised, network, split):
    class Labels(Target):
        labels_only = True

        def predict(self, features):
            return torch.nn.functional.one_hot(super().predict(features).argmax(1), 3).float()

    for name in ("shadow", "loss", "lira"):
        found = infer_membership(Labels(memorised, network), split, name, shadows=2)
        assert found.attack == "gap"
        assert found.measures["advantage"].low > 0.15
    assert infer_membership(Labels(memorised, network), split, "label-only").attack == "label-only"


@pytest.mark.parametrize(("answers", "labels"), [("label", True), ("probabilities", False)])
def test_a_release_says_whether_it_answers_labels_alone(split, answers, labels):
    release = train("teachers", split.members, epsilon=3.0, seed=0, epochs=1, teachers=4, answer=answers)
    assert release.labels_only is labels
    assert release.training().epochs == 1
    assert release.network is not None
