"""Shadow models know what they were trained on."""

from __future__ import annotations

import pytest
import torch

from noiseproof.attacks import ShadowModels
from noiseproof.attacks.attack import confidence, logit_confidence
from noiseproof.errors import SettingError
from noiseproof.networks import Training, fit_stack

SHORT = Training(epochs=2, batch_size=25)


def test_each_is_trained_on_so_many_records_and_compared_with_as_many_others(split, network):
    shadows = ShadowModels.drawn(network, split.pool, count=4, size=120, training=SHORT)
    assert len(shadows) == 4
    assert (shadows.inside.sum(1) == 120).all()
    assert (shadows.outside.sum(1) == 120).all()
    assert not (shadows.inside & shadows.outside).any()
    assert not shadows.inside[0].equal(shadows.inside[1])
    small = ShadowModels.drawn(network, split.pool, count=1, size=10**6, training=SHORT)
    assert int(small.inside.sum()) == len(split.pool) // 2


def test_on_halves_every_record_is_in_half_of_them(split, network):
    shadows = ShadowModels.halves(network, split.records, count=6, training=SHORT)
    assert (shadows.inside.sum(0) == 3).all()
    assert (shadows.inside.sum(1) == len(split.records) // 2).all()
    assert shadows.outside.equal(~shadows.inside)


def test_they_are_what_training_on_those_records_gives_and_repeat_with_the_seed(split, network):
    shadows = ShadowModels.drawn(network, split.pool, count=2, size=50, training=SHORT, seed=8)
    again = ShadowModels.drawn(network, split.pool, count=2, size=50, training=SHORT, seed=8)
    other = ShadowModels.drawn(network, split.pool, count=2, size=50, training=SHORT, seed=9)
    key = "1.weight"
    assert shadows.networks.parameters[key].equal(again.networks.parameters[key])
    assert not shadows.networks.parameters[key].equal(other.networks.parameters[key])
    inside = shadows.inside[1].nonzero().flatten()
    seeds = torch.randint(2**62, (2,), generator=torch.Generator().manual_seed(8)).tolist()
    alone = fit_stack(network, split.pool.features, split.pool.labels, [inside], SHORT, seeds=seeds[1:])
    assert torch.allclose(shadows.networks.parameters[key][1], alone.parameters[key][0], atol=1e-5)


def test_confidences_are_the_same_in_parts(split, network, monkeypatch):
    shadows = ShadowModels.drawn(network, split.pool, count=3, size=50, training=SHORT)
    whole = shadows.confidences(split.records, logit=True)
    monkeypatch.setattr("noiseproof.attacks.shadow._ANSWERS", 3 * 3 * 17)
    assert torch.allclose(whole, shadows.confidences(split.records, logit=True), atol=1e-5)
    probability = shadows.confidences(split.records).exp()
    assert torch.allclose(whole, (probability / (1 - probability)).log(), atol=1e-4)


def test_confidence_stays_finite_where_probabilities_round_to_0_and_1():
    logits = torch.tensor([[200.0, 0.0, 0.0], [0.0, 200.0, 0.0], [20.0, 0.0, 0.0]])
    answers, labels = logits.softmax(1), torch.zeros(3, dtype=torch.int64)
    assert answers[2, 0] == 1
    assert logit_confidence(answers, labels).isfinite().all()
    assert confidence(answers, labels).isfinite().all()
    assert logit_confidence(answers, labels)[2].item() == pytest.approx(20 - torch.tensor(2.0).log().item(), abs=1e-5)


def test_impossible_numbers_are_refused(split, network):
    with pytest.raises(SettingError, match="shadow models"):
        ShadowModels.drawn(network, split.pool, count=0)
    with pytest.raises(SettingError, match="pairs"):
        ShadowModels.halves(network, split.pool, count=3)
