"""Bodies of requests that are read without a schema: lists of numbers in JSON, numpy's npy files, Arrow streams."""

from __future__ import annotations

import math
import re
import struct
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import orjson

from noiseproof.errors import DataError, MissingPartError

if TYPE_CHECKING:
    import pandas as pd

JSON, NPY, ARROW = "application/json", "application/x-npy", "application/vnd.apache.arrow.stream"
BODIES = (JSON, NPY, ARROW)
"""The media types in which inputs can be sent."""

_NPY = re.compile(
    rb"\x93NUMPY(?:\x01\x00|[\x02\x03]\x00..)..\{'descr': '(<f[248]|\|u1)', 'fortran_order': False, "
    rb"'shape': \((\d{1,9}(?:, \d{1,9}){0,7}),?\), \} *\n",
    re.DOTALL,
)
"""How an npy file begins that `numpy.save` made of numbers; headers are Python text, and no other is worth reading."""


def read_numbers(body: bytes, shape: tuple[int, ...], rows: int) -> npt.NDArray[np.float32] | None:
    """The array of a body `{"inputs": [...]}` that is nothing but numbers in their places; None for any other body.

    orjson and numpy read numbers several times as fast as a schema does, but take texts and truth values for numbers too:
    so a body with a third quotation mark or with a word in it is none of theirs.
    """
    if body.count(b'"') != 2 or b"u" in body[12:] or b"l" in body[12:]:  # true, false or null
        return None
    try:
        document = orjson.loads(body)
        with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite, and is outside all bounds
            found = np.array(document["inputs"], dtype=np.float32)
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    if len(document) != 1 or found.shape[1:] != shape or not 1 <= len(found) <= rows:
        return None
    return found


def read_npy(body: bytes, shape: tuple[int, ...], rows: int) -> npt.NDArray[np.float32]:
    """The array of an npy file of float16, float32, float64 or uint8.

    Raises:
        DataError: If it is no such file, or holds no records of this shape.
    """
    begin = _NPY.match(body)
    if begin is None:
        raise DataError("the body is no npy file as numpy.save writes an array of floats or of uint8 in C order.")
    given = tuple(int(size) for size in begin[2].split(b","))
    if given[1:] != shape or not 1 <= given[0] <= rows:
        raise DataError(f"the array must be of shape (n, {', '.join(map(str, shape))}), n at most {rows}.")
    kind = np.dtype(begin[1].decode())
    if len(body) - begin.end() != math.prod(given) * kind.itemsize:
        raise DataError("the npy file is longer or shorter than its header says.")
    with np.errstate(over="ignore", invalid="ignore"):  # what becomes infinite is outside all bounds
        return np.frombuffer(body, kind, offset=begin.end()).astype(np.float32).reshape(given)


def read_arrow(body: bytes, rows: int) -> pd.DataFrame:
    """The table of an Arrow IPC stream, column by name; not compressed, for eight megabytes may become eight gigabytes.

    Raises:
        DataError: If it is no such stream, is compressed, or has no rows or too many.
        MissingPartError: If pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPartError("bodies in Arrow need pyarrow: pip install 'noiseproof[parquet]'.") from None
    unreadable = DataError("the body is no Arrow stream that can be read here.")
    try:
        if any(_is_compressed(message.metadata.to_pybytes()) for message in pa.ipc.MessageReader.open_stream(body)):
            raise DataError("the Arrow stream is compressed; send it as it is.")
        with pa.ipc.open_stream(body) as stream:
            if any(not _is_plain(field.type) for field in stream.schema):
                raise DataError("a column of the Arrow stream is not of texts, numbers, dates or truth values.")
            table = stream.read_all()
        table.validate(full=True)
        if not 1 <= table.num_rows <= rows:
            raise DataError(f"a request has 1 to {rows} inputs, and the Arrow stream {table.num_rows}.")
        return table.to_pandas(timestamp_as_object=True, ignore_metadata=True).astype(object)
    except (pa.ArrowException, ValueError, IndexError, OverflowError, OSError, struct.error):
        raise unreadable from None


def _is_plain(kind: object) -> bool:
    from pyarrow import types

    checks = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return any(check(kind) for check in (*checks, types.is_date, types.is_timestamp, types.is_null))


def _is_compressed(metadata: bytes) -> bool:
    """Whether a message of Arrow's, a flatbuffer, is a batch whose field `compression` is set."""

    def field(table: int, slot: int) -> int:
        """Where a table's field lies; 0 if it is not there."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        size = struct.unpack_from("<H", metadata, fields)[0]
        offset = struct.unpack_from("<H", metadata, fields + 4 + 2 * slot)[0] if 4 + 2 * slot < size else 0
        return table + offset if offset else 0

    message = struct.unpack_from("<I", metadata, 0)[0]
    kind, header = field(message, 1), field(message, 2)
    if not kind or not header or metadata[kind] not in (2, 3):
        return False
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    if metadata[kind] == 2:  # a dictionary's batch, whose data is a batch in turn
        data = field(batch, 1)
        batch = data + struct.unpack_from("<I", metadata, data)[0]
    return bool(field(batch, 3))
