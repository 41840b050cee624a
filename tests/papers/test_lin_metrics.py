"""TPVD is a mean of relative distances; convergence is the training loss; curves look where they are told to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import SettingError
from papers.lin.metrics import Curves, accuracy, convergence, tpvd


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def dataset(records: int = 30) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(records, 4, generator=generator)
    return Dataset("half", features, (features[:, 0] > 0.5).long(), Public((4,), ("low", "high")))


def test_tpvd_is_the_mean_of_relative_frobenius_distances():
    before = [torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0], [0.0]])]
    after = [torch.tensor([[3.0, 9.0]]), torch.tensor([[1.0], [2.0]])]
    assert tpvd(before, after) == pytest.approx((5 / 5 + 2 / 1) / 2)


def test_tpvd_of_a_network_with_itself_is_zero():
    assert tpvd(network(), network()) == 0


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.floats(-10, 10), st.floats(1e-3, 1e3))
def test_tpvd_of_stretched_weights_is_the_stretch_whatever_their_unit(stretch, unit):
    before = [unit * weight for weight in network().parameters()]
    after = [(1 + stretch) * weight for weight in before]
    assert tpvd(before, after) == pytest.approx(abs(stretch), rel=1e-4, abs=1e-5)


def test_biases_do_not_count_in_tpvd():
    before, after = network(), network()
    with torch.no_grad():
        after[1].bias.add_(100)
    assert tpvd(before, after) == 0
    with torch.no_grad():
        after[1].weight.mul_(3)
    assert tpvd(before, after) == pytest.approx(1.0)  # the mean of 2 and 0


def test_tpvd_takes_modules_and_state_dicts_alike_in_any_order():
    before, after = network(0), network(1)
    turned = dict(reversed(after.state_dict().items()))
    assert tpvd(before.state_dict(), turned) == tpvd(before, after) > 0


def test_a_tensor_that_is_zero_in_the_reference_is_left_out_of_tpvd():
    before = [torch.zeros(2, 2), torch.ones(2, 2)]
    assert tpvd(before, [torch.ones(2, 2), 2 * torch.ones(2, 2)]) == pytest.approx(1.0)
    with pytest.raises(SettingError, match="at least one weight tensor that is not zero"):
        tpvd(before[:1], before[:1])


def test_tpvd_refuses_networks_of_different_shapes():
    with pytest.raises(SettingError, match="differ in their shapes"):
        tpvd([torch.ones(2, 2)], [torch.ones(2, 3)])


def test_convergence_is_the_mean_cross_entropy_without_dropout():
    data = dataset()
    module = nn.Sequential(nn.Dropout(0.9), nn.Linear(4, 2))
    module.train()
    with torch.no_grad():
        expected = nn.functional.cross_entropy(module[1](data.features), data.labels)
    assert convergence(module, data) == pytest.approx(float(expected), rel=1e-6)
    assert module.training


def test_an_untrained_guess_converges_to_the_log_of_the_classes():
    module = nn.Linear(4, 2)
    nn.init.zeros_(module.weight)
    nn.init.zeros_(module.bias)
    assert convergence(module, dataset()) == pytest.approx(math.log(2))


def test_curves_look_at_the_start_and_every_so_many_steps():
    data, module = dataset(), network()
    curves = Curves(module, data, data, every=2)
    with torch.no_grad():
        module[3].bias.add_(torch.tensor([5.0, 0.0]))
    for step in range(1, 6):
        curves(step, 0.0)
    curves.look(5)
    curves.look(5)
    assert curves.steps == [0, 2, 4, 5]
    assert curves.losses[1:] == [convergence(module, data)] * 3
    assert curves.accuracies[-1] == accuracy(module, data) == float((data.labels == 0).double().mean())
    assert curves.losses[0] != curves.losses[1]
