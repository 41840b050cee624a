"""Parts of a data set: training and test records, disjoint shards, neighbouring pairs for audits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.data.dataset import Dataset
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    from noiseproof.privacy.budget import Neighbours


Canary = tuple[torch.Tensor, float]
"""A record put in on purpose: its coded features and its label, a class or a coded number."""


_SHARDS = 0x5348415244
"""Tells the coins of shards from those of a split with the same seed."""


@dataclass(frozen=True)
class Split:
    """Records to train on, and records apart to measure accuracy with; `load` and `split` return it.

    Examples:
        >>> import noiseproof as npf
        >>> data = npf.load("digits")
        >>> len(data.train) + len(data.test)
        1797
    """

    train: Dataset
    """The private records that a guarantee is stated for."""
    test: Dataset
    """Records held out to measure with, for their owner; no guarantee covers them."""
    remarks: tuple[str, ...] = ()
    """What the data's owner should hear about the records (columns that were clipped). Private: never released."""
    rows: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, repr=False, compare=False)
    """The rows of the file that each part's records come from, counted from 0; None if the parts came as they are."""


def split(
    dataset: Dataset,
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    relation: Neighbours = "add-or-remove",
    remarks: tuple[str, ...] = (),
) -> Split:
    """Training and test records, by an independent coin for each record. Not stratified: that would read all labels.

    Args:
        dataset: The records.
        seed: The key of the coins. It need not be secret: what is stated below holds for every key.
        test_fraction: How likely a record is to be held out, 0 for no test part; under add-or-remove the parts' sizes vary
            around it.
        relation: Which neighbours the split is to keep neighbours.
        remarks: What the data's owner should hear about the records.

    Returns:
        Both parts, each in the order of its coins; under replace-one in that of the records.

    Raises:
        DataError: If there are fewer than two records, or all fall into one part.
        SettingError: If the fraction leaves nothing to train on.

    Formal guarantee
    ----------------
    Neighbouring data sets have training parts that are equal or neighbours, for every seed, so that what is proven for
    the training part as the private data set holds for the whole. Under add-or-remove a record's coin is a function of
    the key, its own coded values and how many equal records come before it: a record more or less, wherever in the
    file, changes nobody else's side. Under replace-one the records with the smallest of these coins are held out, so many
    that both parts keep their sizes: a record that is exchanged for another, wherever in the file, then exchanges one of
    the training part (itself, or one that takes its place), or none. Whoever knows the key and a record knows which side
    it would be on, or nearly so, not whether it is there. The test part is used to measure and is covered by no guarantee.

    Where the records' persons are known (`Dataset.groups`) all of this holds with "person" for "record", a person's
    values being those of all their records in any order: nobody is in both parts.

    Examples:
        >>> import torch
        >>> from noiseproof.data import from_arrays, split
        >>> data = from_arrays(torch.rand(100, 3), [0, 1] * 50, classes=2, low=0, high=1)
        >>> parts = split(data, test_fraction=0.2, relation="replace-one")
        >>> len(parts.train), len(parts.test)
        (80, 20)
    """
    check_fraction(test_fraction)
    if dataset.persons < 2:
        raise DataError(
            f"{dataset.name} has {dataset.persons} {dataset.unit}; a split into training and test needs at least 2."
        )
    train, test = sides(dataset, seed, test_fraction, relation)
    device = dataset.labels.device
    return Split(dataset.take(train.to(device)), dataset.take(test.to(device)), remarks, (train, test))


