"""Measures are those of their definitions, and intervals hold them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from noiseproof.attacks import AttackResult, plot_roc
from noiseproof.attacks import result as results
from noiseproof.attacks.result import Roc, best_threshold, bootstrap, resamples
from noiseproof.errors import DataError
from noiseproof.palette import PALETTE


def result(shift: float = 1.0, threshold: float | None = 0.5, size: int = 600, **changes) -> AttackResult:
    generator = torch.Generator().manual_seed(7)
    member = torch.arange(2 * size) < size
    scores = torch.randn(2 * size, generator=generator).double() + shift * member
    labels = torch.arange(2 * size) % 3
    return AttackResult("test", scores, member, labels, ("a", "b", "c"), threshold=threshold, **changes)


def test_measures_are_scikit_learns():
    found = result()
    member, scores = found.member.numpy(), found.scores.numpy()
    fpr, tpr, _ = roc_curve(member, scores, drop_intermediate=False)
    accuracy = balanced_accuracy_score(member, scores > 0.5)
    assert found.auc == pytest.approx(roc_auc_score(member, scores))
    assert found.balanced_accuracy == pytest.approx(accuracy)
    assert found.advantage == pytest.approx(2 * accuracy - 1)
    assert found.tpr_at_fpr == {rate: pytest.approx(tpr[fpr <= rate].max()) for rate in (0.001, 0.01)}


def test_classes_are_measured_by_themselves():
    found = result()
    assert [(each.name, each.members, each.nonmembers) for each in found.per_class] == [
        (name, 200, 200) for name in "abc"
    ]
    for index, each in enumerate(found.per_class):
        chosen = found.labels == index
        member, scores = found.member[chosen].numpy(), found.scores[chosen].numpy()
        assert each.auc.value == pytest.approx(roc_auc_score(member, scores))
        assert each.accuracy.value == pytest.approx(balanced_accuracy_score(member, scores > 0.5))
        assert each.advantage.value == pytest.approx(2 * each.accuracy.value - 1)


def test_a_class_without_members_is_not_measured():
    found = AttackResult(
        "test", torch.rand(4), torch.tensor([True, False, False, False]), torch.tensor([0, 0, 1, 1]), ("a", "b", "c")
    )
    assert [each.auc is None for each in found.per_class] == [False, True, True]
    assert json.loads(json.dumps(found.to_json()))["per_class"][1]["accuracy"] is None


def test_intervals_hold_their_values_and_narrow_with_more_records():
    small, large = result(size=100), result(size=3000)
    for found in (small, large):
        for name, measure in found.measures.items():
            assert measure.low <= measure.value <= measure.high, name
    width = [found.measures["auc"].high - found.measures["auc"].low for found in (small, large)]
    assert width[1] < width[0] / 3


def test_results_repeat_with_their_seed():
    assert result(threshold=None).to_json() == result(threshold=None).to_json()
    assert result(seed=1).to_json()["intervals"] != result(seed=2).to_json()["intervals"]


def test_a_threshold_chosen_on_the_other_half_gains_nothing_where_nothing_is_to_be_gained():
    # The best threshold on the same scores would seem to gain about 0.04 here.
    found = result(shift=0.0, threshold=None, size=4000)
    assert abs(found.advantage) < 0.04
    fpr, tpr, _ = roc_curve(found.member.numpy(), found.scores.numpy())
    assert found.advantage < (tpr - fpr).max()


def test_a_threshold_chosen_on_the_other_half_is_near_the_best_where_there_is_one():
    found = result(shift=2.0, threshold=None, size=2000)
    fpr, tpr, _ = roc_curve(found.member.numpy(), found.scores.numpy())
    assert found.advantage == pytest.approx((tpr - fpr).max(), abs=0.02)


def test_json_has_the_contracts_keys_and_plain_numbers():
    written = json.loads(json.dumps(result(queries=5).to_json()))
    assert {"advantage", "auc", "tpr_at_fpr", "per_class", "balanced_accuracy", "intervals"} <= written.keys()
    assert set(written["tpr_at_fpr"]) == {"0.001", "0.01"}
    assert isinstance(written["advantage"], float)
    assert written["queries"] == 5
    assert len(written["per_class"]) == 3


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_the_curve_is_drawn_to_a_file(tmp_path, suffix):
    path = result().plot_roc(tmp_path / f"roc.{suffix}")
    assert path.stat().st_size > 5000


def test_several_curves_share_a_picture(tmp_path):
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    path = plot_roc([result(), result(shift=0.2), result(shift=3.0)], tmp_path / "roc.png")
    picture = imread(path)[..., :3]
    for colour, _ in PALETTE[1:4]:
        assert (np.abs(picture - np.array(to_rgb(colour))).max(-1) < 0.02).sum() > 50


def test_results_that_make_no_sense_are_refused():
    member = torch.tensor([True, False])
    with pytest.raises(DataError, match="finite"):
        AttackResult("test", torch.tensor([0.0, float("nan")]), member, torch.zeros(2), ("a",))
    with pytest.raises(DataError, match="as many"):
        AttackResult("test", torch.zeros(3), member, torch.zeros(2), ("a",))
    with pytest.raises(DataError, match="one member and one non-member"):
        AttackResult("test", torch.zeros(2), torch.tensor([True, True]), torch.zeros(2), ("a",))


# Curves agree with scikit-learn's, for one weighting and for many.


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
    monkeypatch.setattr(results, "_ELEMENTS", 64)
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
