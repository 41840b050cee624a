"""The plans of the two scales, and the two data sets: Adult with the paper's eight attributes, and MNIST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import one_hot

from noiseproof.data import Dataset, load
from noiseproof.data.dataset import Column, Public
from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema
from noiseproof.data.tables import code, decode
from papers.ma.published import ATTRIBUTES
from papers.study import Scale

if TYPE_CHECKING:
    import pandas as pd

DATA = ("adult", "mnist")
EPSILONS = (0.5, 5.0)
TUNINGS = ("time", "step", "exp", "ant")


@dataclass(frozen=True)
class Plan:
    """Sizes of a scale; they decide the results, so that finished runs of another plan are not taken for this one's."""

    scale: Scale
    records: Mapping[str, int]
    test: int
    iterations: int
    looks: int
    """How many points a curve has."""
    decays: Mapping[str, tuple[float, ...]]
    """Figures 9 and 10: the decay rates of each schedule."""
    networks: Mapping[str, str]
    """The paper's pair for each data set: dense or conv."""
    lrs: Mapping[str, float]
    """Of that pair; the paper's 5e-5 learns nothing in scale small's few iterations."""
    dp_gan: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of dp-gan for each data set."""
    dp_gan_tuned: Mapping[str, Any] = field(default_factory=dict)
    """Settings of dp-gan where its noise changes: many steps, few updates each."""
    zero_gan: Mapping[str, Any] = field(default_factory=dict)
    """Settings of zero-gan; its own suit a table and pictures of any size."""
    repeats: int = 0
    """Seeds at the noise that the paper names, in the reading of eq. 8 and beside others; at 0 all else is run instead."""
    notes: tuple[str, ...] = ()


PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        records={"adult": 20_000, "mnist": 20_000},
        test=5_000,
        iterations=300,
        looks=5,
        decays={"time": (0.01,), "step": (0.8,), "exp": (0.03,), "ant": (0.95,)},
        networks={"adult": "dense", "mnist": "dense"},
        lrs={"adult": 1e-3, "mnist": 2e-3},
        dp_gan={
            "adult": {"steps": 2, "generator_steps": 250},
            "mnist": {"steps": 1, "generator_steps": 400, "generated": 200, "latent": 10, "lr": 1e-2},
        },
        dp_gan_tuned={"steps": 20, "sample_rate": 0.1, "generator_steps": 10, "every": 4},
        notes=(
            "Scale small: 20,000 records, 300 iterations of the dense pair instead of 1,000 of the convolutional one. Left out: "
            "the paper's pair and rate, noise on a batch's sum, more than one seed, more decay rates (scale effect).",
        ),
    ),
    "effect": Plan(
        scale="effect",
        records={"adult": 20_000, "mnist": 60_000},
        test=10_000,
        iterations=1_000,
        looks=20,
        decays={"time": (0.01, 0.2), "step": (0.3, 0.9), "exp": (0.001, 0.1), "ant": (0.5, 0.9)},
        networks={"adult": "conv", "mnist": "dense"},
        lrs={"adult": 5e-5, "mnist": 2e-3},
        dp_gan={
            "adult": {"steps": 2, "generator_steps": 250},
            "mnist": {"steps": 1, "generator_steps": 400, "generated": 200, "latent": 10, "lr": 1e-2},
        },
        repeats=3,
        notes=(
            "Scale effect: all of both sets, 1,000 iterations, one draw of noise on a batch's sum; on Adult the paper's pair and "
            "rate, 5e-5, on MNIST the dense pair at 2e-3. Left out: MNIST's convolutional pair under noise, more decay rates.",
        ),
    ),
    "paper": Plan(
        scale="paper",
        records={"adult": 20_000, "mnist": 60_000},
        test=10_000,
        iterations=1_000,
        looks=20,
        decays={
            "time": (0.01, 0.02, 0.05, 0.1, 0.2),
            "step": (0.3, 0.5, 0.6, 0.7, 0.9),
            "exp": (0.001, 0.003, 0.01, 0.03, 0.1),
            "ant": (0.5, 0.6, 0.7, 0.8, 0.9),
        },
        networks={"adult": "conv", "mnist": "conv"},
        lrs={"adult": 5e-5, "mnist": 5e-5},
        dp_gan={
            "adult": {"generator_steps": 300},
            "mnist": {
                "steps": 2, "generator_steps": 1500, "generated": 400, "latent": 10, "lr": 1e-2, "width": 2000,
            },
        },
        dp_gan_tuned={"steps": 200, "sample_rate": 0.1, "generator_steps": 5, "every": 20},
    ),
}  # fmt: skip


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


def joined(dataset: Dataset) -> Dataset:
    """A table whose label is one column more, and all records of one class: what is to generate the label like the rest."""
    public = dataset.public
    label = Column(public.target or "label", categories=public.classes)
    features = torch.cat([dataset.features, one_hot(dataset.labels, dataset.classes).float()], dim=1)
    return Dataset(
        dataset.name,
        features,
        torch.zeros_like(dataset.labels),
        replace(
            public,
            shape=(features.shape[1],),
            columns=(*public.columns, label),
            classes=("all",),
            target=None,
            order=(),
        ),
    )


def parted(dataset: Dataset, public: Public) -> Dataset:
    """What `joined` put together, with the label that the last column has, and that public description."""
    width = len(public.classes)
    return Dataset(dataset.name, dataset.features[:, :-width], dataset.features[:, -width:].argmax(1), public)


def _some(dataset: Dataset, count: int, seed: int) -> Dataset:
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    return dataset.take(order[:count])
