"""Stored sets: records larger than memory, in a folder of .npy files that are memory-mapped, not read.

A folder of the user's own holds `x.npy` and `y.npy` (and perhaps `x_test.npy` and `y_test.npy`), and `public.json` with
`classes` (their number or names), `low` and `high`; images of bytes need no bounds. `store_parquet` makes such a folder
of a table, with records coded already and `dataset.json` beside them, which says what is public.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter, ValidationError

from noiseproof.data.arrays import code_labels, label_array, public_bounds, record_array
from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.files import readable
from noiseproof.data.schema import Schema
from noiseproof.data.splits import Split
from noiseproof.data.stored_tensor import SMALL, MappedArray, StoredTensor
from noiseproof.data.tables import code
from noiseproof.errors import DataError, SettingError
from noiseproof.progress import SILENT, Progress

_ROWS = 1 << 15
"""Rows of a table that are coded together."""

_DATASET, _PUBLIC = "dataset.json", "public.json"


def is_stored(path: Path) -> bool:
    """Whether a folder holds a stored set."""
    return (path / "x.npy").is_file() and (path / "y.npy").is_file()


def load_stored(path: Path, *, seed: int = 0, test_fraction: float = 0.25) -> Split:
    """The training and test records of a stored set, memory-mapped.

    Without a test part of its own, `test_fraction` of the records are held out, but no more than fit into memory.

    Formal guarantee
    ----------------
    As for `load` with public bounds; a stored set without them is refused rather than read through. Labels are read.
    """
    name = path.name
    if (path / _DATASET).is_file():
        whole = _coded(path)
    else:
        public = _read_json(path / _PUBLIC) if (path / _PUBLIC).is_file() else {}
        whole = _raw(path, "x.npy", "y.npy", public, name)
        if (path / "x_test.npy").is_file():
            test = _raw(path, "x_test.npy", "y_test.npy", public, name)
            if test.public != whole.public:
                raise DataError(f"{path} has training and test records of different shapes.")
            return Split(whole, test)
    return _split(whole, seed, test_fraction)


def store_parquet(path: Path, schema: Schema, folder: Path, *, progress: Progress = SILENT) -> tuple[str, ...]:
    """Code a Parquet table into `folder`, part by part, so that it can be trained on from disk; returns remarks.

    A Poisson sample takes single records from everywhere, so that reading it from Parquet would unpack nearly every row
    group at every step: the table is coded once, row group by row group, into files that any record can be read from. A
    folder that holds this table already is left as it is.

    Formal guarantee
    ----------------
    That of `tables.code` with a public schema: each row is coded by itself. The folder is as private as the table.
    """
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
        labels = np.lib.format.open_memmap(staging / "y.npy", mode="w+", dtype=np.int64, shape=(records,))
        features: Any = None
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
                start += len(part)
                task.advance(len(part))
        assert part is not None
        features.flush()
        labels.flush()
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
    return Dataset(name, features, labels, public)


def _raw(path: Path, x: str, y: str, public: Mapping[str, Any], name: str) -> Dataset:
    unknown = sorted(set(public) - {"classes", "low", "high"})
    if unknown:
        raise SettingError(f"{path / _PUBLIC} may have classes, low and high, not {unknown[0]!r}.")
    if "classes" not in public:
        raise SettingError(f"say in {path / _PUBLIC} how many `classes` there are, or their names.")
    with readable(path / x):
        array = np.load(path / x, mmap_mode="r", allow_pickle=False)
    with readable(path / y):
        labels = label_array(np.load(path / y, allow_pickle=False), name)
    if len(array) != len(labels) or not len(labels):
        raise DataError(f"{path} has {len(array)} records but {len(labels)} labels; give as many of both.")
    first = record_array(array[:1], name)
    bounds = public_bounds([first], public.get("low"), public.get("high"), name)
    if bounds is None:
        raise SettingError(
            f"say in {path / _PUBLIC} between which `low` and `high` the features lie: they are not read off records on disk."
        )
    (coded,), names = code_labels([labels], public["classes"], name)
    about = Public(shape=first.shape[1:], classes=names, kind="image" if first.ndim == 4 else "vector")
    return Dataset(name, StoredTensor(MappedArray(path / x, *bounds)), torch.from_numpy(coded), about)


def _split(dataset: Dataset, seed: int, test_fraction: float) -> Split:
    records = len(dataset)
    if records < 2:
        raise DataError(f"{dataset.name} has {records} record; a split into training and test needs at least 2.")
    room = SMALL // (4 * max(1, int(np.prod(dataset.public.shape))))
    held = min(max(round(test_fraction * records), 1), records - 1, max(room, 1))
    order = torch.randperm(records, generator=torch.Generator().manual_seed(seed))
    # In the file's order, so that a sample is read from its beginning to its end.
    return Split(dataset.take(order[held:].sort().values), dataset.take(order[:held].sort().values))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise SettingError(f"{path} is not a file of JSON; correct it.") from None
    if not isinstance(document, dict):
        raise SettingError(f"{path} must be a JSON object.")
    return document
