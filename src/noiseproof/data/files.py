"""Files of the user's: CSV and Parquet tables, npz arrays. Messages name columns and counts, never a cell."""

from __future__ import annotations

import contextlib
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.data.schema import Schema
from noiseproof.data.tables import MISSING_VALUES
from noiseproof.errors import DataError, NoiseproofError

if TYPE_CHECKING:
    import pandas as pd


TABLES = (".csv", ".csv.gz", ".parquet")
ARRAYS = (".npz",)


def extension(path: Path) -> str:
    """A file's extension among those that can be read; anything else is refused."""
    for known in (*TABLES, *ARRAYS):
        if path.name.lower().endswith(known):
            return known
    raise DataError(f"{path} cannot be read: a file of data is one of {', '.join((*TABLES, *ARRAYS))}.")


def check_file(path: Path) -> None:
    """Refuse what is not there, not a file, or empty."""
    if path.is_dir():
        raise DataError(f"{path} is a folder; give a file in it.")
    if not path.is_file():
        raise DataError(f"there is no file {path}; check the path.")
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; give a file with records.")


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what libraries raise on a damaged file into one sentence; theirs may quote a cell, so none is passed on."""
    try:
        yield
    except NoiseproofError:
        raise
    except PermissionError:
        raise DataError(f"{path} may not be read; change its permissions.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8; save it as such.") from None
    except (
        *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, NotImplementedError),
        *(struct.error, zlib.error, zipfile.BadZipFile, tarfile.TarError),
    ):
        raise DataError(f"{path} is truncated, corrupt or of another layout; get it again.") from None


def column_names(path: Path) -> tuple[str, ...]:
    """The names of a table's columns: all there, all different."""
    names = _parquet_names(path) if extension(path) == ".parquet" else _csv_names(path)
    if any(not name for name in names):
        raise DataError(f"{path} has a column without a name; name it, or save the table without its index.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path} has more than one column named {', '.join(map(repr, twice))}; rename them.")
    return names


def read_table(path: Path, schema: Schema | None = None) -> pd.DataFrame:
    """Read a CSV or Parquet table; a schema tells which cells are text, so that a code such as 007 stays what it is."""
    import pandas as pd

    names = column_names(path)
    if extension(path) == ".parquet":
        with readable(path):
            frame = pd.read_parquet(path)
    elif schema is None:
        frame = read_csv(path, names=list(names), header=0)
    else:
        kept = [place for place, name in enumerate(names) if name in schema.names or schema.others == "refuse"]
        frame = read_csv(path, names=list(names), header=0, usecols=kept, **csv_types(schema))
    if frame.empty:
        raise DataError(f"{path} has no records, only a header; give a table with rows.")
    return frame


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV as pandas does, but refuse rows that are longer than the header rather than cut them."""
    import pandas as pd

    with readable(path), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame: pd.DataFrame = pd.read_csv(
                path, index_col=False, skipinitialspace=True, low_memory=False, encoding="utf-8-sig", **options
            )
            return frame
        except pd.errors.EmptyDataError:
            raise DataError(f"{path} is empty; give a file with records.") from None
        except (pd.errors.ParserWarning, pd.errors.ParserError):
            raise DataError(
                f"{path} has rows with more cells than its header, or a quote left open; correct them."
            ) from None


def csv_types(schema: Schema) -> dict[str, Any]:
    """What pandas must know to read a CSV as a schema says it: categories as texts, gaps in numbers as missing."""
    numbers = {column.name for column in schema.features() if column.numeric}
    marks = [*MISSING_VALUES, *schema.missing_values]
    return {
        "dtype": {name: str for name in schema.names if name not in numbers},
        "keep_default_na": False,
        "na_values": dict.fromkeys(numbers, marks),
    }


def read_npz(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every array of an npz file. Arrays of Python objects, which are pickles, are refused."""
    # Opened here, as numpy leaves a file open that turns out to be damaged.
    with readable(path), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("a single array, not an archive of arrays")
        with loaded as archive:
            return {key: _array(archive, key, path) for key in archive.files}


def npz_length(path: Path, keys: Sequence[str]) -> int | None:
    """How many records the arrays `keys` of an npz file have together, from their headers alone; None if unreadable."""
    count = 0
    try:
        with zipfile.ZipFile(path) as archive:
            for key in keys:
                with archive.open(f"{key}.npy") as member:
                    major, _ = np.lib.format.read_magic(member)
                    header = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
                    count += header(member)[0][0]
    except (OSError, KeyError, ValueError, IndexError, zlib.error, zipfile.BadZipFile):
        return None
    return count


def _array(archive: np.lib.npyio.NpzFile, key: str, path: Path) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = archive[key]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        raise DataError(f"array {key!r} of {path} holds Python objects; save it as numbers or texts.") from None
    return array


def _csv_names(path: Path) -> tuple[str, ...]:
    header = read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
    return tuple(str(name).strip() for name in header.iloc[0])


def _parquet_names(path: Path) -> tuple[str, ...]:
    import pyarrow.parquet as pq

    with readable(path):
        schema = pq.read_schema(path)
        # pandas stores an index as a column and reads it back as an index; it is no column of the table.
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        return tuple(name for name in schema.names if name not in index)
