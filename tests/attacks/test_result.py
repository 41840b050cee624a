"""Measures are those of their definitions, and intervals hold them."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from noiseproof.attacks import AttackResult, plot_roc
from noiseproof.errors import DataError


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
    from matplotlib.image import imread

    path = plot_roc([result(), result(shift=0.2), result(shift=3.0)], tmp_path / "roc.png")
    picture = imread(path)[..., :3]
    colours = [np.array([0, 0x72, 0xB2]), np.array([0xD5, 0x5E, 0]), np.array([0, 0x9E, 0x73])]
    for colour in colours:
        assert (np.abs(picture - colour / 255).max(-1) < 0.02).sum() > 50


def test_results_that_make_no_sense_are_refused():
    member = torch.tensor([True, False])
    with pytest.raises(DataError, match="finite"):
        AttackResult("test", torch.tensor([0.0, float("nan")]), member, torch.zeros(2), ("a",))
    with pytest.raises(DataError, match="as many"):
        AttackResult("test", torch.zeros(3), member, torch.zeros(2), ("a",))
    with pytest.raises(DataError, match="one member and one non-member"):
        AttackResult("test", torch.zeros(2), torch.tensor([True, True]), torch.zeros(2), ("a",))
