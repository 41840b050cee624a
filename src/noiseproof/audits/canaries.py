"""Canaries: records put in on purpose, whose presence a mechanism must hide and an audit looks for.

All lie within the public bounds: a record that the mechanism would refuse proves nothing. A pair of worlds around one
is made by `data.neighbours(dataset, relation=..., canary=...)`. They are made of private records, on the trusted side.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.data.dataset import Dataset
from noiseproof.data.persons import group_array
from noiseproof.data.splits import Canary
from noiseproof.errors import SettingError

if TYPE_CHECKING:
    import pandas as pd


def mislabelled(dataset: Dataset, place: int = 0) -> Canary:
    """A record of the data set with the next class's label: only memory can label it so."""
    label = (int(dataset.labels[place]) + 1) % dataset.classes
    return dataset.features[place].clone(), label


def corner(dataset: Dataset) -> Canary:
    """The corner of the public bounds that is furthest from the mean record, in the rarest class."""
    features = (dataset.features.mean(0) < 0.5).to(dataset.features)
    label = int(torch.bincount(dataset.labels, minlength=dataset.classes).argmin())
    return features, label


def many_mislabelled(dataset: Dataset, count: int, generator: torch.Generator) -> Dataset:
    """Canaries for one-run auditing: `count` different records of the data set, each with a wrong label."""
    if not 0 < count <= len(dataset):
        raise SettingError(f"{count} canaries cannot be taken from {len(dataset)} records; take between 1 and that.")
    canaries = dataset.take(torch.randperm(len(dataset), generator=generator)[:count])
    shift = torch.randint(1, dataset.classes, (count,), generator=generator).to(canaries.labels)
    return replace(canaries, name=f"{dataset.name} canaries", labels=(canaries.labels + shift) % dataset.classes)


def insert(dataset: Dataset, canaries: Dataset, included: torch.Tensor) -> Dataset:
    """The data set with the included canaries at its end."""
    if included.shape != canaries.labels.shape or included.dtype != torch.bool:
        raise SettingError("one-run auditing needs one coin, True or False, for each canary.")
    chosen = canaries.take(included)
    return replace(
        dataset,
        features=torch.cat([dataset.features, chosen.features]),
        labels=torch.cat([dataset.labels, chosen.labels]),
    )


def insert_in_table(
    frame: pd.DataFrame,
    target: str,
    classes: tuple[str | int, ...],
    count: int,
    rng: np.random.Generator,
    person: str | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame, NDArray[np.bool_]]:
    """A table with canaries for one-run auditing: rows of it with a wrong class, each in or out by a fair coin of its own.

    Args:
        frame: The table.
        target: The column that gets a wrong class.
        classes: All classes.
        count: How many canaries there are.
        rng: Draws rows, classes, coins and the order of rows. Nobody who trains on the table may know it.
        person: The column that tells whose a row is. Every canary is then a person of its own, and all persons are numbered
            anew, so that canaries are not told by their ids.

    Returns:
        The table with the canaries that are in, in random order; all canaries; and their coins.

    Raises:
        SettingError: If there are fewer rows than canaries, or fewer than two classes.
    """
    import pandas as pd

    if not 0 < count <= len(frame):
        raise SettingError(f"{count} canaries cannot be taken from {len(frame)} records; take between 1 and that.")
    if len(classes) < 2:
        raise SettingError("a canary has a wrong class, so that there must be two or more.")
    canaries = frame.iloc[rng.choice(len(frame), count, replace=False)].reset_index(drop=True)
    places = {str(name): place for place, name in enumerate(classes)}
    shifted = [
        classes[(places.get(str(label), 0) + int(shift)) % len(classes)]
        for label, shift in zip(canaries[target], rng.integers(1, len(classes), count), strict=True)
    ]
    canaries[target] = shifted
    if person is not None:
        owners = group_array(frame[person].to_numpy(), len(frame), "the table").numpy()
        fresh = rng.permutation(owners.max() + 1 + count)
        frame, canaries[person] = frame.assign(**{person: fresh[owners]}), fresh[-count:]
    included = rng.random(count) < 0.5
    together = pd.concat([frame, canaries[included]], ignore_index=True)
    return together.iloc[rng.permutation(len(together))].reset_index(drop=True), canaries, included
