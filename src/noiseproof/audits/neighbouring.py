"""Neighbouring files: whether two files differ in one record, and a file without one of its records."""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noiseproof.data.formats import check_file, read_npz
from noiseproof.errors import DataError, SettingError
from noiseproof.files import write_whole
from noiseproof.privacy.budget import Neighbours


@dataclass(frozen=True)
class Pair:
    """Two neighbouring files, the one without the record first, and what could not be checked about them."""

    paths: tuple[Path, Path]
    notes: tuple[str, ...] = ()


def check_pair(data: Path, neighbour: Path, relation: Neighbours) -> Pair:
    """The two files in the order in which worlds are counted, if they differ in one record.

    Args:
        data: A file of records: text with one record a line after a header, or an npz file.
        neighbour: Another one.
        relation: How they have to differ.

    Returns:
        The pair: under add-or-remove, the smaller file first.

    Raises:
        SettingError: If they differ otherwise.
        DataError: If one of them cannot be read.
    """
    for path in (data, neighbour):
        check_file(path)
    if data.suffix != neighbour.suffix:
        raise SettingError(f"{data.name} and {neighbour.name} are of different kinds; give two files of one kind.")
    rows = [_rows(path) for path in (data, neighbour)]
    if rows[0] is None or rows[1] is None:
        return Pair((data, neighbour), ("whether the two files differ in one record alone was not checked.",))
    if rows[0][0] != rows[1][0]:
        raise SettingError(f"{data.name} and {neighbour.name} have different columns; neighbours have the same.")
    lacks, extra = rows[1][1] - rows[0][1], rows[0][1] - rows[1][1]
    differ = (extra.total(), lacks.total())
    allowed = [(1, 0), (0, 1)] if relation == "add-or-remove" else [(1, 1)]
    if differ not in allowed:
        wanted = "one record more or less" if relation == "add-or-remove" else "one record replaced"
        raise SettingError(
            f"{data.name} has {differ[0]} records that {neighbour.name} lacks, and lacks {differ[1]} of its; neighbours "
            f"({relation}) have {wanted}."
        )
    return Pair((data, neighbour) if differ == (0, 1) or relation == "replace-one" else (neighbour, data))


def without_row(data: Path, row: int, out: Path) -> Path:
    """Write a CSV file without one of its records.

    Args:
        data: The file.
        row: Which record, from 0.
        out: Where the smaller file goes.

    Returns:
        `out`.

    Raises:
        SettingError: If there is no such record.
        DataError: If the file is no CSV with a record on each line.
    """
    check_file(data)
    try:
        lines = data.read_text(encoding="utf-8").splitlines(keepends=True)
    except UnicodeDecodeError:
        raise DataError(f"{data} is no text in UTF-8; write the neighbouring file yourself (--neighbour).") from None
    if sum(1 for _ in csv.reader(io.StringIO("".join(lines)))) != len(lines):
        raise DataError(f"{data} has records over several lines; write the neighbouring file yourself (--neighbour).")
    if not 0 <= row < len(lines) - 1:
        raise SettingError(f"{data} has records 0 to {len(lines) - 2}; there is no record {row}.")
    write_whole(out, "".join(line for place, line in enumerate(lines) if place != row + 1), mode=0o600)
    return out


def _rows(path: Path) -> tuple[object, Counter[bytes]] | None:
    """What a file's records have in common, and how often each record is there; None if that cannot be told."""
    if path.suffix == ".npz":
        arrays = read_npz(path)
        parts = [np.ascontiguousarray(arrays[name]) for name in ("x", "y") if name in arrays]
        if len(parts) != 2 or len(parts[0]) != len(parts[1]):
            return None
        about = [(part.shape[1:], part.dtype.str) for part in parts]
        rest = sorted((name, arrays[name].tobytes()) for name in arrays if name not in ("x", "y"))
        return (about, rest), Counter(one.tobytes() + other.tobytes() for one, other in zip(*parts, strict=True))
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    except UnicodeDecodeError:
        return None
    return header, Counter(line.encode() for line in lines if line.strip())
