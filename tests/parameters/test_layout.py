"""A layout takes a network apart into one vector and puts it together again."""

from __future__ import annotations

import pytest
import torch

from noiseproof.errors import DataError
from noiseproof.networks import Network
from noiseproof.parameters.layout import Layout


@pytest.mark.parametrize(
    ("name", "shape", "count"), [("mnist-net", (1, 28, 28), 1_199_882), ("cifar-net", (3, 32, 32), 1_250_858)]
)
def test_the_papers_networks_have_exactly_the_papers_number_of_parameters(name, shape, count):
    assert Layout.of_module(Network(name, shape, 10).build()).size == count


def test_a_network_comes_back_as_it_was():
    network = Network("small-cnn", (1, 28, 28), 10)
    module = network.build(3)
    layout = Layout.of_module(module)
    vector = layout.flatten(dict(module.named_parameters()))
    again = layout.module(network.build(4), vector)
    assert all(torch.equal(*pair) for pair in zip(module.parameters(), again.parameters(), strict=True))


def test_a_layers_kernel_and_bias_are_one_layer():
    layout = Layout.of_module(Network("mlp", (4,), 3, {"hidden": [5, 6]}).build())
    sizes = [place.stop - place.start for place in layout.layers.values()]
    assert sizes == [4 * 5 + 5, 5 * 6 + 6, 6 * 3 + 3]
    assert sum(sizes) == layout.size


def test_stacks_are_unflattened_with_their_first_dimension():
    layout = Layout((("a", (2, 3)), ("b", (4,))))
    tensors = layout.unflatten(torch.arange(20.0).reshape(2, 10))
    assert tensors["a"].shape == (2, 2, 3)
    assert tensors["b"].tolist() == [[6, 7, 8, 9], [16, 17, 18, 19]]


def test_another_architecture_is_refused():
    with pytest.raises(DataError, match="one architecture"):
        Layout((("a", (2,)),)).flatten({"a": torch.zeros(3)})
