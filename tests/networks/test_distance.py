"""TPVD is a mean of relative distances of weights, in Python and on the command line."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import noiseproof as npf
from noiseproof.cli import main
from noiseproof.errors import SettingError
from noiseproof.networks import tpvd


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


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


def test_the_command_line_compares_two_bundles(tmp_path, capsys):
    records = npf.load("digits").train.take(torch.arange(60))
    for name, epochs in (("plain", 1), ("longer", 2)):
        npf.train("none", records, seed=0, network="linear", epochs=epochs).save(tmp_path / name)
    with pytest.raises(SystemExit) as stop:
        main(["tpvd", str(tmp_path / "plain"), str(tmp_path / "longer"), "--json"])
    assert not stop.value.code
    assert 0 < json.loads(capsys.readouterr().out)["tpvd"] < 2
