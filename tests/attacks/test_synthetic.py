"""Synthetic records that copy real ones are found out; independent ones give nothing away."""

from __future__ import annotations

import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from noiseproof.attacks import AttackSplit, NearestAttack, infer_membership, simple
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError
from noiseproof.releases.release import DataRelease

from .conftest import bits


def released(records: Dataset) -> DataRelease:
    return DataRelease(records, card=None, settings={})


def copies(records: Dataset, seed: int, changed: int) -> Dataset:
    """The records with `changed` of their bits turned over."""
    places = torch.rand(records.features.shape, generator=torch.Generator().manual_seed(seed)).argsort(1)[:, :changed]
    features = records.features.scatter(1, places, 1 - records.features.gather(1, places))
    return Dataset("copies", features, records.labels, records.public)


@pytest.mark.parametrize("attack", ["nearest", "density-ratio"])
def test_copies_with_small_changes_are_found_out(attack, split):
    found = infer_membership(released(copies(split.members, 1, 3)), split, attack)
    assert found.auc > 0.95
    assert found.advantage > 0.8
    assert found.queries == 0


@pytest.mark.parametrize("attack", ["nearest", "density-ratio"])
def test_independent_records_give_nothing_away(attack, split):
    # 400 records: the AUC's standard deviation is 0.03; five of them.
    assert abs(infer_membership(released(bits(300, seed=77)), split, attack).auc - 0.5) < 0.15


def test_distances_are_to_the_kth_nearest_of_the_same_class(split, monkeypatch):
    monkeypatch.setattr(simple, "_DISTANCES", 1000)
    others = bits(150, seed=5)
    found = simple._distance(split.records, others, 4)
    for label in range(3):
        chosen = split.records.labels == label
        oracle = NearestNeighbors(n_neighbors=4).fit(others.features[others.labels == label].numpy())
        distances, _ = oracle.kneighbors(split.records.features[chosen].numpy())
        assert torch.allclose(found[chosen], torch.tensor(distances[:, 3]).double(), atol=1e-4)


def test_a_class_with_too_few_synthetic_records_is_compared_with_all(split):
    others = bits(50, seed=5)
    others = others.take(others.labels != 2)
    found = simple._distance(split.records, others, 1)
    chosen = split.records.labels == 2
    nearest = torch.cdist(split.records.features[chosen], others.features).min(1).values
    assert torch.allclose(found[chosen], nearest.double(), atol=1e-4)


def test_a_data_release_is_attacked_by_name(split):
    release = released(copies(split.members, 2, 2))
    assert infer_membership(release, split, "nearest").auc > 0.9
    assert infer_membership(release, split, "density-ratio").auc > 0.9
    with pytest.raises(SettingError, match="nearest or density-ratio"):
        infer_membership(release, split, "shadow")


def test_impossible_settings_are_refused(split):
    with pytest.raises(SettingError, match="neighbours"):
        NearestAttack(neighbours=6).against(released(bits(5, seed=0)), split)
    with pytest.raises(SettingError, match="reference"):
        infer_membership(released(bits(5, seed=0)), AttackSplit(split.members, split.nonmembers), "density-ratio")
