"""File formats: CSV, Parquet and npz files of the user's behind one open register, and raw formats of published sets.

Nothing is unpickled, no archive is unpacked to disk, and messages name columns and counts, never a cell.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar, Union

import numpy as np

from noiseproof.data.schema import Schema
from noiseproof.data.tables import MISSING_VALUES
from noiseproof.errors import DataError, NoiseproofError
from noiseproof.plugins import load_plugins

if TYPE_CHECKING:
    import pandas as pd

Array: TypeAlias = np.ndarray[Any, Any]
Part: TypeAlias = tuple[Array, Array]

Content: TypeAlias = Union["pd.DataFrame", Mapping[str, Array]]
Reader: TypeAlias = Callable[[Path, "Schema | None"], Content]
R = TypeVar("R", bound=Callable[..., Any])


class _Format(NamedTuple):
    read: Reader
    header: Callable[[Path], Sequence[str]] | None


_FORMATS: dict[str, _Format] = {}


def register_format(*extensions: str, header: Callable[[Path], Sequence[str]] | None = None) -> Callable[[R], R]:
    """Function decorator: let `load` read files with these extensions through a function of yours.

    The function takes a path and the schema (None where the user gave none) and returns a pandas table, or a mapping of
    arrays as an npz file holds them (`x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`; perhaps
    `class_names`, `low` and `high`). It must make each row from one person's record alone. It is
    found if its module was imported, or if its package names the module among its entry points of the group
    `noiseproof.formats`.

    Args:
        extensions: How names of such files end, with the dot.
        header: Gives a table's column names (none for arrays) without reading it whole; without it the file is read.

    Raises:
        ValueError: If an extension is taken already.

    Example:
        >>> import pandas as pd
        >>> @register_format(".jsonl")
        ... def read_json_lines(path, schema):
        ...     return pd.read_json(path, lines=True)
    """

    def decorate(read: R) -> R:
        for extension in extensions:
            if extension in _FORMATS:
                raise ValueError(f"two formats have the extension {extension!r}")
            _FORMATS[extension] = _Format(read, header)
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
        raise DataError(f"{path} may not be read; change its permissions.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8; save it as such.") from None
    except (
        *(OSError, EOFError, ValueError, KeyError, IndexError, TypeError, NotImplementedError),
        *(struct.error, zlib.error, zipfile.BadZipFile, tarfile.TarError),
    ):
        raise DataError(f"{path} is truncated, corrupt or of another layout; get it again.") from None


def column_names(path: Path) -> tuple[str, ...]:
    """The names of a table's columns: all there, all different; none where the file holds arrays."""
    known = _formats()[extension(path)]
    read = known.header or (lambda path: getattr(read_file(path), "columns", ()))
    names = tuple(map(str, read(path)))
    if any(not name for name in names):
        raise DataError(f"{path} has a column without a name; name it, or save the table without its index.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{path} has more than one column named {', '.join(map(repr, twice))}; rename them.")
    return names


def read_file(path: Path, schema: Schema | None = None) -> Content:
    """What a file of a registered format holds: a table, or arrays by name."""
    with readable(path):
        return _formats()[extension(path)].read(path, schema)


def read_table(path: Path, schema: Schema | None = None) -> pd.DataFrame:
    """Read a table; a schema tells which cells are text, so that a code such as 007 stays what it is."""
    import pandas as pd

    if not column_names(path):
        raise DataError(f"{path} holds arrays, not a table.")
    frame = read_file(path, schema)
    assert isinstance(frame, pd.DataFrame)
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


def _csv_header(path: Path) -> tuple[str, ...]:
    header = read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False)
    return tuple(str(name).strip() for name in header.iloc[0])


@register_format(".csv", ".csv.gz", header=_csv_header)
def _read_csv_table(path: Path, schema: Schema | None) -> pd.DataFrame:
    names = column_names(path)
    if schema is None:
        return read_csv(path, names=list(names), header=0)
    kept = [place for place, name in enumerate(names) if name in schema.names or schema.others == "refuse"]
    return read_csv(path, names=list(names), header=0, usecols=kept, **csv_types(schema))


def _parquet_header(path: Path) -> tuple[str, ...]:
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


# Raw formats of published sets.


_BLOCK = 1 << 24
"""Bytes of text that are turned into bits at once: bounds memory whatever the file's size."""


def read_idx(path: Path) -> Array:
    """An array in MNIST's idx format, gzipped or not."""
    with readable(path), _open(path) as file:
        content = file.read()
        dimensions = content[3]
        if content[:3] != b"\x00\x00\x08":
            raise ValueError("not an idx file of bytes")
        shape = np.frombuffer(content, ">u4", dimensions, 4)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return values.reshape(shape)


def read_members(path: Path, wanted: Sequence[str]) -> list[bytes]:
    """The contents of members of a tar archive."""
    with readable(path):
        contents = {name: file.read() for name, file in _walk(path, wanted)}
        return [contents[name] for name in wanted]