def sides(
    dataset: Dataset,
    seed: int,
    test_fraction: float,
    relation: Neighbours,
    identities: npt.NDArray[np.uint64] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of the training and of the test records (see `split`); `identities` are the records', where known."""
    from noiseproof.privacy.budget import check_neighbours

    drawn = coins(dataset, seed, identities=identities)
    if exchange := check_neighbours(relation) == "replace-one":
        found, ranks = np.unique(drawn, return_inverse=True)
        drawn = ((ranks + 0.5) / len(found) * 2.0**64).astype(np.uint64)
    order = np.argsort(drawn, kind="stable")
    held = int(np.searchsorted(drawn[order], np.uint64(test_fraction * 2.0**64)))
    if held == len(order) or (not held and test_fraction):
        raise DataError(
            f"all {len(order)} records of {dataset.name} fell into one part of the split; take another seed or test fraction."
        )
    train, test = torch.from_numpy(order[held:]), torch.from_numpy(order[:held])
    return (train.sort().values, test.sort().values) if exchange else (train, test)


def coins(
    dataset: Dataset,
    seed: int,
    relation: Neighbours = "add-or-remove",
    identities: npt.NDArray[np.uint64] | None = None,
) -> npt.NDArray[np.uint64]:
    """A number of 64 bits for each record, as if drawn at random, that neighbours share (see `split`).

    `identities` are those of the records, where they are known already.
    """
    from noiseproof.privacy.budget import check_neighbours

    key = _mixed(np.array([seed % 2**64], np.uint64))[0]
    groups = None if dataset.groups is None else dataset.groups.cpu().numpy()
    if check_neighbours(relation) == "replace-one":
        drawn = _mixed(_mixed(np.arange(dataset.persons, dtype=np.uint64) ^ key))
    else:
        identities = dataset.identities() if identities is None else identities
        drawn = _coins_by_content(identities if groups is None else _persons(identities, groups), key)
    return drawn if groups is None else drawn[groups]


def _persons(identities: npt.NDArray[np.uint64], groups: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Two numbers for each person from those of their records, in whatever order these are."""
    order = np.argsort(groups, kind="stable")
    high, low = identities[order].T
    hashed = np.stack([_mixed(high ^ _mixed(low)), _mixed(low ^ _mixed(~high))], axis=1)
    return np.add.reduceat(hashed, np.searchsorted(groups[order], np.arange(groups.max() + 1)))


def _coins_by_content(identities: npt.NDArray[np.uint64], key: np.uint64) -> npt.NDArray[np.uint64]:
    high, low = identities.T
    order = np.lexsort((low, high))
    changes = np.ones(len(order), bool)
    changes[1:] = (high[order][1:] != high[order][:-1]) | (low[order][1:] != low[order][:-1])
    places = np.arange(len(order))
    # How many equal records come before each: the sort is stable, and which of several equal ones is first matters not.
    before = np.empty(len(order), np.uint64)
    before[order] = places - np.maximum.accumulate(np.where(changes, places, 0))
    return _mixed(high ^ _mixed(low ^ _mixed(before ^ key)))


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64 bits without visible structure (splitmix64)."""
    with np.errstate(over="ignore"):
        numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
        numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def shards(dataset: Dataset, k: int, seed: int = 0, *, relation: Neighbours = "add-or-remove") -> tuple[Dataset, ...]:
    """`k` disjoint shards that cover all the records: each record is put into one of them by a coin of its own.

    Args:
        dataset: The records.
        k: How many shards; their sizes vary as those of independent draws do, and a shard may be empty.
        seed: The key of the coins.
        relation: Which neighbours are to differ in one shard only.

    Returns:
        The shards.

    Raises:
        SettingError: If there are more shards than records, or none.

    Formal guarantee
    ----------------
    A record is in exactly one shard. Neighbouring data sets differ in one shard, by one record (under replace-one at
    one place), for the reason given at `split`.

    Examples:
        >>> import torch
        >>> from noiseproof.data import from_arrays, shards
        >>> data = from_arrays(torch.rand(100, 3), [0, 1] * 50, classes=2, low=0, high=1)
        >>> parts = shards(data, 4)
        >>> len(parts), sum(len(part) for part in parts)
        (4, 100)
    """
    if not 1 <= k <= len(dataset):
        raise SettingError(f"{dataset.name} of {len(dataset)} records cannot be cut into {k} shards.")
    # The upper 32 bits times k, shifted down: an even draw from 0 to k - 1, to 1 in 2^32.
    # With a key of its own: the coins of a training part are those of one side of the split.
    drawn = (coins(dataset, seed ^ _SHARDS, relation) >> np.uint64(32)) * np.uint64(k) >> np.uint64(32)
    chosen = torch.from_numpy(drawn.astype(np.int64)).to(dataset.labels.device)
    return tuple(dataset.take(chosen == shard) for shard in range(k))


def neighbours(
    dataset: Dataset, seed: int = 0, *, relation: Neighbours = "add-or-remove", canary: Canary | None = None
) -> tuple[Dataset, Dataset]:
    """A pair (D, D') that differs in exactly one record, for audits.

    Under `add-or-remove` D has one record more than D': the canary, put in at the end, or without one a random record
    of the data set. Under `replace-one` both have the same size and differ at one place: there D has a random record
    and D' the canary; or, without one, another record of the data set, which is then in neither at its own place.

    Args:
        dataset: At least two records.
        seed: Chooses the random record.
        relation: In what the two are to differ.
        canary: A record put in on purpose: its features, coded as the records are, and its label.

    Returns:
        D and D'.

    Raises:
        DataError: If there are fewer than two records, or, under replace-one, none that differs.
        SettingError: If the canary is not coded as the records are.

    Formal guarantee
    ----------------
    None: the pair is made of private records, to be played with on the trusted side.

    Examples:
        >>> import torch
        >>> from noiseproof.data import from_arrays, neighbours
        >>> data = from_arrays(torch.rand(10, 3), [0, 1] * 5, classes=2, low=0, high=1)
        >>> larger, smaller = neighbours(data, canary=(torch.ones(3), 1))
        >>> len(larger), len(smaller)
        (11, 10)
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
    record, label = dataset.features[place], dataset.labels[place].item()
    other = _differing(dataset, record, label, generator)
    exchanged = _put(dataset, place, dataset.features[other], dataset.labels[other].item())
    return _without(dataset, other), _without(exchanged, other)


def check_classes(dataset: Dataset) -> None:
    """Refuse records that are all of one class."""
    if dataset.public.task == "classification" and bool((dataset.labels == dataset.labels[0]).all()):
        target = f"the target {dataset.public.target!r}" if dataset.public.target else dataset.name
        raise DataError(f"{target} has one class only; there is nothing to learn.")


def check_fraction(test_fraction: float) -> None:
    """Refuse a test fraction that leaves nothing to train on."""
    if not 0 <= test_fraction < 1:
        raise SettingError(f"the test fraction must be 0 or more and below 1, not {test_fraction}.")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _check_canary(dataset: Dataset, canary: Canary) -> Canary:
    record, label = canary
    record = record.to(dataset.features)
    if dataset.public.task == "classification":
        labelled, label_of = label in range(dataset.classes), f"one of the {dataset.classes} classes"
    else:
        labelled, label_of = 0 <= label <= 1, "a coded target in [0, 1]"
    if tuple(record.shape) != dataset.public.shape or not labelled:
        raise SettingError(f"the canary must have the shape {dataset.public.shape} and {label_of} of {dataset.name}.")
    if not bool(((record >= 0) & (record <= 1)).all()):
        raise SettingError("the canary must be coded as the records are: every feature in [0, 1].")
    return record, label


def _differing(dataset: Dataset, record: torch.Tensor, label: float, generator: torch.Generator) -> int:
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


def _append(dataset: Dataset, record: torch.Tensor, label: float) -> Dataset:
    last = torch.tensor([label], dtype=dataset.labels.dtype, device=dataset.labels.device)
    groups = dataset.groups
    if groups is not None:
        groups = torch.cat([groups, groups.new_tensor([dataset.persons])])
    features, labels = torch.cat([dataset.features, record[None]]), torch.cat([dataset.labels, last])
    return replace(dataset, features=features, labels=labels, groups=groups)


def _put(dataset: Dataset, place: int, record: torch.Tensor, label: float) -> Dataset:
    features, labels = dataset.features.clone(), dataset.labels.clone()
    features[place], labels[place] = record, label
    return replace(dataset, features=features, labels=labels)
