"""Parts of a data set: training and test records, disjoint shards, neighbouring pairs for audits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from noiseproof.data.dataset import Dataset
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    from noiseproof.privacy.budget import Neighbours


Canary = tuple[torch.Tensor, int]
"""A record put in on purpose: its coded features and its label."""


@dataclass(frozen=True)
class Split:
    """Records to train on, and records apart to measure accuracy with."""

    train: Dataset
    test: Dataset
    remarks: tuple[str, ...] = ()
    """What the data's owner should hear about the records (columns that were clipped). Private: never released."""


def split(dataset: Dataset, *, seed: int = 0, test_fraction: float = 0.25, remarks: tuple[str, ...] = ()) -> Split:
    """A random split by seed. Not stratified: that would read the private labels.

    Formal guarantee
    ----------------
    Which places go to training depends on the number of records and the seed alone. Guarantees are stated for the
    training part as the private data set; its neighbours are taken there. The test part is used to measure and is
    covered by no guarantee.
    """
    check_fraction(test_fraction)
    records = len(dataset)
    if records < 2:
        raise DataError(f"{dataset.name} has {records} record; a split into training and test needs at least 2.")
    held = min(max(round(test_fraction * records), 1), records - 1)
    order = torch.randperm(records, generator=_generator(seed)).to(dataset.features.device)
    return Split(dataset.take(order[held:]), dataset.take(order[:held]), remarks)


def shards(dataset: Dataset, k: int, seed: int = 0) -> tuple[Dataset, ...]:
    """`k` disjoint shards that cover all the records; their sizes differ by one at most.

    Formal guarantee
    ----------------
    A record is in exactly one shard, and which one depends on its place, the number of records and the seed, never on
    values. So under replace-one neighbouring data sets differ in one shard, by one record. Under add-or-remove that
    holds for a given assignment of people to shards; the sizes of the shards are then taken to be public.
    """
    if not 1 <= k <= len(dataset):
        raise SettingError(f"{dataset.name} of {len(dataset)} records cannot be cut into {k} shards.")
    order = torch.randperm(len(dataset), generator=_generator(seed)).to(dataset.features.device)
    return tuple(dataset.take(part) for part in order.tensor_split(k))


def neighbours(
    dataset: Dataset, seed: int = 0, *, relation: Neighbours = "add-or-remove", canary: Canary | None = None
) -> tuple[Dataset, Dataset]:
    """A pair (D, D') that differs in exactly one record, for audits.

    Under `add-or-remove` D has one record more than D': the canary, put in at the end, or without one a random record
    of the data set. Under `replace-one` both have the same size and differ at one place: there D has a random record
    and D' the canary; or, without one, another record of the data set, which is then in neither at its own place.

    Formal guarantee
    ----------------
    None: the pair is made of private records, to be played with on the trusted side.
    """
    from noiseproof.privacy.budget import check_neighbours

    add_or_remove = check_neighbours(relation) == "add-or-remove"
    if len(dataset) < 2:
        raise DataError(f"{dataset.name} has {len(dataset)} record; neighbours need at least 2.")
    generator = _generator(seed)
    if canary is not None:
        record, label = _check_canary(dataset, canary)
        if add_or_remove:
            return _append(dataset, record, label), dataset
        place = _differing(dataset, record, label, generator)
        return dataset, _put(dataset, place, record, label)
    place = int(torch.randint(len(dataset), (), generator=generator))
    if add_or_remove:
        return dataset, _without(dataset, place)
    record, label = dataset.features[place], int(dataset.labels[place])
    other = _differing(dataset, record, label, generator)
    exchanged = _put(dataset, place, dataset.features[other], int(dataset.labels[other]))
    return _without(dataset, other), _without(exchanged, other)


def check_fraction(test_fraction: float) -> None:
    """Refuse a test fraction that leaves one part empty."""
    if not 0 < test_fraction < 1:
        raise SettingError(f"the test fraction must lie between 0 and 1, not {test_fraction}.")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _check_canary(dataset: Dataset, canary: Canary) -> Canary:
    record, label = canary
    record = record.to(dataset.features)
    if tuple(record.shape) != dataset.public.shape or not 0 <= label < dataset.classes:
        raise SettingError(
            f"the canary must have the shape {dataset.public.shape} and one of the {dataset.classes} classes of "
            f"{dataset.name}."
        )
    if not bool(((record >= 0) & (record <= 1)).all()):
        raise SettingError("the canary must be coded as the records are: every feature in [0, 1].")
    return record, label


def _differing(dataset: Dataset, record: torch.Tensor, label: int, generator: torch.Generator) -> int:
    """The place of a random record that is not equal to the given one."""
    equal = (dataset.features == record).flatten(1).all(1) & (dataset.labels == label)
    places = (~equal).nonzero().flatten()
    if not len(places):
        raise DataError(f"all records of {dataset.name} are the same; they have no neighbour under replace-one.")
    return int(places[int(torch.randint(len(places), (), generator=generator))])


def _without(dataset: Dataset, place: int) -> Dataset:
    kept = torch.ones(len(dataset), dtype=torch.bool, device=dataset.features.device)
    kept[place] = False
    return dataset.take(kept)


def _append(dataset: Dataset, record: torch.Tensor, label: int) -> Dataset:
    last = torch.tensor([label], dtype=dataset.labels.dtype, device=dataset.labels.device)
    return replace(
        dataset, features=torch.cat([dataset.features, record[None]]), labels=torch.cat([dataset.labels, last])
    )


def _put(dataset: Dataset, place: int, record: torch.Tensor, label: int) -> Dataset:
    features, labels = dataset.features.clone(), dataset.labels.clone()
    features[place], labels[place] = record, label
    return replace(dataset, features=features, labels=labels)
