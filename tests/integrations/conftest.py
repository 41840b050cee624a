"""Loops made private with hardly any noise, so that what they do can be compared with single-record autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import noiseproof as npf

RECORDS, WIDTH, CLASSES = 60, 6, 3
QUIET = 1e-9
"""A noise multiplier that is as good as none."""


class Numbered(Dataset):
    """Records that know their numbers, so that a test knows which were drawn."""

    def __init__(self, kind="tuple"):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(RECORDS, WIDTH, generator=generator)
        self.y = torch.randint(CLASSES, (RECORDS,), generator=generator)
        self.kind = kind

    def __len__(self):
        return RECORDS

    def __getitem__(self, index):
        x, y = self.x[index], self.y[index]
        if self.kind == "dict":
            return {"number": index, "inputs": {"x": x}, "labels": y}
        return index, x, y


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def clipped_sum(model, data, numbers, clip, loss=nn.functional.cross_entropy):
    """The sum of clipped gradients, record by record, as autograd gives them."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for number in numbers:
        value = loss(model(data.x[number : number + 1]), data.y[number : number + 1])
        gradients = torch.autograd.grad(value, parameters)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for one, gradient in zip(total, gradients, strict=True):
            one += gradient * min(1.0, clip / float(norm))
    return total


@pytest.fixture
def quietly():
    """`quietly(model, optimizer, loader, **options)` makes a loop private, nearly without noise."""
    made = []

    def make(model, optimizer, loader, **options):
        engine = npf.make_private(
            model, optimizer, loader, **{"noise_multiplier": QUIET, "max_grad_norm": 0.3, "seed": 5, **options}
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def parts():
    """A network, its optimizer and a shuffled loader of numbered records."""

    def make(kind="tuple", batch_size=12, **options):
        model = network()
        loader = DataLoader(Numbered(kind), batch_size=batch_size, shuffle=True, **options)
        return model, torch.optim.SGD(model.parameters(), lr=0.1), loader

    return make
