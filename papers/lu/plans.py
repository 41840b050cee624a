"""The plans of the two scales, and the data sets: the paper's where they are found, else what stands in for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import torch

from noiseproof.data import Dataset, load
from noiseproof.data.dataset import Column
from noiseproof.data.library import find
from noiseproof.data.named import named_sets
from noiseproof.data.raw import ADULT_COLUMNS
from papers.lu import published
from papers.lu.accountings import NAMES, AccountingName
from papers.study import Scale


@dataclass(frozen=True)
class Plan:
    """What one scale runs. The paper's sizes where a number is None."""

    scale: Scale
    repeats: int
    epochs: int = 100
    attack_epochs: int = 100
    batch_size: int = 100
    most_records: int | None = None
    shadows: int | None = None
    more_shadows: Mapping[str, int] = field(default_factory=dict)
    """Rows with another number of shadow models."""
    more_repeats: Mapping[str, int] = field(default_factory=dict)
    """Rows with another number of repeats."""
    epsilons: tuple[float, ...] = published.EPSILONS
    delta: float = 1e-5
    """Of the proven siblings."""
    accountings: tuple[AccountingName, ...] = NAMES
    """Of the DP-SGD that is run beside Algorithm 1."""
    rival_epsilons: tuple[float, ...] | None = None
    """Its epsilons; None is all of them."""
    program_epsilons: tuple[float, ...] = ()
    """Its epsilons on the program's form of the convexified loss, which for a single record is not eq. 22's."""
    siblings: bool = True
    """Whether the proven siblings are run beside Algorithm 1."""
    notes: tuple[str, ...] = ()

    def records(self, row: str, there: int) -> int:
        """Records to train on, as many to test on, and at least twice as many for shadow models, of so many that are there."""
        planned = int(published.number(row, "records"))
        if self.most_records is not None:
            planned = min(planned, self.most_records)
        return min(planned, there // 4)

    def repeats_of(self, row: str) -> int:
        """How many repeats of a row."""
        return self.more_repeats.get(row, self.repeats)

    def shadow_count(self, row: str) -> int:
        """How many shadow models."""
        planned = int(published.number(row, "shadows")) if self.shadows is None else self.shadows
        return self.more_shadows.get(row, planned)


FEW_SHADOWS = 2
"""Shadow models of a weak attack, which is measured beside one with more."""

PLANS: Mapping[Scale, Plan] = {
    "small": Plan(
        scale="small",
        repeats=1,
        epochs=40,
        most_records=1_200,
        shadows=5,
        notes=(
            "scale small: at most 1,200 records, 40 epochs, 5 shadow models and one repeat; expect other numbers. Left out: "
            "DP-SGD on the program's form of the loss, the paper's numbers of records and shadow models (scale effect).",
        ),
    ),
    "effect": Plan(
        scale="effect",
        repeats=1,
        shadows=FEW_SHADOWS,
        more_shadows={"Location": 30, "Purchase-100": 5},
        more_repeats={"Location": 3, "US Adult": 3},
        accountings=("rdp",),
        rival_epsilons=(0.01, 0.1, 1.0, 10.0, 100.0, 1000.0),
        program_epsilons=(1.0, 10.0),
        siblings=False,
        notes=(
            "scale effect: the paper's numbers of records and epochs, one repeat where the paper has ten (3 of Location and "
            "Adult), 2 shadow models (30 on Location, 5 on Purchase-100) where it has 10 to 100; DP-SGD by RDP "
            "alone, which has the least noise of the four accountings, at six of the eleven epsilons, and on the program's form "
            "of the loss at two; left out: the siblings.",
        ),
    ),
    "paper": Plan(scale="paper", repeats=10),
}


CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "Location": ("location",),
    "Texas Hospital": ("texas",),
    "Purchase-100": ("purchase", "retail-100"),
    "Purchase-50": ("purchase-50", "retail-50"),
    "Purchase-20": ("purchase-20", "retail-20"),
    "Purchase-10": ("purchase-10", "retail-10"),
    "Purchase-2": ("purchase-2", "retail-2"),
    "MNIST": ("mnist",),
    "US Adult": ("adult",),
    "CIFAR-10": ("cifar10",),
    "CIFAR-100": ("cifar100",),
}
"""For each row of the paper's tables the named sets that may be used, the best first."""


def available(row: str) -> str | None:
    """The named set for a row of the paper's tables that is found in the data folders; None if there is none."""
    known = named_sets()
    return next((name for name in CANDIDATES[row] if find(known[name]) is not None), None)


@lru_cache(maxsize=1)
def everyone(name: str) -> Dataset:
    """All records of a named set, training and test together: the study draws its own parts. Adult as the paper codes it."""
    found = load(name)
    dataset = replace(
        found.train,
        features=torch.cat([found.train.features, found.test.features]),
        labels=torch.cat([found.train.labels, found.test.labels]),
    )
    dataset = ordinal(dataset) if dataset.public.columns else dataset
    return with_survey_weight(dataset) if name == "adult" else dataset


WEIGHTS = np.float32(1.5e6)
"""Above every survey weight of Adult: the largest is 1,490,400."""


def with_survey_weight(dataset: Dataset) -> Dataset:
    """Adult with its survey weight (fnlwgt), which the paper's 14 features include and the named set leaves out."""
    found = find(named_sets()["adult"])
    assert found is not None
    names: Any = {"header": None, "names": ADULT_COLUMNS, "comment": "|"} if found.layout.reader == "adult_uci" else {}
    columns = [pd.read_csv(path, usecols=["fnlwgt"], **names)["fnlwgt"].to_numpy(np.float32) for path in found.paths]
    features = torch.cat([dataset.features, torch.from_numpy(np.concatenate(columns) / WEIGHTS)[:, None]], dim=1)
    public = dataset.public
    notes = (*public.notes, f"here it is a feature, divided by {WEIGHTS:,.0f}.")
    return replace(dataset, features=features, public=replace(public, shape=(features.shape[1],), notes=notes))


def ordinal(dataset: Dataset) -> Dataset:
    """A table with one feature a column, as the paper has it: a category is its place in the public list, in [0, 1]."""
    parts, start = [], 0
    for column in dataset.public.columns:
        parts.append(_one(column, dataset.features[:, start : start + column.width]))
        start += column.width
    features = torch.stack(parts, dim=1)
    return replace(
        dataset, features=features, public=replace(dataset.public, shape=(len(parts),), columns=(), kind="vector")
    )


def _one(column: Column, coded: torch.Tensor) -> torch.Tensor:
    if column.numeric:
        return coded[:, 0]
    return coded.argmax(1).float() / max(1, coded.shape[1] - 1)
