"""Members and non-members from two files, as a stranger's model takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from noiseproof.attacks.attack import AttackSplit
from noiseproof.data.arrays import code_arrays
from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.formats import check_file, column_names, read_npz, read_table
from noiseproof.data.schema import Schema, read_schema
from noiseproof.data.tables import MISSING_VALUES, code, dates, numbers
from noiseproof.errors import DataError, SettingError


def read_members(
    members: Path, nonmembers: Path, *, schema: Path | None = None, coded: bool = False, encoding: str | None = None
) -> AttackSplit:
    """Records that a model was trained on and others of the same kind, from two files.

    Args:
        members: A table, or an npz file with `x` and `y` (whole numbers from 0, or `class_names` beside them).
        nonmembers: Another one of the same kind.
        schema: What is public about a table.
        coded: Whether the model takes records as this package codes them (numbers scaled to [0, 1], categories one-hot);
            else it takes numbers as they are, columns in the order of the file.
        encoding: How text files are encoded.

    Returns:
        Members and non-members.

    Raises:
        DataError: If a file cannot be read, is empty or does not fit the other.
        SettingError: If a table comes without its schema, or has words that a model cannot take as they are.
    """
    for path in (members, nonmembers):
        check_file(path)
    if members.samefile(nonmembers):
        raise SettingError("members and non-members are one and the same file.")
    arrays = [not column_names(path, encoding or "utf-8") for path in (members, nonmembers)]
    if arrays[0] != arrays[1]:
        raise SettingError("give members and non-members as two tables or as two npz files.")
    if arrays[0]:
        if schema is not None:
            raise SettingError("a schema is for tables; npz files hold their class_names, low and high themselves.")
        return AttackSplit(*read_arrays((members, nonmembers), coded=coded))
    if schema is None:
        raise SettingError("give the table's public --schema: columns, bounds and classes.")
    found = [read_records(path, read_schema(schema), coded=coded, encoding=encoding) for path in (members, nonmembers)]
    if found[0].public.order != found[1].public.order:
        raise DataError(f"{members.name} and {nonmembers.name} have their columns in different orders.")
    return AttackSplit(*found)


def read_records(path: Path, schema: Schema, *, coded: bool = False, encoding: str | None = None) -> Dataset:
    """A table's records as a stranger's model takes them; the arguments are those of `read_members`."""
    frame = read_table(path, schema, encoding or schema.encoding)
    dataset = code(frame, schema, name=path.name)[0]
    if coded:
        return dataset
    marks = (*MISSING_VALUES, *schema.missing_values)
    columns = dataset.public.columns
    if words := [column.name for column in columns if not column.numeric]:
        raise SettingError(
            f"column {words[0]!r} holds words, which a model takes in a code of its own; give a file of numbers, or --inputs "
            "coded if it was trained on this package's code."
        )
    values = [
        dates(frame[one.name], one, marks) if one.date else numbers(frame[one.name], one.name, marks) for one in columns
    ]
    features = torch.from_numpy(np.stack(values, axis=1).astype(np.float32))
    return replace(dataset, features=features, public=replace(dataset.public, shape=(len(columns),)))


def read_arrays(paths: Sequence[Path], *, coded: bool = False) -> list[Dataset]:
    """The records of npz files of one kind, as a stranger's model takes them; the first says what is public of them."""
    held = [read_npz(path) for path in paths]
    for path, arrays in zip(paths, held, strict=True):
        if not {"x", "y"} <= arrays.keys():
            raise DataError(f"{path} must hold arrays x and y.")
        if not len(arrays["x"]) or len(arrays["x"]) != len(arrays["y"]):
            raise DataError(f"{path} has {len(arrays['x'])} records and {len(arrays['y'])} labels.")
        if arrays["x"].dtype.kind not in "fiub" or not np.isfinite(arrays["x"]).all():
            raise DataError(f"{path} holds records that are not all finite numbers.")
    if len({one["x"].shape[1:] for one in held}) > 1:
        raise DataError(f"{' and '.join(path.name for path in paths)} hold records of different shapes.")
    labels, names = [np.asarray(one["y"]).reshape(-1) for one in held], held[0].get("class_names")
    if names is not None:
        classes = tuple(str(name) for name in names.reshape(-1))
        places = {name: place for place, name in enumerate(classes)}
        unknown = sum(str(one) not in places for part in labels for one in part.tolist())
        if unknown:
            raise DataError(f"{unknown} labels are none of the class_names in {paths[0].name}.")
        labels = [np.array([places[str(one)] for one in part.tolist()]) for part in labels]
    elif all(part.dtype.kind in "iub" and part.min() >= 0 for part in labels):
        classes = tuple(str(place) for place in range(max(2, 1 + max(int(part.max()) for part in labels))))
    else:
        raise DataError(
            "labels are whole numbers from 0; or put the class_names beside them in the order of the answers."
        )
    features = [torch.from_numpy(np.asarray(one["x"], dtype=np.float32)) for one in held]
    if coded:
        facts = {name: held[0].get(name) for name in ("low", "high")}
        parts = [(one["x"], label) for one, label in zip(held, labels, strict=True)]
        features = [one.features for one in code_arrays(parts, paths[0].name, classes=len(classes), **facts)]  # type: ignore[arg-type]
    public = Public(tuple(features[0].shape[1:]), classes)
    return [
        Dataset(path.name, part, torch.from_numpy(label.astype(np.int64)), public)
        for path, part, label in zip(paths, features, labels, strict=True)
    ]
