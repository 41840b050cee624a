"""RMIA ranks by how much the target prefers a record; attacks share their reference models; the strongest is chosen on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noiseproof.attacks import RmiaAttack, ShadowModels, StrongestAttack, attack, infer_by_all, shadow
from noiseproof.attacks.attack import confidence
from noiseproof.attacks.result import AttackResult
from noiseproof.errors import SettingError

from .conftest import TRAINING


@pytest.fixture(scope="module")
def halves(split, network):
    return ShadowModels.halves(network, split.records, count=8, training=TRAINING, seed=1)


def test_rmias_score_is_the_share_of_records_that_the_target_prefers_less(halves, target, split):
    scores = RmiaAttack(halves, gamma=2.0).scores(target, split.records)
    probabilities = halves.confidences(split.records).exp().numpy()
    inside = halves.inside.numpy()
    seen = confidence(target.predict(split.records.features), split.records.labels).exp().numpy()
    expected = np.array(
        [
            (column[mask].mean() + column[~mask].mean()) / 2
            for column, mask in zip(probabilities.T, inside.T, strict=True)
        ]
    )
    ratios = seen / expected
    for place in (0, 5, 250, 399):
        share = (ratios[place] / ratios >= 2.0).mean()
        # Within a share the record's own ratio decides, by less than a record's worth.
        assert share <= float(scores[place]) < share + 1 / len(ratios)
    order = np.argsort(ratios)
    assert (np.diff(scores.numpy()[order]) >= 0).all()


def test_offline_no_reference_model_has_the_record(target, split, network):
    drawn = ShadowModels.drawn(network, split.pool, count=4, size=len(split.members), training=TRAINING, seed=1)
    scores = RmiaAttack(drawn, online=False, a=0.0).scores(target, split.records)
    outside = drawn.confidences(split.records).exp().mean(0)
    seen = confidence(target.predict(split.records.features), split.records.labels).exp()
    assert torch.equal(scores.argsort(stable=True), (seen / ((outside + 1) / 2)).argsort(stable=True))
    with pytest.raises(SettingError, match="halves"):
        RmiaAttack(drawn)
    with pytest.raises(SettingError, match="gamma"):
        RmiaAttack(drawn, online=False, gamma=0.5)


def test_all_attacks_share_reference_models_that_are_trained_once(target, split, monkeypatch):
    trained = []
    real = shadow.fit_stacks
    monkeypatch.setattr(shadow, "fit_stacks", lambda *a, **k: trained.append(len(a[3])) or real(*a, **k))
    names = ["lira", "rmia", "strongest", "lira-offline", "rmia-offline", "shadow"]
    found = infer_by_all(target, split, names, training=TRAINING, shadows=4)
    assert trained == [4, 4]  # one set on halves of the attacked records, one on the pool
    assert [one.attack for one in found] == names
    assert found[1].measures["auc"].low > 0.6


def test_the_strongest_is_chosen_on_reference_models_and_never_by_the_target(halves, target, stranger, split):
    strongest = StrongestAttack(halves)
    assert strongest.chosen in ("rmia", "lira")
    assert f"{strongest.chosen} was chosen" in strongest.note
    found = strongest.against(target, split, resamples=50)
    assert found.auc > 0.7
    assert found.to_json()["note"] == strongest.note
    assert StrongestAttack(halves).chosen == strongest.chosen
    # 400 records that nobody learned: the standard deviation of the AUC is 0.03.
    assert abs(strongest.against(stranger, split, resamples=50).auc - 0.5) < 0.15


def test_rates_at_low_false_positive_rates_have_exact_intervals():
    rng = np.random.default_rng(0)
    scores = torch.from_numpy(np.concatenate([rng.normal(2.0, 1, 300), rng.normal(0, 1, 1000)]))
    member = torch.arange(1300) < 300
    found = AttackResult("a", scores, member, torch.zeros(1300, dtype=torch.int64), ("x",), resamples=10)
    for one, allowed in zip(found.at_low_fpr, (1, 10), strict=True):
        assert one.falsely == allowed
        threshold = scores[300:].sort(descending=True).values[allowed]
        assert one.named == int((scores[:300] > threshold).sum())
        assert one.tpr.value == found.tpr_at_fpr[one.fpr]
        assert one.tpr.low < one.tpr.value < one.tpr.high
        assert one.fpr_at_most > one.fpr
    assert found.measures["tpr_at_0.01"] == found.at_low_fpr[1].tpr


def test_the_exact_intervals_hold_what_they_promise():
    """2,000 intervals at 95% miss in at most 100 on average; more than 160 happen less than once in a million times."""
    rng, missed_tpr, missed_fpr = np.random.default_rng(1), 0, 0
    from scipy.stats import norm

    for _ in range(2000):
        scores = torch.from_numpy(np.concatenate([rng.normal(1.0, 1, 60), rng.normal(0, 1, 100)]))
        found = AttackResult(
            "a", scores, torch.arange(160) < 60, torch.zeros(160, dtype=torch.int64), ("x",), resamples=2
        )
        one = found.at_low_fpr[1]
        threshold = float(scores[60:].sort(descending=True).values[1])
        missed_tpr += not one.tpr.low <= norm.sf(threshold - 1.0) <= one.tpr.high
        missed_fpr += norm.sf(threshold) > one.fpr_at_most
    assert missed_tpr <= 160
    assert missed_fpr <= 160


def test_new_attacks_are_in_the_register():
    assert {"rmia", "rmia-offline", "strongest", "confidence", "entropy", "modified-entropy"} <= set(
        attack.attack_names()
    )
