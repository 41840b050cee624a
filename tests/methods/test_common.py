"""What methods share: here, that nothing of a secure run follows from a seed that could be tried."""

from __future__ import annotations

import pytest
import torch

import noiseproof as npf
from noiseproof import tensors
from noiseproof.methods.common import initial_seed
from noiseproof.networks import Network
from noiseproof.privacy import Reproducible, Secure


def test_a_secure_runs_seed_has_256_bits_and_a_rehearsals_31():
    drawn = [initial_seed(Secure()) for _ in range(50)]
    assert len(set(drawn)) == 50
    assert {seed.bit_length() for seed in drawn} == {257}
    # Each of 256 bits is 0 in some seed and 1 in another, but for 256 * 2^-49 < 1e-12.
    mask = (1 << 256) - 1
    assert all(any(seed >> bit & 1 for seed in drawn) for bit in range(256))
    assert all(any(~seed & mask & 1 << bit for seed in drawn) for bit in range(256))
    rehearsed = [initial_seed(Reproducible(1)) for _ in range(3)]
    assert len(set(rehearsed)) == 1
    assert rehearsed[0] < 2**31


@pytest.mark.parametrize("network", [Network("mlp", (4,), 3), Network("mapped", (4,), 3, {"maps": []})])
def test_networks_start_from_every_bit_of_a_seed(network):
    def weights(seed):
        return torch.cat([parameter.flatten() for parameter in network.build(seed).parameters()])

    seed = initial_seed(Secure())
    assert torch.equal(weights(seed), weights(seed))
    assert not torch.equal(weights(seed), weights(seed ^ 1 << 200))
    assert torch.equal(weights(7), weights(7))
    assert not torch.equal(weights(7), weights(8))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dp-sgd", {"epochs": 1}),
        ("teachers", {"teachers": 3, "epochs": 1}),
        ("shard-mean", {"epochs": 1}),
        pytest.param("dp-gan", {"steps": 2}, marks=pytest.mark.slow),
        ("adlm", {"epochs": 1}),
    ],
)
def test_no_generator_of_a_secure_run_is_seeded_by_few_bits(method, settings, monkeypatch):
    records = npf.load("breast-cancer").train.take(torch.arange(60))
    seeds = []
    original = tensors.seeded_generator

    def watched(seed):
        seeds.append(seed)
        return original(seed)

    monkeypatch.setattr(tensors, "seeded_generator", watched)
    monkeypatch.setattr(torch, "manual_seed", lambda seed: pytest.fail("torch takes 32 bits of a seed"))
    npf.train(method, records, epsilon=3, **settings)
    used = [seed for seed in seeds if seed]  # from 0 come templates, whose weights nobody uses
    assert used
    assert min(used) >= 2**256
