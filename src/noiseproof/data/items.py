"""Torch datasets as data sets: into memory, read item by item when they are looked at, or by way of a folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from noiseproof.data import lazy
from noiseproof.data.arrays import Array, ArrayLike, Facts, as_array, describe, from_arrays, record_array, scaled
from noiseproof.data.dataset import Dataset
from noiseproof.data.lazy import Rows, StoredTensor
from noiseproof.data.persons import group_array
from noiseproof.data.stored import open_arrays, store_arrays
from noiseproof.errors import DataError, SettingError

_BATCH = 1024


def from_torch(
    dataset: torch.utils.data.Dataset[Any],
    *,
    name: str = "dataset",
    groups: ArrayLike | None = None,
    store: str | Path | None = None,
    **facts: Unpack[Facts],
) -> Dataset:
    """A data set from a torch `Dataset` of (features, label) pairs; also from one that is larger than memory.

    What codes to no more than 256 MB is read into memory. More of it is read once, for its labels, and then item by item
    whenever records are looked at; or, with `store`, written to a folder once and memory-mapped, which is quicker where
    making an item is slow, and the only way for a large `IterableDataset`.

    Args:
        dataset: Pairs of features and a label.
        name: What the set is called.
        groups: Whose each record is, as for `from_arrays`.
        store: A new folder to write the records to.
        facts: What is public, as for `from_arrays`. Of a set that does not fit into memory nothing is read off the records.

    Returns:
        The coded records.

    Raises:
        DataError: If the items cannot be used, or an `IterableDataset` does not fit into memory.
        SettingError: If what must be public is not given.

    Formal guarantee
    ----------------
    As for `from_arrays`, provided that the torch dataset makes each item from one person's record alone and gives the
    same item every time. Of a random augmentation whatever it gave when it was read is kept, but where items are read again:
    give the set without one, and `augmentations` to the method.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from noiseproof.data import from_torch
        >>> pictures = TensorDataset(torch.rand(8, 1, 28, 28), torch.arange(8))
        >>> from_torch(pictures, classes=10, low=0, high=1).public.shape
        (1, 28, 28)
    """
    if isinstance(dataset, torch.utils.data.TensorDataset) and store is None:
        return from_arrays(*_pair(dataset.tensors, name), name=name, groups=groups, **facts)
    batches = _batches(dataset, name)
    if store is not None:
        store_arrays(batches, Path(store), name=name, groups=groups, facts=facts)
        return replace(open_arrays(Path(store)), name=name)
    features: list[Array] = []
    labels: list[Array] = []
    room = lazy.SMALL
    for batch in batches:
        if room >= 0:
            features.append(as_array(batch[0]))
            room -= 4 * features[-1].size
        if room < 0 and isinstance(dataset, torch.utils.data.IterableDataset):
            raise DataError(
                f"{name} is too large for memory and cannot be read at will; give store=FOLDER to write it to."
            )
        labels.append(as_array(batch[1]))
    if not labels:
        raise DataError(f"{name} has no records.")
    if room >= 0:
        return from_arrays(np.concatenate(features), np.concatenate(labels), name=name, groups=groups, **facts)
    public, (coded,), bounds = describe([record_array(features[0][:1], name)], [np.concatenate(labels)], name, **facts)
    if public.bounds == "data":
        raise SettingError(
            f"{name} is too large for memory: give its `classes` (or the `target_bounds` of a number), and the `low` and "
            "`high` of its features, which are not read off records that do not fit."
        )
    people = None if groups is None else group_array(groups, len(coded), name)
    return Dataset(name, StoredTensor(TorchItems(dataset, len(coded), name, bounds)), coded, public, people)


class TorchItems:
    """The items of a torch dataset as a source of records, each made and scaled when it is read.

    Formal guarantee
    ----------------
    Each record is coded by itself from its own item and the public bounds, so that neighbours stay neighbours.
    """

    def __init__(self, dataset: Any, records: int, name: str, bounds: tuple[Array, Array]) -> None:
        self._dataset, self._name, self._bounds = dataset, name, bounds
        self.shape: tuple[int, ...] = (records, *self._raw([0]).shape[1:])

    def _raw(self, rows: Any) -> Array:
        return record_array(np.stack([as_array(self._dataset[int(row)][0]) for row in rows]), self._name)

    def read(self, rows: Rows) -> torch.Tensor:
        """The records at these places, coded."""
        out = torch.empty(len(rows), *self.shape[1:])
        for start in range(0, len(rows), _BATCH):
            part = rows[start : start + _BATCH]
            out[start : start + len(part)] = scaled(self._raw(part), *self._bounds)
        return out


def _batches(dataset: torch.utils.data.Dataset[Any], name: str) -> Iterator[tuple[ArrayLike, ArrayLike]]:
    loader = iter(torch.utils.data.DataLoader(dataset, batch_size=_BATCH))
    while True:
        try:
            batch = next(loader, None)
        except (TypeError, RuntimeError) as error:
            raise DataError(
                f"the items of {name} must be tensors or arrays of one shape; transform them so."
            ) from error
        if batch is None:
            return
        yield _pair(batch, name)


def _pair(batch: Any, name: str) -> tuple[ArrayLike, ArrayLike]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(f"{name} must give pairs of features and a label.")
    return batch[0], batch[1]
