"""CompactTable: a table's records by column, a category as a small whole number; coded when they are looked at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.data.dataset import Column
from noiseproof.data.lazy import Rows

Kept = npt.NDArray[Any]
"""Of a column: the place of its category, (records,), -1 where it is none of the list; else its coded features."""


class CompactTable:
    """Coded records in a small part of the memory: two bytes for a column of hundreds of categories, not four for each.

    A `Source` of `StoredTensor`. What is read is bit for bit what was kept.

    Formal guarantee
    ----------------
    None is needed: every record is kept and read by itself. It is as private as the records.

    >>> table = CompactTable.of([Column("ward", categories=("a", "b"))], 2, [torch.tensor([[0.0, 1.0], [1.0, 0.0]])])
    >>> table.read(range(1))
    tensor([[0., 1.]])
    """

    in_memory = True

    def __init__(self, columns: Sequence[Column], kept: Sequence[Kept]) -> None:
        self._kept = list(kept)
        ends = list(accumulate(column.width for column in columns))
        self._places = [slice(end - column.width, end) for column, end in zip(columns, ends, strict=True)]
        self.shape: tuple[int, ...] = (len(self._kept[0]), ends[-1])

    @classmethod
    def of(cls, columns: Sequence[Column], records: int, parts: Iterable[torch.Tensor]) -> CompactTable:
        """So many records that were coded, some at a time: (records, features)."""
        # Room for all of them at once: small pieces among large parts that come and go would scatter over the memory.
        made = cls(columns, [_room(column, records) for column in columns])
        start = 0
        for part in parts:
            here = slice(start, start + len(part))
            for place, kept in zip(made._places, made._kept, strict=True):
                own = part[:, place].numpy()
                kept[here] = own if kept.ndim == 2 else np.where(own.max(1) > 0, own.argmax(1), -1)
            start += len(part)
        return made

    def read(self, rows: Rows) -> torch.Tensor:
        """The records at these places, coded."""
        out = np.zeros((len(rows), self.shape[1]), np.float32)
        which = slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
        for place, kept in zip(self._places, self._kept, strict=True):
            taken = kept[which]
            if taken.ndim == 2:
                out[:, place] = taken
            else:
                listed = np.flatnonzero(taken >= 0)
                out[listed, place.start + taken[listed]] = 1.0
        return torch.from_numpy(out)


def narrow(slots: npt.NDArray[np.intp], column: Column) -> Kept:
    """Places of a column's categories, -1 among them, in small whole numbers."""
    return slots.astype(_kind(column))


def _kind(column: Column) -> type[np.int16 | np.int32]:
    return np.int16 if column.width < 1 << 15 else np.int32


def _room(column: Column, records: int) -> Kept:
    return np.empty(records, _kind(column)) if column.categories else np.empty((records, column.width), np.float32)
