"""Canaries: within the public bounds, and as telling as they are meant to be."""

from __future__ import annotations

import pytest
import torch

from noiseproof.audits.canaries import corner, insert, many_mislabelled, mislabelled
from noiseproof.data import Dataset, Public, neighbours
from noiseproof.errors import SettingError


@pytest.fixture
def dataset():
    generator = torch.Generator().manual_seed(0)
    public = Public(shape=(2, 3), classes=("a", "b", "c"))
    labels = torch.tensor([0] * 10 + [1] * 3 + [2] * 7)
    return Dataset("small", torch.rand(20, 2, 3, generator=generator) * 0.4, labels, public)


def test_a_mislabelled_record_differs_in_its_label_only(dataset):
    features, label = mislabelled(dataset, 19)
    assert torch.equal(features, dataset.features[19])
    assert label == 0


def test_the_corner_is_the_furthest_from_the_mean_in_the_rarest_class(dataset):
    features, label = corner(dataset)
    assert torch.equal(features, torch.ones(2, 3))
    assert label == 1


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_canaries_make_neighbouring_worlds(dataset, relation):
    for canary in (mislabelled(dataset), corner(dataset)):
        first, second = neighbours(dataset, relation=relation, canary=canary)
        assert len(first) - len(second) == (1 if relation == "add-or-remove" else 0)


def test_many_canaries_are_different_records_with_wrong_labels(dataset):
    canaries = many_mislabelled(dataset, 20, torch.Generator().manual_seed(0))
    assert len(torch.unique(canaries.features.flatten(1), dim=0)) == 20
    for features, label in zip(canaries.features, canaries.labels, strict=True):
        place = int((dataset.features == features).flatten(1).all(1).nonzero())
        assert int(dataset.labels[place]) != int(label)


def test_included_canaries_are_put_at_the_end(dataset):
    canaries = many_mislabelled(dataset, 4, torch.Generator().manual_seed(0))
    world = insert(dataset, canaries, torch.tensor([True, False, True, False]))
    assert len(world) == 22
    assert torch.equal(world.features[20:], canaries.features[[0, 2]])
    assert torch.equal(world.labels[20:], canaries.labels[[0, 2]])


def test_what_makes_no_canary_is_refused(dataset):
    generator = torch.Generator()
    for act, words in [
        (lambda: many_mislabelled(dataset, 21, generator), "21 canaries"),
        (lambda: insert(dataset, dataset, torch.ones(20)), "one coin"),
    ]:
        with pytest.raises(SettingError, match=words):
            act()
