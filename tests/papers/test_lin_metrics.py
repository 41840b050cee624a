"""Convergence is the training loss; curves look where they are told to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from noiseproof.data.dataset import Dataset, Public
from papers.lin.metrics import Curves, accuracy, convergence


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def dataset(records: int = 30) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(records, 4, generator=generator)
    return Dataset("half", features, (features[:, 0] > 0.5).long(), Public((4,), ("low", "high")))


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
