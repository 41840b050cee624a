"""A stack of networks computes what its networks compute one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.networks import Network, StackedNetwork, names

IMAGES = ("lin-cnn", "lin-lstm", "mnist-net", "cifar-net", "phan-mnist", "phan-cifar", "small-cnn")
SHAPES = dict.fromkeys(IMAGES, (1, 12, 12)) | {"lstm": (3, 6, 4)}


def network(name: str) -> Network:
    return Network(name, SHAPES.get(name, (7,)), 3)


@pytest.mark.parametrize("name", names())
def test_logits_are_those_of_each_network_alone(name):
    recipe = network(name)
    stack = StackedNetwork.of(recipe, [4, 5, 6])
    records = torch.rand(5, *recipe.input_shape)
    together = stack.logits(records, batch_size=2)
    assert together.shape == (3, 5, 3)
    for j, seed in enumerate([4, 5, 6]):
        with torch.no_grad():
            assert torch.allclose(together[j], recipe.build(seed).eval()(records), atol=1e-5)


@pytest.mark.parametrize("name", names())
def test_gradients_are_those_of_each_network_alone(name):
    recipe = network(name)
    stack = StackedNetwork.of(recipe, [1, 2])
    weights = {key: value.requires_grad_() for key, value in stack.parameters.items()}
    records = torch.rand(2, 4, *recipe.input_shape)
    stack.forward(records, weights).square().sum().backward()
    for j, seed in enumerate([1, 2]):
        alone = recipe.build(seed).eval()
        alone(records[j]).square().sum().backward()
        for key, parameter in alone.named_parameters():
            scale = 1 + parameter.grad.abs().max()
            assert torch.allclose(weights[key].grad[j] / scale, parameter.grad / scale, atol=1e-5)


def test_a_stack_of_modules_gives_its_modules_back():
    recipe = Network("mlp", (4,), 2)
    modules = [recipe.build(seed) for seed in (3, 9)]
    stack = StackedNetwork.from_modules(recipe, modules)
    assert len(stack) == 2
    for j, module in enumerate(modules):
        again = stack.module(j)
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), module.parameters(), strict=True))
    # The copy is the caller's own: training it does not move the stack.
    with torch.no_grad():
        next(again.parameters()).zero_()
    assert not stack.parameters["1.weight"][1].eq(0).all()


def test_a_network_of_the_users_own_can_be_stacked():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(torch.sin(x * self.scale))

    module = Own()
    stack = StackedNetwork.of(Network.of(module, (4,), 2), [0, 1])
    records = torch.rand(3, 4)
    assert torch.allclose(stack.logits(records)[1], module(records), atol=1e-6)


def test_dropout_draws_from_each_networks_own_generator():
    recipe = network("mnist-net")
    stack = StackedNetwork.of(recipe, [0, 0])
    records = torch.rand(3, *recipe.input_shape).expand(2, 3, *recipe.input_shape)

    def run(*seeds):
        return stack.forward(records, generators=[torch.Generator().manual_seed(seed) for seed in seeds]).detach()

    assert torch.allclose(run(1, 1)[0], run(1, 1)[1], atol=1e-6)
    assert torch.allclose(run(1, 2)[0], run(1, 7)[0], atol=1e-6)
    assert not torch.allclose(run(1, 2)[1], run(1, 7)[1], atol=1e-3)


def test_dropout_keeps_the_mean():
    recipe = Network.of(nn.Sequential(nn.Dropout(0.25)), (1000,), 1000)
    stack = StackedNetwork(Network("mlp", (1,), 2), StackedNetwork.of(Network("mlp", (1,), 2), [0]).parameters)
    stack._layers = (("", recipe.build()[0]),)
    dropped = stack.forward(torch.ones(1, 1000, 1000), generators=[torch.Generator().manual_seed(0)])
    kept = dropped.ne(0).double().mean()
    # 1e6 fair draws: six standard deviations are 0.0026, a false alarm in 5e8.
    assert abs(kept - 0.75) < 0.0026
    assert torch.allclose(dropped[dropped != 0], torch.tensor(1 / 0.75))


def test_hidden_dropout_and_batch_normalisation_are_refused():
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.drop(x))

    stack = StackedNetwork.of(Network.of(Hidden(), (2,), 2), [0])
    assert stack.logits(torch.rand(3, 2)).shape == (1, 3, 2)
    with pytest.raises(UnsupportedError, match="dropout"):
        stack.forward(torch.rand(1, 3, 2), generators=[torch.Generator()])
    with pytest.raises(UnsupportedError, match="mixes records"):
        StackedNetwork.of(Network.of(nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)), (2,), 2), [0])


def test_networks_of_several_shapes_are_refused():
    recipe = Network("mlp", (4,), 2)
    with pytest.raises(SettingError, match="one shape"):
        StackedNetwork.from_modules(recipe, [recipe.build(), Network("mlp", (5,), 2).build()])
    with pytest.raises(SettingError, match="one shape"):
        StackedNetwork(recipe, StackedNetwork.of(Network("mlp", (5,), 2), [0]).parameters)
    with pytest.raises(SettingError, match="at least one"):
        StackedNetwork.of(recipe, [])
