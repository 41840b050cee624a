"""Bounded hidden units: eq. 22 as the paper writes it, min-max, and networks that have them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof.inputs import LocalResponse, MinMax, bounded
from noiseproof.inputs.layers import first_units, last_hidden
from noiseproof.networks import Network


def test_local_response_is_equation_22():
    units = 40 * torch.rand(2, 7, 3, 2, generator=torch.Generator().manual_seed(0)).double()
    found = LocalResponse()(units)
    for k in range(7):
        total = units[:, max(0, k - 2) : min(6, k + 2) + 1].square().sum(1)
        expected = units[:, k] / torch.maximum(units[:, k], (2 + 1e-4 * total) ** 0.75)
        torch.testing.assert_close(found[:, k], expected)
    assert 0 <= float(found.min()) <= float(found.max()) <= 1


def test_min_max_takes_the_batchs_extremes_in_training_and_keeps_them():
    units = torch.randn(50, 8, generator=torch.Generator().manual_seed(1))
    layer = MinMax(8).train()
    found = layer(units)
    torch.testing.assert_close(found.amin(0), torch.zeros(8))
    torch.testing.assert_close(found.amax(0), torch.ones(8))
    layer.eval()
    torch.testing.assert_close(layer(units[:1]), found[:1])
    assert 0 <= float(layer(9 * units).min()) <= float(layer(9 * units).max()) <= 1
    assert (MinMax(3).train()(torch.full((2, 3), 4.0)) == 0).all()


def test_every_hidden_layer_is_bounded_and_the_outputs_are_not():
    plain = Network("phan-mnist", (1, 28, 28), 10).build(0)
    kinds = [type(layer) for layer in bounded(plain)]
    assert kinds.count(LocalResponse) == 2
    assert kinds.count(MinMax) == 1
    assert kinds[-2:] == [MinMax, nn.Linear]
    mlp = bounded(Network("mlp", (6,), 3, {"hidden": [5, 4]}).build(0))
    assert [type(layer) for layer in mlp].count(MinMax) == 2


@pytest.mark.parametrize("name", ["phan-mnist", "mlp", "small-cnn"])
def test_a_bounded_network_has_the_weights_of_the_network_it_bounds(name):
    plain = Network(name, (1, 28, 28), 4).build(7)
    for ours, theirs in zip(bounded(plain).parameters(), plain.parameters(), strict=True):
        assert ours is theirs


def test_first_units_are_counted_as_the_authors_count_them():
    units, reads = first_units(Network("phan-mnist", (1, 28, 28), 10).build(), (1, 28, 28))
    assert 2 * units * reads == 9800
    assert first_units(bounded(Network("phan-mnist", (1, 28, 28), 10).build()), (1, 28, 28)) == (units, reads)
    assert first_units(Network("phan-cifar", (3, 32, 32), 10).build(), (3, 32, 32)) == (16 * 16, 27)
    assert first_units(Network("mlp", (6,), 3, {"hidden": 5}).build(), (6,)) == (5, 6)
    assert last_hidden(Network("phan-mnist", (1, 28, 28), 10).build()) == 25
