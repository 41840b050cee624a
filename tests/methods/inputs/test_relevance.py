"""Private relevances: averaged, noised, and what that costs."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from noiseproof.errors import DataError, SettingError, UnsupportedError
from noiseproof.methods.inputs import Adlm
from noiseproof.methods.inputs.layers import bounded
from noiseproof.methods.inputs.relevance import average, normalise, release_relevance, relevances, split
from noiseproof.networks import Network
from noiseproof.privacy import Reproducible, Secure


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    how=st.sampled_from(["min-max", "magnitude"]),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_normalised_relevances_lie_in_the_unit_interval_and_reach_one(seed, scale, how):
    relevance = scale * torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(seed)).double()
    found = normalise(relevance, how)
    assert found.shape == (5, 6)
    assert float(found.min()) >= 0
    torch.testing.assert_close(found.amax(1), torch.ones(5).double())
    if how == "min-max":
        assert (found.amin(1) == 0).all()


def test_a_record_whose_relevances_are_all_alike_counts_for_nothing():
    for constant in (0.0, 2.5):
        assert (normalise(torch.full((2, 4), constant)) == 0).all()
    assert (normalise(torch.zeros(2, 4), "magnitude") == 0).all()
    with pytest.raises(SettingError, match="'min-max' or 'magnitude'"):
        Adlm(normalised="rank")


def test_the_average_is_over_all_records_however_they_are_batched(monkeypatch):
    features = torch.rand(50, 6, generator=torch.Generator().manual_seed(1))
    expected = normalise(relevances(network(), features)).mean(0)
    torch.testing.assert_close(average(network(), features), expected)
    monkeypatch.setattr("noiseproof.methods.inputs.relevance._ENTRIES", 6 * 16 * 7)
    torch.testing.assert_close(average(network(), features), expected)
    with pytest.raises(DataError, match="no record"):
        average(network(), features[:0])


def test_one_record_moves_the_average_by_no_more_than_what_the_proof_says():
    features = torch.rand(30, 6, generator=torch.Generator().manual_seed(2))
    other = features.clone()
    other[0] = 1 - features[0]
    moved = (average(network(), features) - average(network(), other)).abs().sum()
    assert 0 < float(moved) <= 6 / 30


def test_the_noise_is_lemma_1s_and_costs_half_of_what_is_claimed():
    mean, records, epsilon = torch.full((40_000,), 0.5, dtype=torch.float64), 1000, 0.3
    released = release_relevance(mean, records, epsilon, Reproducible(0))
    assert released.proven == pytest.approx(epsilon / 2)
    # False alarm: below 1e-6.
    scale = 2 * 40_000 / (records * epsilon)
    assert stats.kstest((released.values - mean).numpy(), stats.laplace(scale=scale).cdf).pvalue > 1e-6


def test_rounding_of_secure_noise_is_part_of_the_cost():
    released = release_relevance(torch.zeros(10, dtype=torch.float64), 100, 1.0, Secure())
    assert 0.5 < released.proven < 0.5 + 1e-6


# Layer-wise relevance propagation: by hand, against captum, and conserved.


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
    found = relevances(
        network,
        torch.tensor([x], dtype=torch.float64),
        start=network(torch.tensor([x], dtype=torch.float64)).detach(),
        stabiliser=mu,
    )
    torch.testing.assert_close(found, torch.tensor([expected], dtype=torch.float64))


def test_a_negative_unit_is_moved_further_from_zero():
    network = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, -3.0]]))
    found = relevances(network, torch.ones(1, 2).double(), stabiliser=0.5)
    torch.testing.assert_close(found, torch.tensor([[1 / -2.5 * -2, -3 / -2.5 * -2]]).double())


def only(network, features, target):
    """Each record's output `target`, the others 0."""
    outputs = network(features).detach()
    return outputs * nn.functional.one_hot(torch.as_tensor(target).expand(len(features)), outputs.shape[1])


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
        ours = relevances(network, features, start=only(network, features, target), stabiliser=1e-9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = LRP(network if kind == "dense" else Flattened(network)).attribute(
                features.clone().requires_grad_(), target=target
            )
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-9)


@given(seed=st.integers(0, 10_000), everything=st.booleans())
@settings(deadline=None, derandomize=True, max_examples=40)
def test_without_a_bias_relevance_is_conserved(seed, everything):
    for network, features in ((dense(seed, False), RECORDS["dense"]), (convolutional(seed, False), PICTURES)):
        outputs = network(features).detach()
        whole = outputs.sum(1) if everything else outputs.amax(1)
        found = relevances(network, features, start=outputs if everything else None, stabiliser=1e-12).flatten(1).sum(1)
        torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-4)


def test_any_start_from_one_output_to_the_whole_vector():
    network, features = dense(), RECORDS["dense"]
    each = [relevances(network, features, start=only(network, features, target)) for target in range(3)]
    outputs = network(features).detach()
    torch.testing.assert_close(relevances(network, features, start=outputs), sum(each))
    half = relevances(network, features, start=outputs / 2)
    torch.testing.assert_close(half, sum(each) / 2)
    best = only(network, features, outputs.argmax(1))
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
    with pytest.raises(SettingError, match="start"):
        relevances(dense(), RECORDS["dense"][:1], start=torch.rand(1, 2).double())
    with pytest.raises(SettingError, match="stabiliser"):
        relevances(dense(), RECORDS["dense"], stabiliser=-1.0)


# The beta split: more budget for features that matter more, all of it spent.


@given(
    relevance=st.lists(st.floats(-1e30, 1e30, allow_subnormal=False), min_size=1, max_size=30),
    floor=st.floats(1e-6, 1.0),
    power=st.sampled_from([1.0, 2.0, 4.0]),
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_beta_is_positive_and_sums_to_the_number_of_features(relevance, floor, power):
    values = torch.tensor(relevance, dtype=torch.float64)
    beta = split(values, floor, power)
    assert (beta > 0).all()
    torch.testing.assert_close(beta.sum(), torch.tensor(float(len(relevance))).double())
    order = values.abs().argsort()
    assert (beta[order].diff() >= -1e-9).all()


def test_beta_is_in_proportion_to_the_size_of_relevance():
    beta = split(torch.tensor([1.0, -3.0, 0.5, 0.5]), floor=1e-3)
    torch.testing.assert_close(beta, torch.tensor([0.8, 2.4, 0.4, 0.4]).double())
    torch.testing.assert_close(
        split(torch.tensor([1.0, 3.0]), floor=1e-3, power=2.0), torch.tensor([0.2, 1.8]).double()
    )


def test_relevances_of_all_zeros_split_evenly():
    assert (split(torch.zeros(5)) == 1).all()


def test_a_feature_without_relevance_keeps_the_floor():
    beta = split(torch.tensor([0.0, 1.0]), floor=0.1)
    torch.testing.assert_close(beta, torch.tensor([0.1, 2.0]).double() * 2 / 2.1)


def test_an_impossible_floor_or_power_is_refused():
    for floor, power in ((0.0, 1.0), (1.5, 1.0), (0.1, 0.0), (0.1, -1.0)):
        with pytest.raises(SettingError):
            split(torch.ones(2), floor, power)
