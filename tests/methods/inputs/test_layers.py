"""Bounded hidden units: eq. 22 as the paper writes it, min-max, and networks that have them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch.autograd.functional import hessian, jacobian
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.methods.inputs.layers import (
    LocalResponse,
    LossNoise,
    MinMax,
    bounded,
    error_bound,
    first_order,
    first_units,
    last_hidden,
    sensitivity,
    taylor_loss,
)
from noiseproof.networks import Network
from noiseproof.privacy import Reproducible, Secure


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


# The Taylor loss, its noise, and the exact numbers of the paper.


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3), st.integers(0, 2))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_the_loss_is_the_one_that_the_authors_program_writes(logits, label):
    z = torch.tensor([logits], dtype=torch.float64)
    y = functional.one_hot(torch.tensor([label]), 3).double()
    theirs = (z.clamp(min=0) - z * y + math.log(2) - z.abs() / 2 + z.square() / 8).sum(1)
    ours = taylor_loss(z, first_order(torch.tensor([label]), 3).double())
    torch.testing.assert_close(ours, theirs)


def test_value_slope_and_curvature_at_zero_are_those_of_cross_entropy():
    labels = torch.tensor([0, 2, 1])
    coefficients, y = first_order(labels, 3).double(), functional.one_hot(labels, 3).double()

    def taylor(z):
        return taylor_loss(z, coefficients).sum()

    def exact(z):
        return functional.binary_cross_entropy_with_logits(z, y, reduction="sum")

    zero = torch.zeros(3, 3, dtype=torch.float64)
    torch.testing.assert_close(taylor(zero), exact(zero))
    torch.testing.assert_close(jacobian(taylor, zero), jacobian(exact, zero))
    torch.testing.assert_close(hessian(taylor, zero), hessian(exact, zero))


def test_the_papers_exact_numbers():
    assert sensitivity(10, 25) == 1812.5
    assert error_bound(1) == pytest.approx((math.e**2 + 2 * math.e - 1) / (math.e * (1 + math.e) ** 2))
    assert error_bound(10) == pytest.approx(3.1466, abs=1e-4)
    published = LossNoise(10, 25, 0.15, 1800)
    assert published.scale == pytest.approx(1812.5 / (0.15 * 1800))
    assert published.local_epsilon(Reproducible(0)) == pytest.approx(0.298, abs=5e-4)
    assert 0 < published.local_epsilon(Secure()) - published.local_epsilon(Reproducible(0)) < 1e-7


def test_the_error_stays_below_lemma_7_where_logits_lie_within_one_of_zero():
    z = torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]
    for label in (0, 1):
        y = torch.full_like(z, float(label))
        exact = functional.binary_cross_entropy_with_logits(z, y, reduction="none")
        assert float((taylor_loss(z, 0.5 - y)[:, None] - exact).abs().max()) < error_bound(1)


def test_every_coefficient_gets_its_own_laplace_noise():
    noise = LossNoise(4, 3, 0.5, 10)
    exact = first_order(torch.zeros(10_000, dtype=torch.int64), 4)
    found = noise.perturb(exact, Reproducible(0)) - exact
    law = stats.laplace(scale=noise.scale)
    for column in found.T:
        assert stats.kstest(column.double().numpy(), law.cdf).pvalue > 1e-6  # false alarm: 1e-6
    with pytest.raises(SettingError, match="epsilon"):
        LossNoise(4, 3, 0.0, 10)


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def test_the_programs_reading_normalises_and_clips_the_last_hidden_layer_alone():
    found = bounded(narrow(), "batch-norm")
    assert [type(layer).__name__ for layer in found] == [
        *("Linear", "ReLU"), *("Linear", "BatchNorm1d", "ReLU", "Hardtanh"), "Linear",
    ]  # fmt: skip
    records = 30 * torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    units = found[:6](records).detach()
    assert 0 <= float(units.min()) < float(units.max()) <= 1
    # In evaluation a record's answer has nothing to do with the others that it is asked with.
    found.eval()
    torch.testing.assert_close(found(records)[:1], found(records[:1]))


def test_max_out_over_as_many_groups_as_units_is_no_activation():
    found = bounded(narrow(), "max-out")
    assert [type(layer).__name__ for layer in found][2:] == ["Linear", "BatchNorm1d", "Hardtanh", "Linear"]
    units = found[:5](torch.randn(200, 6, generator=torch.Generator().manual_seed(0))).detach()
    assert -1 <= float(units.min()) < -0.5


def test_the_program_for_cifar_10_normalises_its_convolutions_too():
    found = bounded(Network("phan-cifar", (3, 20, 20), 10).build(), "max-out")
    kinds = [type(layer).__name__ for layer in found]
    assert kinds[:9] == ["Conv2d", "ReLU", "BatchNorm2d"] * 3
    assert kinds[-4:] == ["Linear", "BatchNorm1d", "Hardtanh", "Linear"]
    records = torch.rand(8, 3, 20, 20, generator=torch.Generator().manual_seed(0))
    found(records)
    found.eval()
    torch.testing.assert_close(found(records)[:1], found(records[:1]))
    assert "BatchNorm2d" not in {
        type(layer).__name__ for layer in bounded(Network("phan-mnist", (1, 28, 28), 10).build(), "batch-norm")
    }


def test_a_network_without_hidden_layer_has_nothing_to_bound():
    assert len(bounded(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "batch-norm")) == 2
