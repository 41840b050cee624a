"""A collection starts from one network, is trained as one or apart with the same outcome, and goes on where it stopped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noiseproof.data import load
from noiseproof.errors import SettingError
from noiseproof.methods.parameters import Collection, train_collection
from noiseproof.methods.parameters import training as module
from noiseproof.networks import Network, Training

TRAINING = Training(epochs=2, batch_size=64, lr=0.1, optimizer="sgd", momentum=0.9)


@pytest.fixture(scope="module")
def digits():
    return load("digits").train.take(torch.arange(200))


@pytest.fixture(scope="module")
def network(digits):
    return Network("mlp", digits.public.shape, 10, {"hidden": 8})


def test_all_networks_start_alike_and_end_apart(digits, network):
    start = train_collection(network, digits, 3, Training(epochs=0, optimizer="sgd"), seed=4)
    first = start.layout.flatten(network.build(4))
    assert all(torch.equal(row, first) for row in start.rows)
    trained = train_collection(network, digits, 3, TRAINING, seed=4)
    distances = torch.pdist(trained.rows)
    assert float(distances.min()) > 0
    assert float(distances.max()) < float((trained.rows - first).norm(dim=1).max())


def test_how_many_are_trained_together_or_in_processes_changes_nothing(digits, network, monkeypatch):
    together = train_collection(network, digits, 4, TRAINING, seed=1)
    monkeypatch.setattr(module, "_TOGETHER", 2 * together.parameters)
    for workers in (1, 2):
        apart = train_collection(network, digits, 4, TRAINING, seed=1, workers=workers)
        assert torch.allclose(apart.rows, together.rows, atol=1e-5)


def test_convolutions_are_trained_one_by_one(digits):
    network = Network("small-cnn", (1, 8, 8), 10, {"channels": 2, "hidden": 4})
    public = replace(digits.public, shape=(1, 8, 8))
    images = replace(digits, features=digits.features.reshape(-1, 1, 8, 8), public=public)
    found = train_collection(network, images, 2, Training(epochs=1, batch_size=100, optimizer="sgd", lr=0.1))
    assert float((found.rows[0] - found.rows[1]).norm()) > 0


def test_a_shards_network_sees_its_own_records_alone_and_an_empty_shards_none(digits, network):
    shards = [torch.arange(50), torch.arange(50, 100), torch.empty(0, dtype=torch.int64)]
    found = train_collection(network, digits, 3, TRAINING, seed=2, shards=shards)
    changed = digits.features.clone()
    changed[60:] = 0.5
    other = replace(digits, features=changed)
    again = train_collection(network, other, 3, TRAINING, seed=2, shards=shards)
    assert torch.equal(found.rows[0], again.rows[0])
    assert not torch.equal(found.rows[1], again.rows[1])
    assert torch.equal(found.rows[2], found.layout.flatten(network.build(2)))


def test_what_is_in_the_file_is_not_trained_again(digits, network, tmp_path, monkeypatch):
    path = tmp_path / "nets.safetensors"
    whole = train_collection(network, digits, 3, TRAINING, seed=1)
    monkeypatch.setattr(module, "_TOGETHER", 1)
    train = module._train
    calls = []

    def interrupted(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(arguments)
        return train(*arguments)

    monkeypatch.setattr(module, "_train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_collection(network, digits, 3, TRAINING, seed=1, path=path)
    assert Collection.open(path).done.tolist() == [1, 1, 0]
    calls.clear()
    found = train_collection(network, digits, 3, TRAINING, seed=1, path=path)
    assert len(calls) == 1
    assert torch.allclose(found.rows, whole.rows, atol=1e-5)
    calls.clear()
    train_collection(network, digits, 3, TRAINING, seed=1, path=path)
    assert calls == []
    with pytest.raises(SettingError, match="other records or settings"):
        train_collection(network, digits, 3, TRAINING, seed=2, path=path)


def test_a_collection_can_be_trained_further(digits, network):
    once = train_collection(network, digits, 2, TRAINING, seed=1)
    further = train_collection(network, digits, 2, TRAINING, seed=2, start=once)
    assert not torch.equal(further.rows, once.rows)
    idle = train_collection(network, digits, 2, Training(epochs=0, optimizer="sgd"), seed=2, start=once)
    assert torch.equal(idle.rows, once.rows)


def test_impossible_collections_are_refused(digits, network):
    with pytest.raises(SettingError, match="at least 2 networks"):
        train_collection(network, digits, 1, TRAINING)
    with pytest.raises(SettingError, match="as many shards"):
        train_collection(network, digits, 3, TRAINING, shards=[torch.arange(5)])
