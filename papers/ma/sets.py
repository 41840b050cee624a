"""The study's two sets: Adult with the paper's eight attributes, age and hours in bins; and MNIST."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from noiseproof.data import Dataset, load
from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema
from noiseproof.data.tables import code, decode
from papers.ma.published import ATTRIBUTES

if TYPE_CHECKING:
    import pandas as pd


_AGES = (25, 30, 35, 40, 45, 50, 55, 65)
"""Public edges of the nine bins of age; the paper does not print its own."""
_HOURS = (10, 20, 30, 39, 41, 50, 60)


def available(name: str) -> bool:
    """Whether a set is found in the data folders."""
    return find(named_sets()[name]) is not None


@lru_cache(maxsize=2)
def pair(name: str, records: int, test: int, seed: int) -> tuple[Dataset, Dataset]:
    """Training and test records of a set, drawn at random from its own two parts."""
    split = load(name)
    train, rest = _some(split.train, records, seed), _some(split.test, test, seed)
    return (eight(train), eight(rest)) if name == "adult" else (train, rest)


def eight(dataset: Dataset) -> Dataset:
    """Adult's eight attributes, age in nine bins and hours in eight."""
    import pandas as pd

    frame: pd.DataFrame = decode(dataset.public, dataset.features, dataset.labels)[list(ATTRIBUTES)].copy()
    columns: dict[str, ColumnSchema] = {}
    for column in dataset.public.columns:
        if column.name in ATTRIBUTES and not column.numeric:
            columns[column.name] = ColumnSchema(categories=column.categories, missing=column.missing)
    for name, edges in (("age", _AGES), ("hours_per_week", _HOURS)):
        bins = [float("-inf"), *edges, float("inf")]
        frame[name] = pd.cut(frame[name].astype(float), bins, labels=[str(place) for place in range(len(bins) - 1)])
        frame[name] = frame[name].astype(str)
        columns[name] = ColumnSchema(categories=tuple(str(place) for place in range(len(bins) - 1)))
    ordered = {name: columns[name] for name in ATTRIBUTES if name in columns}
    schema = Schema(columns=ordered, target=TargetSchema(name="income", classes=dataset.public.classes))
    return code(frame, schema, name="adult, eight attributes")[0]


def _some(dataset: Dataset, count: int, seed: int) -> Dataset:
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    return dataset.take(order[:count])
