"""StoredTensor: records that stand where a tensor of them would, and are read when they are looked at."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map

from noiseproof.data.arrays import Array, record_array, scaled
from noiseproof.errors import DataError

LARGEST = 1 << 30
"""Bytes of records, coded as float32, that are read into memory together at most."""

SMALL = 1 << 28
"""Bytes up to which records that are picked out by their places are read at once; more of them stay on disk."""

_PART = 1 << 22
"""Bytes of a file that are read and scaled together: they are in memory three times over."""

Rows = range | npt.NDArray[np.int64]


class Source(Protocol):
    """Where records come from: coded, float32, in the order of the places asked for.

    One with a true `in_memory` holds them in memory already, in a smaller form.
    """

    shape: tuple[int, ...]

    def read(self, rows: Rows) -> torch.Tensor:
        """The records at these places."""


class MappedArray:
    """An .npy file of records; each is read, and scaled to [0, 1] by public bounds, when it is looked at.

    The file is mapped for its shape alone: a system may map megabytes around every record that is touched in it, and all of
    them would count as this process's memory.

    Formal guarantee
    ----------------
    Each record is coded by itself from its own bytes and the public bounds, so that neighbours stay neighbours.
    """

    def __init__(self, path: Path, low: Array, high: Array) -> None:
        self.path, self._low, self._high = path, low, high
        self._open()

    def _open(self) -> None:
        self._array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        self._file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        coded = record_array(self._array[:1], self.path.name)
        self.shape: tuple[int, ...] = (len(self._array), *coded.shape[1:])

    def read(self, rows: Rows) -> torch.Tensor:
        """The records at these places, coded."""
        found = torch.empty(len(rows), *self.shape[1:])
        size = max(1, _PART // self._array[:1].nbytes)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            places = np.arange(part.start, part.stop, part.step) if isinstance(part, range) else part
            coded = record_array(self._taken(places), self.path.name)
            found[start : start + size] = scaled(coded, self._low, self._high)
        return found

    def _taken(self, places: npt.NDArray[np.int64]) -> Array:
        """The records at these places as the file has them: one request for all that lie side by side."""
        if not self._array.flags.c_contiguous:
            return self._array[places]
        taken = np.empty((len(places), *self._array.shape[1:]), self._array.dtype)
        starts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        firsts, stops = places[starts].tolist(), [*starts[1:].tolist(), len(places)]
        each, room = self._array[:1].nbytes, taken.data.cast("B")
        for start, stop, first in zip(starts.tolist(), stops, firsts, strict=True):
            wanted = room[start * each : stop * each]
            if os.preadv(self._file, [wanted], self._array.offset + first * each) != len(wanted):
                raise DataError(f"{self.path.name} has become shorter since it was opened.")
        return taken

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_low": self._low, "_high": self._high}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


class StoredTensor(torch.Tensor):
    """A float32 tensor of records whose values are read from a `Source` when an operation needs them.

    Slices, splits and long lists of places stay on disk; short ones and every other operation give ordinary tensors. An
    operation on more than `LARGEST` bytes is refused, so that nothing larger than memory is read by accident.
    """

    _source: Source
    _rows: Rows

    @staticmethod
    def __new__(cls, source: Source, rows: Rows | None = None, device: torch.device | str = "cpu") -> StoredTensor:
        """All the records of a source, or those at `rows`; values come out on `device`."""
        rows = range(source.shape[0]) if rows is None else rows
        made: StoredTensor = torch.Tensor._make_wrapper_subclass(
            cls, (len(rows), *source.shape[1:]), dtype=torch.float32, device=torch.device(device)
        )
        made._source, made._rows = source, rows
        return made

    def read(self) -> torch.Tensor:
        """The values, as an ordinary tensor."""
        if self.numel() * 4 > LARGEST and not getattr(self._source, "in_memory", False):
            raise DataError(
                f"{len(self)} records on disk are too many to be read into memory together; work on batches of them."
            )
        return self._source.read(self._rows).to(self.device)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"StoredTensor(shape={tuple(self.shape)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return StoredTensor, (self._source, self._rows, str(self.device))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        lazily = _LAZY.get(func)
        if lazily is not None:
            found = lazily(*args, **(kwargs or {}))
            if found is not None:
                return found
        return func(*tree_map(_read, list(args)), **tree_map(_read, dict(kwargs or {})))


def in_memory(values: Any) -> Any:
    """Tensors, in whatever tuples or mappings, with those on disk read."""
    return values if type(values) is torch.Tensor else tree_map(_read, values)


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, StoredTensor) else value


def _same(tensor: StoredTensor, **_: Any) -> StoredTensor:
    return StoredTensor(tensor._source, tensor._rows, tensor.device)


def _slice(
    tensor: StoredTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> StoredTensor | None:
    if dim != 0:
        return None
    return StoredTensor(tensor._source, tensor._rows[start:end:step], tensor.device)


def _stored_tensor_split(tensor: StoredTensor, size: int, dim: int = 0) -> list[StoredTensor] | None:
    if dim != 0:
        return None
    starts = range(0, max(len(tensor), 1), size)
    return [StoredTensor(tensor._source, tensor._rows[start : start + size], tensor.device) for start in starts]


def _index(tensor: Any, indices: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    places = indices[0]
    if not isinstance(tensor, StoredTensor) or len(indices) != 1 or places is None or places.dim() != 1:
        return None
    if places.dtype == torch.bool:
        places = places.nonzero().flatten()
    numbers = places.cpu().numpy()
    if len(numbers) and not -len(tensor) <= int(numbers.min()) <= int(numbers.max()) < len(tensor):
        raise IndexError(f"a place is not among the {len(tensor)} records")
    numbers = np.where(numbers < 0, numbers + len(tensor), numbers)
    rows = tensor._rows
    rows = rows.start + rows.step * numbers if isinstance(rows, range) else rows[numbers]
    picked = StoredTensor(tensor._source, rows, tensor.device)
    small = SMALL // 4 if getattr(tensor._source, "in_memory", False) else SMALL
    return picked.read() if picked.numel() * 4 <= small else picked


def _index_select(tensor: Any, dim: int, index: torch.Tensor) -> torch.Tensor | None:
    return _index(tensor, [index]) if dim == 0 else None


def _to(tensor: StoredTensor, *, dtype: Any = None, device: Any = None, **_: Any) -> StoredTensor | None:
    if dtype not in (None, torch.float32) or device is None:
        return None
    return StoredTensor(tensor._source, tensor._rows, device)


_ATEN = torch.ops.aten
_LAZY: dict[Any, Callable[..., Any]] = {
    _ATEN.detach.default: _same,
    _ATEN.alias.default: _same,
    _ATEN.slice.Tensor: _slice,
    _ATEN.split.Tensor: _stored_tensor_split,
    _ATEN.index.Tensor: _index,
    _ATEN.index_select.default: _index_select,
    _ATEN._to_copy.default: _to,
}
