"""Stored sets: records larger than memory, in a folder of .npy files that are memory-mapped, not read.

A folder of the user's own holds `x.npy` and `y.npy` (and perhaps `x_test.npy` and `y_test.npy`), and `public.json` with
`classes` (their number or names) or, of a number to predict, `target_bounds`, `low` and `high`; images of bytes need no
bounds. Whose each record is may stand in `groups.npy`. `store_arrays` makes such a folder, and `store_table` one of a table,
with records coded already and `dataset.json` beside them, which says what is public.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import TypeAdapter, ValidationError

from noiseproof.data import lazy
from noiseproof.data.arrays import Array, ArrayLike, Facts, check_lengths, describe, label_array, record_array
from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.formats import readable
from noiseproof.data.lazy import MappedArray, StoredTensor
from noiseproof.data.persons import folded, group_array, numbered, person_remarks
from noiseproof.data.schema import Schema
from noiseproof.data.splits import Split, check_classes, sides
from noiseproof.data.tables import code, hashed_persons
from noiseproof.errors import DataError, SettingError
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.privacy.budget import Neighbours

_DATASET, _PUBLIC, _IDENTITIES, _GROUPS = "dataset.json", "public.json", "identities.npy", "groups.npy"


def is_stored(path: Path) -> bool:
    """Whether a folder holds a stored set."""
    return (path / "x.npy").is_file() and (path / "y.npy").is_file()


def load_stored(
    path: Path,
    *,
    seed: int = 0,
    test_fraction: float = 0.25,
    relation: Neighbours = "add-or-remove",
    most: int = lazy.SMALL,
) -> Split:
    """The training and test records of a stored set, memory-mapped.

    Without a test part of its own it is split as `splits.split` does, for which the records are read once where they
    were not coded by `store_table`; of those that are held out no more are kept than fit into memory: `most` bytes.

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
    return _split(whole, path, seed, test_fraction, relation, most)


_PART = 1 << 21
"""Numbers that a part of a table is coded into at once, at most: 8 MB, which coding holds several times over."""


