"""Small collections that many tests share."""

from __future__ import annotations

import pytest
import torch

from noiseproof.methods.parameters import Collection
from noiseproof.methods.parameters.collection import ParameterLayout


@pytest.fixture
def collection_of():
    """`collection_of(rows)`: rows as networks of one layer."""
    return lambda rows: Collection(rows, ParameterLayout((("0.weight", (rows.shape[1],)),)))


@pytest.fixture
def collection() -> Collection:
    """20 networks of two layers, with spreads from small to large and two parameters that never moved."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 60, generator=generator) * torch.logspace(-3, 0, 60) + torch.linspace(-1, 1, 60)
    rows[:, 7] = 0.25
    rows[:, 40] = 0.0
    return Collection(rows, ParameterLayout((("0.weight", (8, 4)), ("0.bias", (8,)), ("2.weight", (20,)))))