def parse_cifar(contents: Sequence[bytes], labels: int) -> Part:
    """CIFAR's binary version: `labels` label bytes, of which the last counts, then 3 x 32 x 32 bytes a record."""
    rows = np.concatenate([np.frombuffer(content, np.uint8).reshape(-1, labels + 3072) for content in contents])
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].astype(np.int64)


def read_svhn(path: Path) -> Part:
    """SVHN's cropped digits in Matlab's format, where the digit 0 is labelled 10."""
    from scipy.io import loadmat

    with readable(path):
        content = loadmat(path, variable_names=["X", "y"])
        return np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1)), content["y"].reshape(-1).astype(np.int64) % 10


def read_bits(path: Path, features: int, *, member: str = "", labelled: bool = True) -> Part:
    """Lines of `label,bit,bit,...` (the label perhaps quoted), from a text file or a member of a tar archive.

    Without labels every line is bits alone. Read in blocks, as the text of a large set would not fit in memory.
    """
    bits, labels = [], []
    with readable(path):
        for block in _member_lines(path, member):
            found = _parse_bits(block, features, labelled)
            bits.append(found[0])
            labels.append(found[1])
        return np.concatenate(bits), np.concatenate(labels)


def read_numbers(path: Path, *, member: str = "") -> Array:
    """One whole number a line, from a text file or a member of a tar archive."""
    with readable(path):
        content = read_members(path, [member])[0] if member else path.read_bytes()
        return np.array(content.split(), dtype=np.int64)


def read_baskets(path: Path) -> tuple[Array, Array, int]:
    """Shopping baskets, one a line of item numbers: each purchase's basket and item, and how many baskets."""
    with readable(path), _open(path) as file:
        text = np.frombuffer(file.read(), np.uint8)
        digit = (text >= 48) & (text <= 57)
        if not (digit | np.isin(text, [9, 10, 13, 32])).all():
            raise ValueError("not lines of numbers")
        starts = digit & ~np.concatenate([[False], digit[:-1]])
        lines = np.cumsum(text == 10)
        baskets = int(lines[-1]) + (text[-1] != 10)
        return lines[starts], np.array(text.tobytes().split(), dtype=np.int64), baskets


def top_items(lines: Array, items: Array, baskets: int, *, count: int, top: Array | None = None) -> Array:
    """One row of bits a basket: which of the `count` most bought items (or of the given ones) it holds."""
    if top is None:
        bought = np.bincount(items)
        top = np.sort(np.argsort(-bought, kind="stable")[:count])
        top = top[bought[top] > 0]
    if len(top) != count:
        raise DataError(f"there are {len(top)} different items in the baskets, fewer than the {count} wanted.")
    column = np.full(max(int(items.max()), int(top.max())) + 1, -1)
    column[top] = np.arange(count)
    kept = column[items] >= 0
    bits = np.zeros((baskets, count), np.uint8)
    bits[lines[kept], column[items[kept]]] = 1
    return bits


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _walk(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted members of a tar archive as they come, in one pass: going back would decompress all over again."""
    found = set()
    with tarfile.open(path, "r|*") as archive:
        for info in archive:
            # Archives differ in whether names start with "./"; nothing is written to disk, so names can do no harm.
            name = info.name.removeprefix("./")
            file = archive.extractfile(info) if name in wanted else None
            if file is not None:
                found.add(name)
                yield name, file
    if len(found) < len(wanted):
        raise KeyError("a member is not in the archive")


def _member_lines(path: Path, member: str) -> Iterator[bytes]:
    if not member:
        with path.open("rb") as file:
            yield from _lines(file.read)
    else:
        for _, content in _walk(path, [member]):
            yield from _lines(content.read)


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while block := read(_BLOCK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
    if rest:
        yield rest + b"\n"


def _parse_bits(block: bytes, features: int, labelled: bool) -> Part:
    text = np.frombuffer(block, np.uint8)
    text = text[(text != ord('"')) & (text != ord("\r")) & (text != ord(" "))]
    ends = np.flatnonzero(text == ord("\n"))
    begins = np.concatenate([[0], ends[:-1] + 1])
    ends, begins = ends[ends > begins], begins[ends > begins]
    width = 2 * features - 1
    starts = ends - width
    if not len(ends) or (starts < begins).any():
        raise ValueError("a line is too short")
    cells = np.lib.stride_tricks.sliding_window_view(text, width)[starts]
    bits = cells[:, ::2] - ord("0")
    if (cells[:, 1::2] != ord(",")).any() or (bits > 1).any():
        raise ValueError("not bits with commas between")
    # What is left of a line before its bits is the label and a comma, or nothing.
    digits = np.maximum(starts - 1 - begins, 0)
    if labelled and ((digits < 1) | (digits > 9) | (text[starts - 1] != ord(","))).any():
        raise ValueError("a line does not start with a label")
    if not labelled and (starts != begins).any():
        raise ValueError("a line is too long")
    labels = np.zeros(len(ends), np.int64)
    for place in range(int(digits.max())):
        digit = text[starts - 2 - place].astype(np.int64) - ord("0")
        digit = np.where(place < digits, digit, 0)
        if ((digit < 0) | (digit > 9)).any():
            raise ValueError("a label is not a whole number")
        labels += digit * 10**place
    return bits, labels
