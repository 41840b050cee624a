"""Layers that mix records are replaced, and it is said which."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import noiseproof as npf
from noiseproof.engine import PerRecordGradients
from noiseproof.errors import UnsupportedError


def test_batch_norms_become_group_norms_with_their_scale_and_shift(caplog):
    model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.Sequential(nn.BatchNorm2d(64, affine=False)))
    nn.init.normal_(model[1].weight)
    weight = model[1].weight.detach().clone()
    changes = npf.fix(model)
    assert changes == (
        "1: BatchNorm2d(64) became GroupNorm(32, 64)",
        "2.0: BatchNorm2d(64) became GroupNorm(32, 64)",
    )
    assert all(change in caplog.text for change in changes)
    assert torch.equal(model[1].weight, weight)
    assert model[2][0].weight is None
    PerRecordGradients(model)


def test_instance_norms_lose_their_statistics_and_all_else_stays(caplog):
    model = nn.Sequential(nn.InstanceNorm1d(5, track_running_stats=True, affine=True), nn.Linear(3, 2))
    linear = model[1]
    assert npf.fix(model) == ("0: InstanceNorm1d lost its running statistics",)
    assert model[1] is linear
    PerRecordGradients(model)
    assert npf.fix(model) == ()


def test_a_model_that_is_such_a_layer_itself_cannot_be_fixed_in_place():
    with pytest.raises(UnsupportedError, match="itself"):
        npf.fix(nn.BatchNorm1d(3))
