"""Stored sets: records larger than memory, in a folder of .npy files that are memory-mapped, not read.

A folder of the user's own holds `x.npy` and `y.npy` (and perhaps `x_test.npy` and `y_test.npy`), and `public.json` with
`classes` (their number or names) or, of a number to predict, `target_bounds`, `low` and `high`; images of bytes need no
bounds. Whose each record is may stand in `groups.npy`. `store_parquet` makes such a folder
of a table, with records coded already and `dataset.json` beside them, which says what is public.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter, ValidationError
from torch.utils._pytree import tree_map

from noiseproof.data.arrays import Array, Facts, check_lengths, describe, group_array, record_array, scaled
from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.formats import readable
from noiseproof.data.schema import Schema
from noiseproof.data.splits import Split, check_classes, coins, sides
from noiseproof.data.tables import code, dense, person_hashes
from noiseproof.errors import DataError, SettingError
from noiseproof.plugins import need
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.privacy.budget import Neighbours

_ROWS = 1 << 15
"""Rows of a table that are coded together."""

_DATASET, _PUBLIC, _IDENTITIES, _GROUPS = "dataset.json", "public.json", "identities.npy", "groups.npy"


def is_stored(path: Path) -> bool:
    """Whether a folder holds a stored set."""
    return (path / "x.npy").is_file() and (path / "y.npy").is_file()


def load_stored(
    path: Path, *, seed: int = 0, test_fraction: float = 0.25, relation: Neighbours = "add-or-remove"
) -> Split:
    """The training and test records of a stored set, memory-mapped.

    Without a test part of its own it is split as `splits.split` does, for which the records are read once where they
    were not coded by `store_parquet`; of those that are held out no more are kept than fit into memory.

    Formal guarantee
    ----------------
    As for `load` with public bounds; a stored set without them is refused rather than read through. Labels are read.
    """
    if (path / _DATASET).is_file():
        whole = _coded(path)
    else:
        facts = _facts(path / _PUBLIC)
        whole = _raw(path, "x.npy", "y.npy", facts)
        if (path / "x_test.npy").is_file():
            test = _raw(path, "x_test.npy", "y_test.npy", facts)
            if test.public != whole.public:
                raise DataError(f"{path} has training and test records of different shapes.")
            return Split(whole, test)
    return _split(whole, path, seed, test_fraction, relation)


def store_parquet(path: Path, schema: Schema, folder: Path, *, progress: Progress = SILENT) -> tuple[str, ...]:
    """Code a Parquet table into `folder`, part by part, so that it can be trained on from disk; returns remarks.

    A Poisson sample takes single records from everywhere, so that reading it from Parquet would unpack nearly every row
    group at every step: the table is coded once, row group by row group, into files that any record can be read from. A
    folder that holds this table already is left as it is.

    Formal guarantee
    ----------------
    That of `tables.code` with a public schema: each row is coded by itself. The folder is as private as the table.
    """
    need("Parquet needs", "parquet", "pyarrow")
    import pyarrow.parquet as pq

    with readable(path):
        table = pq.ParquetFile(path)
        records = table.metadata.num_rows
        names = [name for name in table.schema_arrow.names if name in schema.names]
    if not records:
        raise DataError(f"{path} has no records, only a header; give a table with rows.")
    stat = path.stat()
    source = {"file": path.name, "bytes": stat.st_size, "changed": stat.st_mtime_ns, "schema": schema.to_json()}
    if (folder / _DATASET).is_file():
        if _read_json(folder / _DATASET).get("source") != source:
            raise SettingError(f"{folder} holds another table, or another state of it; choose another folder.")
        return ()
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"{folder} is not empty; choose another folder to store the table in.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    remarks: dict[str, None] = {}
    try:
        kind = np.int64 if schema.target.bounds is None else np.float32
        labels = np.lib.format.open_memmap(staging / "y.npy", mode="w+", dtype=kind, shape=(records,))
        features: Any = None
        identities, persons = [], []
        part: Dataset | None = None
        start = 0
        with progress.task(f"storing {path.name}", records) as task:
            for frame in _frames(table, path, names):
                part, said = code(frame, schema, name=path.name)
                remarks |= dict.fromkeys(said)
                if features is None:
                    shape = (records, *part.public.shape)
                    features = np.lib.format.open_memmap(staging / "x.npy", mode="w+", dtype=np.float32, shape=shape)
                features[start : start + len(part)] = part.features.numpy()
                labels[start : start + len(part)] = part.labels.numpy()
                identities.append(part.identities())
                if schema.person is not None:
                    persons.append(person_hashes(frame, schema))
                start += len(part)
                task.advance(len(part))
        assert part is not None
        features.flush()
        labels.flush()
        np.save(staging / _IDENTITIES, np.concatenate(identities))
        if persons:
            np.save(staging / _GROUPS, dense(np.concatenate(persons)))
        document = {"name": path.name, "source": source, "public": dataclasses.asdict(part.public)}
        (staging / _DATASET).write_text(json.dumps(document, indent=1))
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return tuple(remarks)


def _frames(table: Any, path: Path, names: list[str]) -> Any:
    with readable(path):
        for batch in table.iter_batches(batch_size=_ROWS, columns=names):
            yield batch.to_pandas()


def _coded(path: Path) -> Dataset:
    document = _read_json(path / _DATASET)
    try:
        public = TypeAdapter(Public).validate_python(document["public"])
        name = str(document["name"])
    except (KeyError, ValidationError):
        raise DataError(f"{path / _DATASET} does not describe a stored set; store the table again.") from None
    with readable(path):
        features = StoredTensor(MappedArray(path / "x.npy", np.zeros(()), np.ones(())))
        labels = torch.from_numpy(np.load(path / "y.npy", allow_pickle=False))
    return Dataset(name, features, labels, public, _groups(path, len(labels)))


def _groups(path: Path, records: int) -> torch.Tensor | None:
    """Whose each record is, where the folder says so."""
    if not (path / _GROUPS).is_file():
        return None
    with readable(path):
        return group_array(np.load(path / _GROUPS, allow_pickle=False), records, path.name)


def _raw(path: Path, x: str, y: str, facts: Facts) -> Dataset:
    name = path.name
    with readable(path / x):
        array = np.load(path / x, mmap_mode="r", allow_pickle=False)
    with readable(path / y):
        labels = np.load(path / y, allow_pickle=False)
    check_lengths(len(array), len(labels), name)
    public, (coded,), bounds = describe([record_array(array[:1], name)], [labels], name, **facts)
    if public.bounds == "data":
        raise SettingError(
            f"say in {path / _PUBLIC} how many `classes` there are, or their names (or the `target_bounds` of a number), and "
            "between which `low` and `high` the features lie: they are not read off records on disk."
        )
    groups = _groups(path, len(labels)) if x == "x.npy" else None
    return Dataset(name, StoredTensor(MappedArray(path / x, *bounds)), coded, public, groups)


def _facts(path: Path) -> Facts:
    """What the user's own file says is public."""
    document = _read_json(path) if path.is_file() else {}
    for name in document:
        if name not in Facts.__annotations__:
            raise SettingError(f"{path} may have {', '.join(Facts.__annotations__)}, not {name!r}.")
    return cast("Facts", document)


