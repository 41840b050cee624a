"""File formats: CSV, Parquet and npz files of the user's, behind one open register.

Nothing is unpickled, no archive is unpacked to disk, and messages name columns and counts, never a cell.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, Union

import numpy as np

from noiseproof.data.cells import MISSING_VALUES, check_rows
from noiseproof.data.schema import Schema
from noiseproof.errors import DataError, MissingPartError, NoiseproofError, SettingError
from noiseproof.plugins import load_plugins, need

if TYPE_CHECKING:
    import pandas as pd

Array: TypeAlias = np.ndarray[Any, Any]
Part: TypeAlias = tuple[Array, Array]

Content: TypeAlias = Union["pd.DataFrame", Mapping[str, Array]]
Reader: TypeAlias = Callable[..., Content]
R = TypeVar("R", bound=Callable[..., Any])


ROWS = 1 << 15
"""Rows of a table that are read together, where it is read part by part."""


class _Format(NamedTuple):
    read: Reader
    header: Callable[..., Sequence[str]] | None
    text: bool


_FORMATS: dict[str, _Format] = {}


def register_format(
    *extensions: str, header: Callable[..., Sequence[str]] | None = None, text: bool = False
) -> Callable[[R], R]:
    """Function decorator: let `load` read files with these extensions through a function of yours.

    The function takes a path and the schema (None where the user gave none) and returns a pandas table, or a mapping of
    arrays as an npz file holds them (`x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`; perhaps
    `class_names`, `low` and `high`). It must make each row from one person's record alone. It is
    found if its module was imported, or if its package names the module among its entry points of the group
    `noiseproof.formats`.

    Args:
        extensions: How names of such files end, with the dot.
        header: Gives a table's column names (none for arrays) without reading it whole; without it the file is read.
        text: Whether both functions also take the file's `encoding`, as a keyword.

    Returns:
        The decorator; the function itself stays as it is.

    Raises:
        ValueError: If an extension is taken already.

    Examples:
        >>> import pandas as pd
        >>> @register_format(".jsonl")
        ... def read_json_lines(path, schema):
        ...     return pd.read_json(path, lines=True)
    """

    def decorate(read: R) -> R:
        for extension in extensions:
            if extension in _FORMATS:
                raise ValueError(f"two formats have the extension {extension!r}")
            _FORMATS[extension] = _Format(read, header, text)
        return read

    return decorate


def extension(path: Path) -> str:
    """A file's extension among those that can be read; anything else is refused."""
    found = [known for known in _formats() if path.name.lower().endswith(known)]
    if not found:
        raise DataError(f"{path} cannot be read: a file of data is one of {', '.join(_formats())}.")
    return max(found, key=len)


def _formats() -> dict[str, _Format]:
    load_plugins("noiseproof.formats")
    return _FORMATS


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
        raise DataError(f"{path} cannot be read: permission denied.") from None
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not text in the encoding it is read with; give its own, such as --encoding latin-1."
        ) from None
    except LookupError as error:
        if isinstance(error, KeyError | IndexError):
            raise DataError(f"{path} is truncated, corrupt or in another format; get it again.") from None
        raise SettingError("there is no such encoding; give one that Python knows, such as latin-1.") from None
    except Exception:  # whatever it is: no library says what it raises on bytes that somebody made up
        raise DataError(f"{path} is truncated, corrupt or in another format; get it again.") from None


def column_names(path: Path, encoding: str = "utf-8") -> tuple[str, ...]:
    """The names of a table's columns: all there, all different; none where the file holds arrays."""
    known = _formats()[extension(path)]
    if known.header is None:
        found = getattr(read_file(path, encoding=encoding), "columns", ())
    else:
        found = known.header(path, encoding=encoding) if known.text else known.header(path)
    names = tuple(map(str, found))
    if any(not name for name in names):
        raise DataError(f"{path} has a column without a name; name it, or save the table without its index.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path} has more than one column named {', '.join(map(repr, twice))}; rename them.")
    return names


def read_file(path: Path, schema: Schema | None = None, encoding: str = "utf-8") -> Content:
    """What a file of a registered format holds: a table, or arrays by name."""
    known = _formats()[extension(path)]
    with readable(path):
        return known.read(path, schema, encoding=encoding) if known.text else known.read(path, schema)


def read_table(path: Path, schema: Schema | None = None, encoding: str = "utf-8") -> pd.DataFrame:
    """Read a table; a schema tells which cells are text, so that a code such as 007 stays what it is."""
    import pandas as pd

    if not column_names(path, encoding):
        raise DataError(f"{path} holds arrays, not a table.")
    frame = read_file(path, schema, encoding)
    assert isinstance(frame, pd.DataFrame)
    check_rows(frame, path)
    return frame


def read_parts(path: Path, schema: Schema, encoding: str = "utf-8") -> Iterator[pd.DataFrame]:
    """A table's rows, `ROWS` at a time and in order, without reading it whole where its format allows that."""
    kind = extension(path)
    if kind == ".parquet":
        need("Parquet needs", "parquet", "pyarrow")
        import pyarrow.parquet as pq

        with readable(path):
            table = pq.ParquetFile(path)
            names = [name for name in table.schema_arrow.names if name in schema.names]
            for batch in table.iter_batches(batch_size=ROWS, columns=names):
                yield batch.to_pandas()
    elif kind in _CSV:
        reader: Any = read_csv(path, **_csv_options(path, encoding, schema), chunksize=ROWS)
        with reader:
            while True:
                with _strict(path):
                    frame = next(reader, None)
                if frame is None:
                    return
                yield _wanted(frame, schema)
    else:
        frame = read_table(path, schema, encoding)
        for start in range(0, len(frame), ROWS):
            yield frame.iloc[start : start + ROWS]


