"""Networks from one start agree in their units; permuted or independent ones are told apart."""

from __future__ import annotations

import pytest
import torch

from noiseproof.networks import Network
from noiseproof.parameters import Collection
from noiseproof.parameters.alignment import disagreement

NETWORK = Network("mlp", (20,), 5, {"hidden": [16, 12]})


def state(seed: int, noise: float = 0.0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value.detach() + noise * torch.randn(value.shape, generator=generator)
        for name, value in NETWORK.build(0).named_parameters()
    }


def permuted(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same function with the units of the first hidden layer in another order."""
    order = torch.arange(15, -1, -1)
    first, bias, second = (tensors[name] for name in ("1.weight", "1.bias", "3.weight"))
    return {**tensors, "1.weight": first[order], "1.bias": bias[order], "3.weight": second[:, order]}


def test_networks_near_each_other_agree():
    found = disagreement(Collection.of([state(seed, 0.05) for seed in range(4)]))
    assert found.share == 0
    assert not found.permuted


def test_a_permuted_network_disagrees_in_every_unit_of_the_layer_and_is_named():
    found = disagreement(Collection.of([state(0, 0.01), state(1, 0.01), permuted(state(2, 0.01))]))
    assert found.network == 2
    assert found.share >= 16 / 33
    assert found.permuted


def test_networks_from_different_starts_look_permuted():
    starts = [dict(NETWORK.build(seed).named_parameters()) for seed in range(3)]
    assert disagreement(Collection.of(starts)).share > 0.7


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_units_that_are_all_alike_do_not_count(value):
    zeros = {name: torch.full_like(tensor, value) for name, tensor in state(0).items()}
    other = {**zeros, "5.bias": torch.ones(5) + 1}
    assert disagreement(Collection.of([zeros, other])).share == 0
