"""Curves agree with scikit-learn's, for one weighting and for many."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from noiseproof.attacks import roc
from noiseproof.attacks.roc import Roc, best_threshold, bootstrap, resamples


@st.composite
def scored(draw):
    """Scores with many ties, and memberships with both kinds."""
    size = draw(st.integers(2, 40))
    scores = draw(st.lists(st.integers(-5, 5), min_size=size, max_size=size))
    member = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    member[0], member[1] = True, False
    weights = draw(st.lists(st.integers(1, 4), min_size=size, max_size=size))
    return torch.tensor(scores).double() / 3, torch.tensor(member), torch.tensor(weights).double()


@settings(deadline=None, derandomize=True, max_examples=60)
@given(scored())
def test_curves_and_areas_are_scikit_learns(case):
    scores, member, weights = case
    curve = Roc.of(scores, member, torch.stack([torch.ones_like(weights), weights]))
    for row, sample_weight in enumerate([None, weights.numpy()]):
        fpr, tpr, _ = roc_curve(member.numpy(), scores.numpy(), sample_weight=sample_weight, drop_intermediate=False)
        np.testing.assert_allclose(curve.fpr[row], fpr, atol=1e-12)
        np.testing.assert_allclose(curve.tpr[row], tpr, atol=1e-12)
        area = roc_auc_score(member.numpy(), scores.numpy(), sample_weight=sample_weight)
        assert float(curve.auc[row]) == pytest.approx(area, abs=1e-12)
        for rate in (0.0, 0.01, 0.1, 0.25, 0.5, 1.0):
            assert float(curve.tpr_at(rate)[row]) == pytest.approx(tpr[fpr <= rate + 1e-12].max(), abs=1e-12)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(scored())
def test_the_best_threshold_reaches_the_largest_advantage_of_the_curve(case):
    scores, member, _ = case
    guesses = scores > best_threshold(scores, member)
    advantage = guesses[member].double().mean() - guesses[~member].double().mean()
    fpr, tpr, _ = roc_curve(member.numpy(), scores.numpy(), drop_intermediate=False)
    assert float(advantage) == pytest.approx((tpr - fpr).max(), abs=1e-12)


def test_where_nothing_can_be_gained_nobody_is_accused():
    assert best_threshold(torch.tensor([0.0, 1.0]).double(), torch.tensor([True, False])) == math.inf


def test_resamples_draw_members_from_members_and_as_many(monkeypatch):
    monkeypatch.setattr(roc, "_ELEMENTS", 64)
    member = torch.arange(10) < 4
    weights = torch.cat(list(resamples(member, 50, seed=3)))
    assert weights.shape == (50, 10)
    assert (weights[:, member].sum(1) == 4).all()
    assert (weights[:, ~member].sum(1) == 6).all()
    assert torch.equal(weights, torch.cat(list(resamples(member, 50, seed=3))))
    assert not torch.equal(weights, torch.cat(list(resamples(member, 50, seed=4))))


def test_the_interval_of_a_share_has_the_width_that_statistics_says():
    member = torch.arange(2000) < 1000
    guessed = (torch.arange(2000) % 1000 < 300).double()

    def share(weights):
        return ((weights * member * guessed).sum(1) / 1000)[:, None]

    low, high = bootstrap(share, member, count=4000, level=0.95, seed=0)[:, 0].tolist()
    deviation = math.sqrt(0.3 * 0.7 / 1000)
    assert low == pytest.approx(0.3 - 1.96 * deviation, abs=0.15 * deviation)
    assert high == pytest.approx(0.3 + 1.96 * deviation, abs=0.15 * deviation)
