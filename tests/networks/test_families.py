"""What holds for every network that can be built by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from noiseproof.errors import SettingError
from noiseproof.networks import Network, names, suggest

IMAGES = ("lin-cnn", "lin-lstm", "mnist-net", "cifar-net", "phan-mnist", "phan-cifar", "small-cnn")
SHAPES = dict.fromkeys(IMAGES, (1, 12, 12)) | {"lstm": (3, 6, 4)}


def network(name: str, classes: int = 3) -> Network:
    return Network(name, SHAPES.get(name, (7,)), classes)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "parameters"),
    [
        ("lin-cnn", (1, 28, 28), 10, 3_274_634),
        ("mnist-net", (1, 28, 28), 10, 1_199_882),
        ("cifar-net", (3, 32, 32), 10, 1_250_858),
        ("lu-mlp", (446,), 30, 446 * 128 + 128 + 128 * 30 + 30),
        ("lin-lstm", (1, 28, 28), 10, (28 + 128) * 512 + 512 + 128 * 10 + 10),
        ("small-cnn", (1, 28, 28), 10, 26_106),
        ("phan-mnist", (1, 28, 28), 10, 832 + 51_264 + 7 * 7 * 64 * 25 + 25 + 260),
    ],
)
def test_networks_have_the_stated_number_of_parameters(name, shape, classes, parameters):
    assert count(Network(name, shape, classes).build()) == parameters


@pytest.mark.parametrize("name", names())
def test_a_network_maps_a_batch_to_one_logit_a_class(name):
    recipe = network(name)
    logits = recipe.build()(torch.rand(5, *recipe.input_shape))
    assert logits.shape == (5, 3)
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", names())
def test_the_same_seed_gives_the_same_weights_and_leaves_the_global_generator_alone(name):
    recipe = network(name)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = recipe.build(1), recipe.build(1), recipe.build(2)
    assert torch.equal(before, torch.get_rng_state())
    same = [torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True)]
    assert all(same)
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", names())
def test_no_network_mixes_records(name):
    recipe = network(name)
    module = recipe.build().eval()
    records = torch.rand(4, *recipe.input_shape)
    changed = records.clone()
    changed[1:] = torch.rand(3, *recipe.input_shape)
    assert torch.allclose(module(records)[0], module(changed)[0], atol=1e-6)
    assert not any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())


@pytest.mark.parametrize("name", names())
def test_every_network_has_gradients_per_record_through_vmap(name):
    recipe = network(name)
    module = recipe.build().eval()
    parameters = {key: value.detach() for key, value in module.named_parameters()}

    def loss(weights, record, label):
        return nn.functional.cross_entropy(functional_call(module, weights, (record[None],)), label[None])

    records, labels = torch.rand(3, *recipe.input_shape), torch.tensor([0, 1, 2])
    per_record = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, records, labels)
    nn.functional.cross_entropy(module(records), labels).backward()
    for key, parameter in module.named_parameters():
        assert torch.allclose(per_record[key].mean(0), parameter.grad, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "linear", "lu-mlp"])
def test_dense_networks_flatten_images(name):
    assert Network(name, (1, 4, 4), 2).build()(torch.rand(3, 1, 4, 4)).shape == (3, 2)


def test_mlp_takes_one_width_or_several():
    layers = Network("mlp", (5,), 2, {"hidden": [4, 3], "activation": "relu"}).build()
    assert [layer.out_features for layer in layers if isinstance(layer, nn.Linear)] == [4, 3, 2]
    assert isinstance(layers[2], nn.ReLU)
    assert count(Network("mlp", (5,), 2, {"hidden": 4}).build()) == 5 * 4 + 4 + 4 * 2 + 2


def test_lstm_reads_an_image_row_by_row():
    module = Network("lstm", (1, 5, 4), 2).build()
    early, late = torch.zeros(1, 1, 5, 4), torch.zeros(1, 1, 5, 4)
    early[..., 0, :], late[..., 4, :] = 1, 1
    assert not torch.allclose(module(early), module(late))


def test_lstm_agrees_with_torchs():
    module = Network("lstm", (6, 4), 2, {"units": 3}).build()
    layer, oracle = module[1], nn.LSTM(4, 3, batch_first=True)
    with torch.no_grad():
        oracle.weight_ih_l0.copy_(layer.inputs.weight)
        oracle.weight_hh_l0.copy_(layer.recurrent.weight)
        oracle.bias_ih_l0.copy_(layer.inputs.bias)
        oracle.bias_hh_l0.zero_()
    sequence = torch.randn(5, 6, 4)
    assert torch.allclose(layer(sequence), oracle(sequence)[0][:, -1], atol=1e-6)


@pytest.mark.parametrize("size", [2, 8, 23, 24, 28, 32, 33, 64])
def test_small_cnn_takes_images_of_any_size_and_stays_small(size):
    module = Network("small-cnn", (3, size, size + 1), 10).build()
    assert module(torch.rand(2, 3, size, size + 1)).shape == (2, 10)
    assert count(module) < 250_000


@pytest.mark.parametrize(
    ("name", "shape", "options", "says"),
    [
        ("mlp", (5,), {"hidden": 0}, "hidden"),
        ("mlp", (5,), {"hidden": [4, -1]}, "hidden"),
        ("mlp", (5,), {"hidden": "many"}, "hidden"),
        ("mlp", (5,), {"activation": "step"}, "activation"),
        ("mlp", (5,), {"depth": 3}, "no option 'depth'"),
        ("mlp", (), {}, "no features"),
        ("linear", (5,), {"hidden": 3}, "no option"),
        ("lin-cnn", (784,), {}, "images"),
        ("lin-cnn", (1, 28, 28), {"dropout": 1.0}, "dropout"),
        ("cifar-net", (3, 8, 8), {}, "10x10"),
        ("small-cnn", (1, 8, 8), {"channels": 1.5}, "channels"),
        ("lstm", (7,), {}, "steps"),
        ("lstm", (7,), {"steps": 2}, "equal steps"),
        ("perceptron", (7,), {}, "no network"),
    ],
)
def test_bad_options_are_setting_errors_that_name_the_option(name, shape, options, says):
    with pytest.raises(SettingError, match=says):
        Network(name, shape, 3, options).build()


@pytest.mark.parametrize("name", names())
def test_a_network_has_at_least_one_output(name):
    assert network(name, classes=1).build() is not None
    with pytest.raises(SettingError, match="1 output"):
        network(name, classes=0).build()


def test_suggestions_follow_the_kind_of_records():
    assert suggest((1, 28, 28), 10, "image").name == "small-cnn"
    assert suggest((446,), 30, "vector").name == "mlp"
    assert suggest((14,), 2, "table").build()(torch.rand(2, 14)).shape == (2, 2)


def test_the_start_of_tensorflows_tutorials_is_cut_off_at_two_deviations_with_biases_of_a_tenth():
    network = Network("lin-cnn", (1, 28, 28), 10, {"start": "truncated-normal"}).build(0)
    assert sum(parameter.numel() for parameter in network.parameters()) == 3_274_634
    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert float(layer.weight.detach().abs().max()) <= 0.2
            assert torch.equal(layer.bias, torch.full_like(layer.bias, 0.1))
    # A normal of deviation 1 cut off at 2 has one of .8796.
    assert float(network[7].weight.detach().std()) == pytest.approx(0.08796, rel=1e-3)


def test_the_lstm_of_tensorflows_examples_starts_from_standard_normals_to_the_classes_alone():
    network = Network("lin-lstm", (1, 28, 28), 10, {"start": "normal"}).build(0)
    own, output = network[1], network[2]
    assert float(output.weight.detach().std()) == pytest.approx(1.0, abs=0.1)
    assert float(output.bias.detach().abs().max()) > 0.2
    # The cell is TensorFlow's: Glorot weights, a forget gate that starts open.
    assert float(own.recurrent.weight.detach().abs().max()) < 0.1
    assert own.inputs.bias[128:256].tolist() == [1.0] * 128


def test_a_linear_network_can_start_at_zero_on_normalised_records():
    network = Network("linear", (1, 4, 4), 3, {"start": "zeros", "norm": True}).build(0)
    assert sum(parameter.numel() for parameter in network.parameters()) == 16 * 3 + 3
    assert not any(parameter.any() for parameter in network.parameters())