def read_csv(path: Path, *, encoding: str = "utf-8", separator: str = "", **options: Any) -> pd.DataFrame:
    """Read a CSV as pandas does, but refuse rows that are longer than the header rather than cut them.

    Commas, semicolons, tabs or bars may separate cells, as the header has them. Where semicolons do, numbers may have a
    decimal comma.
    """
    import pandas as pd

    encoding = "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding
    with _strict(path):
        separator = separator or _separator(path, encoding)
        frame: pd.DataFrame = pd.read_csv(
            path,
            sep=separator,
            decimal="," if separator == ";" else ".",
            index_col=False,
            skipinitialspace=separator != "\t",
            low_memory=False,
            encoding=encoding,
            **options,
        )
        if separator == ";" and isinstance(frame, pd.DataFrame):
            frame.attrs["decimal"] = ","
        return frame


@contextlib.contextmanager
def _strict(path: Path) -> Iterator[None]:
    """`readable` for CSV, with what pandas only warns of."""
    import pandas as pd

    with readable(path), warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            yield
        except pd.errors.EmptyDataError:
            raise DataError(f"{path} is empty; give a file with records.") from None
        except (pd.errors.ParserWarning, pd.errors.ParserError):
            raise DataError(
                f"{path} has rows with more cells than its header, or a quote left open; correct them."
            ) from None


def _separator(path: Path, encoding: str) -> str:
    """What separates cells: whatever the first line has most of, outside quotes; a comma if there is nothing."""
    with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
        line = re.sub(r'"[^"]*"', "", file.readline(1 << 20).decode(encoding))
    return max((",", ";", "\t", "|"), key=line.count)


def csv_types(schema: Schema) -> dict[str, Any]:
    """What pandas must know to read a CSV as a schema says it: categories as texts, gaps in numbers as missing."""
    numbers = {column.name for column in schema.features() if column.numeric and not column.date}
    if schema.target.bounds is not None:
        numbers.add(schema.target.name)
    marks = [*MISSING_VALUES, *schema.missing_values]
    return {
        "dtype": {name: str for name in schema.names if name not in numbers},
        "keep_default_na": False,
        "na_values": dict.fromkeys(numbers, marks),
    }


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


def _csv_header(path: Path, encoding: str) -> tuple[str, ...]:
    header = read_csv(path, encoding=encoding, header=None, nrows=1, dtype=str, keep_default_na=False)
    return tuple(str(name).strip() for name in header.iloc[0])


_CSV = (".csv", ".csv.gz", ".tsv", ".tsv.gz")


@register_format(*_CSV, header=_csv_header, text=True)
def _read_csv_table(path: Path, schema: Schema | None, encoding: str) -> pd.DataFrame:
    import pandas as pd

    options = _csv_options(path, encoding, schema)
    frame = read_csv(path, **options)
    if schema is not None:
        return _wanted(frame, schema)
    # A column of true and false is of the texts that it holds, as with a schema; pandas would write all of them True and False.
    texts = [name for name in frame if pd.api.types.infer_dtype(frame[name], skipna=True) == "boolean"]
    return read_csv(path, **options, dtype=dict.fromkeys(texts, str)) if texts else frame


def _csv_options(path: Path, encoding: str, schema: Schema | None) -> dict[str, Any]:
    names = column_names(path, encoding)
    # Without a schema the same texts are missing values as with one, not all that pandas would take for one.
    usual = {"keep_default_na": False, "na_values": list(MISSING_VALUES)}
    types = usual if schema is None else csv_types(schema)
    return {"encoding": encoding, "names": list(names), "header": 0, **types}


def _wanted(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    # All columns are read: with a choice of them pandas would cut rows that are longer than the header.
    return frame if schema.others == "refuse" else frame[[name for name in frame.columns if name in schema.names]]


def _excel(path: Path, **options: Any) -> pd.DataFrame:
    import pandas as pd

    if find_spec("openpyxl") is None:
        raise MissingPartError("an Excel file needs one more part: pip install 'noiseproof[excel]'.")
    with readable(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pd.read_excel(path, engine="openpyxl", **options)


def _excel_header(path: Path) -> tuple[str, ...]:
    return tuple(str(name).strip() for name in _excel(path, header=None, nrows=1, dtype=str).fillna("").iloc[0])


@register_format(".xlsx", header=_excel_header)
def _read_excel(path: Path, schema: Schema | None) -> pd.DataFrame:
    """The first sheet, its first row being the header."""
    return _excel(path, names=list(column_names(path)), **({} if schema is None else csv_types(schema)))


def _parquet_header(path: Path) -> tuple[str, ...]:
    need("Parquet needs", "parquet", "pyarrow")
    import pyarrow.parquet as pq

    with readable(path):
        schema = pq.read_schema(path)
        # pandas stores an index as a column and reads it back as an index; it is no column of the table.
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        return tuple(name for name in schema.names if name not in index)


@register_format(".parquet", header=_parquet_header)
def _read_parquet(path: Path, schema: Schema | None) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(path)


@register_format(".npz", header=lambda path: ())
def read_npz(path: Path, schema: Schema | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """Every array of an npz file. Arrays of Python objects, which are pickles, are refused."""
    # Opened here, as numpy leaves a file open that turns out to be damaged.
    with readable(path), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("a single array, not an archive of arrays")
        with loaded as archive:
            return {key: _array(archive, key, path) for key in archive.files}
