"""Networks from one start agree in their units; permuted or independent ones are told apart."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.methods.parameters import Collection
from noiseproof.methods.parameters.collection import ParameterLayout, disagreement
from noiseproof.networks import Network

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
    assert found == (0, 0)


def test_a_permuted_network_disagrees_in_every_unit_of_the_layer_and_is_named():
    found = disagreement(Collection.of([state(0, 0.01), state(1, 0.01), permuted(state(2, 0.01))]))
    assert found[1] == 2
    assert found[0] >= 16 / 33


def test_networks_from_different_starts_look_permuted():
    starts = [dict(NETWORK.build(seed).named_parameters()) for seed in range(3)]
    assert disagreement(Collection.of(starts))[0] > 0.7


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_units_that_are_all_alike_do_not_count(value):
    zeros = {name: torch.full_like(tensor, value) for name, tensor in state(0).items()}
    other = {**zeros, "5.bias": torch.ones(5) + 1}
    assert disagreement(Collection.of([zeros, other]))[0] == 0


# A collection refuses what cannot be published from; its file is safetensors at all times and can be gone on with.


LAYOUT = ParameterLayout((("0.weight", (2, 3)), ("0.bias", (2,))))


def network(value: float, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"0.weight": torch.full((2, 3), value), "0.bias": torch.full((2,), value), **changes}


def test_networks_become_rows_whatever_the_order_of_their_tensors():
    one, two = network(1.0), network(2.0)
    found = Collection.of([one, dict(reversed(two.items()))])
    assert (len(found), found.parameters) == (2, 8)
    assert torch.equal(found.rows[1], torch.full((8,), 2.0))
    assert torch.equal(found.mean(), torch.full((8,), 1.5))


@pytest.mark.parametrize(
    ("networks", "words"),
    [
        ([], "at least 2"),
        ([network(1.0)], "at least 2"),
        ([network(1.0), network(1.0), network(1.0)], "all equal"),
        ([network(1.0), {**network(2.0), "0.bias": torch.zeros(3)}], r"network 2 .*0\.bias is 3 rather than 2"),
        ([network(1.0), {"0.weight": torch.zeros(2, 3)}], r"0\.bias is missing"),
        ([network(1.0), network(2.0), network(float("nan"))], "network 3 has weights that are NaN"),
        ([network(1.0), network(float("inf"))], "network 2 has weights that are NaN or infinite"),
    ],
)
def test_what_cannot_be_published_from_is_refused_in_one_sentence(networks, words):
    with pytest.raises(DataError, match=words):
        Collection.of(networks)


def test_a_file_is_safetensors_and_mapped_back_as_it_was(tmp_path):
    rows = torch.randn(5, 8)
    path = Collection(rows, LAYOUT).save(tmp_path / "nets.safetensors")
    found = Collection.open(path)
    assert torch.equal(found.rows, rows)
    assert found.layout == LAYOUT
    assert torch.equal(load_file(path)["parameters"], rows)
    # A reader's writes do not reach the file.
    found.rows.zero_()
    assert torch.equal(Collection.open(path).rows, rows)


def test_an_unfinished_file_can_be_read_and_gone_on_with_but_not_published_from(tmp_path):
    path = tmp_path / "nets.safetensors"
    begun = Collection.create(path, 3, LAYOUT, {"seed": 1})
    begun.rows[1] = 7.0
    begun.done[1] = 1
    again = Collection.open(path, writable=True, belongs={"seed": 1})
    assert again.done.tolist() == [0, 1, 0]
    assert torch.equal(again.rows[1], torch.full((8,), 7.0))
    with pytest.raises(DataError, match="not finished"):
        again.check()


def test_a_file_of_other_settings_or_a_broken_one_is_refused(tmp_path):
    path = tmp_path / "nets.safetensors"
    Collection.create(path, 3, LAYOUT, {"seed": 1})
    with pytest.raises(SettingError, match="other records or settings"):
        Collection.open(path, belongs={"seed": 2})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(NoiseproofError, match="not a whole collection"):
        Collection.open(path)
    (tmp_path / "text").write_text("no")
    with pytest.raises(NoiseproofError, match="not a whole collection"):
        Collection.open(tmp_path / "text")


# A layout takes a network apart into one vector and puts it together again.


@pytest.mark.parametrize(
    ("name", "shape", "count"), [("mnist-net", (1, 28, 28), 1_199_882), ("cifar-net", (3, 32, 32), 1_250_858)]
)
def test_the_papers_networks_have_exactly_the_papers_number_of_parameters(name, shape, count):
    assert ParameterLayout.of(Network(name, shape, 10).build()).size == count


def test_a_network_comes_back_as_it_was():
    network = Network("small-cnn", (1, 28, 28), 10)
    module = network.build(3)
    layout = ParameterLayout.of(module)
    vector = layout.flatten(module)
    again = layout.load(network.build(4), vector)
    assert all(torch.equal(*pair) for pair in zip(module.parameters(), again.parameters(), strict=True))


def test_a_layers_kernel_and_bias_are_one_layer():
    layout = ParameterLayout.of(Network("mlp", (4,), 3, {"hidden": [5, 6]}).build())
    sizes = [place.stop - place.start for place in layout.layers.values()]
    assert sizes == [4 * 5 + 5, 5 * 6 + 6, 6 * 3 + 3]
    assert sum(sizes) == layout.size


def test_stacks_are_unflattened_with_their_first_dimension():
    layout = ParameterLayout((("a", (2, 3)), ("b", (4,))))
    tensors = layout.unflatten(torch.arange(20.0).reshape(2, 10))
    assert tensors["a"].shape == (2, 2, 3)
    assert tensors["b"].tolist() == [[6, 7, 8, 9], [16, 17, 18, 19]]


def test_another_architecture_is_refused():
    with pytest.raises(DataError, match="one architecture"):
        ParameterLayout((("a", (2,)),)).flatten({"a": torch.zeros(3)})