def _narrow(frames: Iterable[pd.DataFrame], schema: Schema) -> Iterator[pd.DataFrame]:
    """The same rows in parts that are small however wide a row becomes: a text may become thousands of numbers."""
    width = sum(column.text or len(column.categories) or 1 for column in schema.columns.values())
    rows = max(1, _PART // width)
    for frame in frames:
        for start in range(0, len(frame), rows):
            yield frame.iloc[start : start + rows]


def store_table(
    frames: Iterable[pd.DataFrame],
    schema: Schema,
    folder: Path,
    *,
    name: str,
    source: Mapping[str, Any] | None = None,
    records: int | None = None,
    progress: Progress = SILENT,
) -> tuple[str, ...]:
    """Code a table into `folder`, part by part, so that it can be trained on from disk; returns remarks.

    A Poisson sample takes single records from everywhere, so that reading it from a table would unpack nearly all of it at
    every step: the table is coded once, part by part, into files that any record can be read from.

    Args:
        frames: The table's parts, in order.
        schema: What is public about it.
        folder: Where to write; new or empty.
        name: What the table is called.
        source: What tells this table and its state from others: a folder that holds it already is left as it is.
        records: How many there are, if that is known.
        progress: Hears how far it is.

    Returns:
        Remarks for the owner of the records.

    Raises:
        SettingError: If the folder holds something else.
        DataError: If the table has no records, or does not fit the schema; nothing is left behind then.

    Formal guarantee
    ----------------
    That of `tables.code` with a public schema: each row is coded by itself. The folder is as private as the table.
    """
    source = None if source is None else {**source, "schema": schema.to_json()}
    if (folder / _DATASET).is_file() and source is not None:
        if _read_json(folder / _DATASET).get("source") != source:
            raise SettingError(f"{folder} holds another table, or another state of it; choose another folder.")
        return ()
    remarks: dict[str, None] = {}
    public: Public | None = None
    identities, persons, alike = [], [], []
    with _staging(folder) as staging, progress.task(f"storing {name}", records) as task, ExitStack() as files:
        for frame in _narrow(frames, schema):
            part, said = code(frame, schema, name=name)
            remarks |= dict.fromkeys(said)
            if public is None:
                public = part.public
                features = files.enter_context(_Growing(staging / "x.npy", np.float32, public.shape))
                labels = files.enter_context(_Growing(staging / "y.npy", part.labels.numpy().dtype))
            features.append(part.features.numpy())
            labels.append(part.labels.numpy())
            identities.append(part.identities())
            if schema.person is not None:
                persons.append(hashed_persons(frame, schema))
                alike.append(folded(frame[schema.person].to_numpy()))
            task.advance(len(part))
        if public is None:
            raise DataError(f"{name} has no records, only a header; give a table with rows.")
        np.save(staging / _IDENTITIES, np.concatenate(identities))
        if persons:
            ids = np.concatenate(persons)
            np.save(staging / _GROUPS, numbered(ids))
            remarks |= dict.fromkeys(person_remarks(ids, np.concatenate(alike)))
        document = {"name": name, "source": source, "public": dataclasses.asdict(public)}
        (staging / _DATASET).write_text(json.dumps(document, indent=1))
    return tuple(remarks)


def store_arrays(
    batches: Iterable[tuple[ArrayLike, ArrayLike]], folder: Path, *, name: str, groups: ArrayLike | None, facts: Facts
) -> None:
    """Write batches of records and labels into `folder`, as they come, with what is public about them.

    Args:
        batches: Records and labels, each batch in memory by itself.
        folder: Where to write; new or empty.
        name: What the records are called.
        groups: Whose each record is.
        facts: What is public, as for `from_arrays`.

    Raises:
        SettingError: If the folder holds something else.
        DataError: If there are no records, or they cannot be used; nothing is left behind then.
    """
    features: _Growing | None = None
    kept = []
    with _staging(folder) as staging, ExitStack() as files:
        for given, labels in batches:
            records = record_array(given, name)
            if features is None:
                features = files.enter_context(_Growing(staging / "x.npy", records.dtype, records.shape[1:]))
            if records.shape[1:] != features.shape:
                raise DataError(f"the records of {name} are of different shapes.")
            features.append(records)
            kept.append(label_array(labels, name, facts.get("target_bounds") is not None))
        if features is None:
            raise DataError(f"{name} has no records.")
        np.save(staging / "y.npy", np.concatenate(kept))
        if groups is not None:
            np.save(staging / _GROUPS, group_array(groups, features.count, name).numpy())
        public = {key: value for key, value in facts.items() if value is not None}
        (staging / _PUBLIC).write_text(json.dumps(public, default=lambda bound: np.asarray(bound).tolist()))


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """A folder to write to that takes the place of `folder` at the end, or vanishes."""
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"{folder} is not empty; choose another folder to store the records in.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield staging
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


class _Growing:
    """An .npy file that rows are appended to. numpy leaves room in its header for their number, which is put in at the end."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> None:
        self.shape, self.count = shape, 0
        self._dtype, self._file = np.dtype(dtype), path.open("wb")
        self._head()

    def append(self, rows: Array) -> None:
        """Write rows behind those that are there."""
        self._file.write(np.ascontiguousarray(rows, self._dtype).data)
        self.count += len(rows)

    def _head(self) -> None:
        about = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False}
        np.lib.format.write_array_header_1_0(self._file, {**about, "shape": (self.count, *self.shape)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.seek(0)
        self._head()
        self._file.close()


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


def open_arrays(path: Path) -> Dataset:
    """The records of a folder of the user's own arrays, memory-mapped, with what its `public.json` says of them."""
    return _raw(path, "x.npy", "y.npy", _facts(path / _PUBLIC))


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


def _split(dataset: Dataset, path: Path, seed: int, test_fraction: float, relation: Neighbours, most: int) -> Split:
    check_classes(dataset)
    records = len(dataset)
    if records < 2:
        raise DataError(f"{dataset.name} has {records} record; a split into training and test needs at least 2.")
    known = np.load(path / _IDENTITIES, allow_pickle=False) if (path / _IDENTITIES).is_file() else None
    train, test = sides(dataset, seed, test_fraction, relation, known)
    # Only the test part may be cut: which records are trained on must not depend on how many there are.
    room = max(1, most // (4 * max(1, int(np.prod(dataset.public.shape)))))
    # In the file's order, so that a sample is read from its beginning to its end.
    return Split(dataset.take(train.sort().values), dataset.take(test[:room].sort().values))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise SettingError(f"{path} is not a file of JSON; correct it.") from None
    if not isinstance(document, dict):
        raise SettingError(f"{path} must be a JSON object.")
    return document
