"""Layer-wise relevance propagation: by hand, against captum, and conserved."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.inputs import bounded, relevances
from noiseproof.networks import Network


def dense(seed: int = 0, bias: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 9, bias), nn.ReLU(), nn.Linear(9, 5, bias), nn.Tanh(), nn.Linear(5, 3, bias)
    ).double()


def convolutional(seed: int = 0, bias: bool = True, pool: type[nn.Module] = nn.MaxPool2d) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=bias),
        nn.ReLU(),
        pool(2),
        nn.Conv2d(4, 3, 3, bias=bias),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3 * 2 * 2, 3, bias),
    ).double()


RECORDS = {"dense": torch.rand(7, 6, generator=torch.Generator().manual_seed(1)).double()}
PICTURES = torch.rand(7, 2, 8, 8, generator=torch.Generator().manual_seed(2)).double()


def test_two_layers_by_hand():
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
        network[0].bias.copy_(torch.tensor([0.5, -1.0]))
        network[2].weight.copy_(torch.tensor([[2.0, -1.0]]))
        network[2].bias.copy_(torch.tensor([0.25]))
    mu = 0.1
    x = (1.0, 0.5)
    # z1 = 2.5 and z2 = 1.5, both kept by ReLU; the output is 2 * 2.5 - 1.5 + 0.25 = 3.75.
    hidden = (5.0 / (3.75 + mu) * 3.75, -1.5 / (3.75 + mu) * 3.75)
    expected = [
        x[0] * 1 / (2.5 + mu) * hidden[0] + x[0] * 3 / (1.5 + mu) * hidden[1],
        x[1] * 2 / (2.5 + mu) * hidden[0] + x[1] * -1 / (1.5 + mu) * hidden[1],
    ]
    found = relevances(network, torch.tensor([x], dtype=torch.float64), start="outputs", stabiliser=mu)
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_a_negative_unit_is_moved_further_from_zero():
    network = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, -3.0]]))
    found = relevances(network, torch.ones(1, 2).double(), stabiliser=0.5)
    torch.testing.assert_close(found, torch.tensor([[1 / -2.5 * -2, -3 / -2.5 * -2]]).double())


class Flattened(nn.Module):
    """The convolutional network with a reshaping that is no layer: captum has no rule for one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.body, self.head = network[:5], network[6]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(features).flatten(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["dense", "max-pool", "average-pool"])
def test_captum_finds_the_same(kind, bias):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # captum's own
        from captum.attr import LRP

    if kind == "dense":
        network, features = dense(bias=bias), RECORDS["dense"]
    else:
        network = convolutional(bias=bias, pool=nn.MaxPool2d if kind == "max-pool" else nn.AvgPool2d)
        features = PICTURES
    for target in range(3):
        ours = relevances(network, features, start=torch.full((len(features),), target), stabiliser=1e-9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = LRP(network if kind == "dense" else Flattened(network)).attribute(
                features.clone().requires_grad_(), target=target
            )
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-9)


@given(seed=st.integers(0, 10_000), start=st.sampled_from(["predicted", "outputs"]))
@settings(deadline=None, derandomize=True, max_examples=40)
def test_without_a_bias_relevance_is_conserved(seed, start):
    for network, features in ((dense(seed, False), RECORDS["dense"]), (convolutional(seed, False), PICTURES)):
        outputs = network(features).detach()
        whole = outputs.sum(1) if start == "outputs" else outputs.amax(1)
        found = relevances(network, features, start=start, stabiliser=1e-12).flatten(1).sum(1)
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)


def test_any_start_from_one_output_to_the_whole_vector():
    network, features = dense(), RECORDS["dense"]
    each = [relevances(network, features, start=torch.full((7,), target)) for target in range(3)]
    torch.testing.assert_close(relevances(network, features, start="outputs"), sum(each))
    outputs = network(features).detach()
    half = relevances(network, features, start=outputs / 2)
    torch.testing.assert_close(half, sum(each) / 2)
    best = outputs.argmax(1)
    torch.testing.assert_close(relevances(network, features), relevances(network, features, start=best))


@pytest.mark.parametrize("network", [dense(), convolutional()], ids=["dense", "convolutional"])
def test_a_record_has_the_same_relevances_alone_and_in_a_batch(network):
    features = RECORDS["dense"] if isinstance(network[0], nn.Linear) else PICTURES
    alone = torch.cat([relevances(network, features[index : index + 1]) for index in range(len(features))])
    torch.testing.assert_close(relevances(network, features), alone)


def test_features_that_are_zero_have_no_relevance_and_no_relevance_is_ever_nan():
    network = dense()
    features = RECORDS["dense"].clone()
    features[:, 2] = 0
    assert (relevances(network, features, stabiliser=0.0)[:, 2] == 0).all()
    assert (relevances(dense(bias=False), torch.zeros(2, 6).double(), stabiliser=0.0) == 0).all()


def test_bounded_networks_hand_relevance_through_their_normalisations():
    network = Network("phan-mnist", (1, 8, 8), 3).build(0)
    pictures = torch.rand(3, 1, 8, 8)
    assert torch.isfinite(relevances(bounded(network), pictures)).all()
    assert not network.training or relevances(network, pictures).shape == pictures.shape


def test_a_network_keeps_its_mode_and_its_gradients():
    network = dense().train()
    relevances(network, RECORDS["dense"])
    assert network.training
    assert all(parameter.grad is None for parameter in network.parameters())


def test_what_has_no_rule_is_refused_in_words():
    with pytest.raises(UnsupportedError, match="Bilinear"):
        relevances(nn.Sequential(nn.Bilinear(2, 2, 2)), torch.rand(1, 2))
    for start in (torch.tensor([3]), torch.rand(1, 2).double(), "best"):
        with pytest.raises(SettingError, match="start"):
            relevances(dense(), RECORDS["dense"][:1], start=start)
    with pytest.raises(SettingError, match="stabiliser"):
        relevances(dense(), RECORDS["dense"], stabiliser=-1.0)
