"""Small private sets to generate from: a mixed table and little pictures."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema
from noiseproof.data.tables import code

SCHEMA = Schema(
    columns={
        "age": ColumnSchema(low=17, high=90, integer=True),
        "city": ColumnSchema(categories=("a", "b", "never")),
        "money": ColumnSchema(low=0, high=100_000, missing=True),
        "same": ColumnSchema(categories=("always",)),
    },
    target=TargetSchema(name="income", classes=("low", "high")),
)


def make_table(records: int, seed: int = 0) -> Dataset:
    """Income follows the city, money is nearly always 0; one column is constant, one category never seen."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(4, records, generator=generator)
    city = ["a" if value < 0.4 else "b" for value in uniform[0]]
    rich = [bool(value < (0.8 if name == "a" else 0.1)) for name, value in zip(city, uniform[1], strict=True)]
    frame = pd.DataFrame(
        {
            "age": (20 + 50 * uniform[2]).int().numpy(),
            "city": city,
            "money": [None if value < 0.1 else 0.0 if value < 0.9 else 5000.0 for value in uniform[3]],
            "same": "always",
            "income": ["high" if value else "low" for value in rich],
        }
    )
    return code(frame, SCHEMA, name="people")[0]


@pytest.fixture(scope="session")
def table():
    return make_table(2000)


@pytest.fixture(scope="session")
def test_table():
    return make_table(500, seed=1)


@pytest.fixture(scope="session")
def pictures():
    """A bright upper half or a bright lower half, 8 x 8."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 2
    features = 0.2 * torch.rand(400, 1, 8, 8, generator=generator)
    features[labels == 0, :, :4] += 0.7
    features[labels == 1, :, 4:] += 0.7
    public = Public(shape=(1, 8, 8), classes=("upper", "lower"), kind="image")
    return Dataset("halves", features, labels, public)
