"""Layers that mix records are refused by name, with their replacement."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof.errors import UnsupportedError
from noiseproof.gradients.engine import PerRecordGradients


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(6), r"body\.1 \(BatchNorm1d\) .*GroupNorm\(2, 6\)"),
        (nn.BatchNorm2d(64), r"body\.1 \(BatchNorm2d\) .*GroupNorm\(32, 64\)"),
        (nn.BatchNorm3d(7, affine=False), r"\(BatchNorm3d\) .*GroupNorm\(1, 7\)"),
        (nn.SyncBatchNorm(8), r"\(SyncBatchNorm\) .*GroupNorm\(8, 8\)"),
        (nn.InstanceNorm2d(4, track_running_stats=True), r"\(InstanceNorm2d\) .*GroupNorm\(4, 4\)"),
        (nn.Embedding(4, 2, max_norm=1.0), "max_norm=None"),
        (nn.Embedding(4, 2, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
        (nn.EmbeddingBag(4, 2, max_norm=1.0), "max_norm=None"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_that_mix_records_are_refused(layer, message):
    module = nn.ModuleDict({"body": nn.Sequential(nn.Linear(3, 3), layer)})
    with pytest.raises(UnsupportedError, match=message):
        PerRecordGradients(module)


def test_layers_without_parameters_yet_are_refused():
    with pytest.raises(UnsupportedError, match="run one batch"):
        PerRecordGradients(nn.Sequential(nn.LazyLinear(3)))


def test_the_replacement_that_is_named_works(agree):
    torch.manual_seed(0)
    agree(nn.Sequential(nn.Conv1d(1, 6, 2), nn.GroupNorm(2, 6)), torch.randn(3, 1, 5))


def test_instance_norm_without_running_statistics_is_not_refused():
    PerRecordGradients(nn.Sequential(nn.Linear(2, 2), nn.InstanceNorm1d(3))).close()
