"""Opacus, where it supports a layer, has the same per-record gradients."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine import PerRecordGradients

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    opacus = pytest.importorskip("opacus")
    from opacus.grad_sample import GradSampleModule


class Sentence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.scores = nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.scores(self.norm(self.table(words))).mean(1)


NETWORKS = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3)), (8,)),
    "convolutional": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 12, 3, stride=2, padding=1, groups=2),
            nn.GroupNorm(3, 12),
            nn.ReLU(),
            nn.Conv2d(12, 4, 3, dilation=2, padding="same"),
            nn.Flatten(),
            nn.Linear(64, 3),
        ),
        (2, 8, 8),
    ),
    "sequence": (lambda: nn.Sequential(nn.Conv1d(2, 5, 3, padding=2), nn.Flatten(), nn.Linear(50, 3)), (2, 8)),
    "sentence": (Sentence, None),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(NETWORKS))
def test_gradients_are_those_of_opacus(kind):
    torch.manual_seed(0)
    build, shape = NETWORKS[kind]
    module = build().double()
    given = torch.randint(0, 9, (6, 5)) if shape is None else torch.randn(6, *shape, dtype=torch.float64)
    labels = torch.randint(0, 3, (6,))
    theirs = GradSampleModule(copy.deepcopy(module), loss_reduction="sum")
    F.cross_entropy(theirs(given), labels, reduction="sum").backward()
    with PerRecordGradients(module) as engine:
        batch = engine.backward(F.cross_entropy(module(given), labels, reduction="none"))
    for ours, parameter in zip(batch.materialise(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad_sample)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_recurrent_gradients_are_those_of_opacus(kind, bidirectional):
    from opacus.layers import DPGRU, DPLSTM

    torch.manual_seed(0)
    options = {"num_layers": 2, "bidirectional": bidirectional, "batch_first": True}
    layer = getattr(nn, kind)(3, 4, **options).double()
    twin = {"LSTM": DPLSTM, "GRU": DPGRU}[kind](3, 4, **options).double()
    twin.load_state_dict(layer.state_dict())
    theirs = GradSampleModule(twin, loss_reduction="sum")
    given = torch.randn(5, 6, 3, dtype=torch.float64)
    theirs(given)[0].sin().sum().backward()
    with PerRecordGradients(layer) as engine:
        batch = engine.backward(layer(given)[0].sin().sum((1, 2)))
    samples = {name.removeprefix("_module."): parameter.grad_sample for name, parameter in theirs.named_parameters()}
    names = [name for name, _ in layer.named_parameters()]
    for name, ours in zip(names, batch.materialise(), strict=True):
        torch.testing.assert_close(ours, samples[name])