def _split(dataset: Dataset, path: Path, seed: int, test_fraction: float, relation: Neighbours) -> Split:
    check_classes(dataset)
    records = len(dataset)
    if records < 2:
        raise DataError(f"{dataset.name} has {records} record; a split into training and test needs at least 2.")
    known = np.load(path / _IDENTITIES, allow_pickle=False) if (path / _IDENTITIES).is_file() else None
    train, test = sides(coins(dataset, seed, relation, known), test_fraction, dataset.name)
    # Only the test part may be cut: which records are trained on must not depend on how many there are.
    room = max(1, SMALL // (4 * max(1, int(np.prod(dataset.public.shape)))))
    # In the file's order, so that a sample is read from its beginning to its end.
    return Split(dataset.take(train.sort().values), dataset.take(test[:room].sort().values))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise SettingError(f"{path} is not a file of JSON; correct it.") from None
    if not isinstance(document, dict):
        raise SettingError(f"{path} must be a JSON object.")
    return document


# StoredTensor: records on disk that stand where a tensor of them would, and are read when they are looked at.


LARGEST = 1 << 30
"""Bytes of records, coded as float32, that are read into memory together at most."""

SMALL = 1 << 28
"""Bytes up to which records that are picked out by their places are read at once; more of them stay on disk."""

_HELD = 1 << 28
"""Bytes of a file that may stay mapped into this process's memory."""

_AROUND = 1 << 16
"""Bytes that a system maps with a record, besides its own."""

Rows = range | npt.NDArray[np.int64]


class Source(Protocol):
    """Where records come from: coded, float32, in the order of the places asked for."""

    shape: tuple[int, ...]

    def read(self, rows: Rows) -> torch.Tensor:
        """The records at these places."""


class MappedArray:
    """An .npy file of records, memory-mapped; each is scaled to [0, 1] by public bounds when it is read.

    Formal guarantee
    ----------------
    Each record is coded by itself from its own bytes and the public bounds, so that neighbours stay neighbours.
    """

    def __init__(self, path: Path, low: Array, high: Array) -> None:
        self.path, self._low, self._high = path, low, high
        self._open()

    def _open(self) -> None:
        self._array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        self._touched = 0
        coded = record_array(self._array[:1], self.path.name)
        self.shape: tuple[int, ...] = (len(self._array), *coded.shape[1:])
        # Samples are scattered: what lies next to a record is seldom wanted.
        self._advise("MADV_RANDOM")

    def read(self, rows: Rows) -> torch.Tensor:
        """The records at these places, coded."""
        taken = np.empty((len(rows), *self._array.shape[1:]), self._array.dtype)
        each = self._array[:1].nbytes + (0 if isinstance(rows, range) else _AROUND)
        size = max(1, _HELD // each)
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            taken[start : start + size] = self._array[
                slice(part.start, part.stop, part.step) if isinstance(part, range) else part
            ]
            self._touched += len(part) * each
            if self._touched >= _HELD:
                # Pages that were read stay in the system's cache, but no longer count as this process's memory.
                self._advise("MADV_DONTNEED")
                self._touched = 0
        return scaled(record_array(taken, self.path.name), self._low, self._high)

    def _advise(self, advice: str) -> None:
        mapped = getattr(self._array, "_mmap", None)
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, advice):
            mapped.madvise(getattr(mmap, advice))

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
        if self.numel() * 4 > LARGEST:
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
    return picked.read() if picked.numel() * 4 <= SMALL else picked


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
