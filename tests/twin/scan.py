"""Looking for persons' ids in every byte of whatever was left behind, packed or not."""

from __future__ import annotations

import contextlib
import gzip
import io
import re
import sqlite3
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd


def forms(one: str | int) -> set[bytes]:
    """How an id may stand in a file: as a text in several codings, as a number of 8 bytes, and as its plain hash."""
    text = str(one)
    found = {text.encode(coding) for coding in ("utf-8", "utf-16-le", "utf-32-le")}
    hashed = int(pd.util.hash_array(np.array([text], object))[0])
    found |= {hashed.to_bytes(8, "little"), str(hashed).encode(), f"{hashed:x}".encode()}
    if isinstance(one, int):
        # Without the leading zeros that a smaller number has; SQLite writes 6 bytes where those are enough.
        found |= {one.to_bytes(8, "little")[:6], one.to_bytes(8, "big")[2:], np.float64(one).tobytes()}
    return found


def unpacked(content: bytes, depth: int = 3) -> Iterator[bytes]:
    """The bytes, and whatever is packed in them: archives (npz, xlsx, torch), gzip, PDF streams, Parquet, SQLite rows."""
    yield content
    inner: list[bytes] = []
    if content[:2] == b"PK":
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(content)) as archive:
            inner = [name.encode() for name in archive.namelist()] + [archive.read(name) for name in archive.namelist()]
    elif content[:2] == b"\x1f\x8b":
        inner = [gzip.decompress(content)]
    elif content[:4] == b"PAR1":
        inner = [pd.read_parquet(io.BytesIO(content)).to_csv().encode()]
    elif content[:15] == b"SQLite format 3":
        inner = [_rows(content)]
    elif content[:5] == b"%PDF-":
        for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL):
            with contextlib.suppress(zlib.error):
                inner.append(zlib.decompress(stream))
    for part in inner:
        if depth:
            yield from unpacked(part, depth - 1)


def _rows(content: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "database"
        file.write_bytes(content)
        with contextlib.closing(sqlite3.connect(file)) as database, contextlib.suppress(sqlite3.DatabaseError):
            names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
            return "\n".join(str(row) for name in names for row in database.execute(f'select * from "{name}"')).encode()
    return b""


def ids_in(left: dict[str, bytes], ids: Iterable[str | int]) -> list[str]:
    """Where an id was left behind: in the name of a file, or in its bytes."""
    wanted = {form for one in ids for form in forms(one)}
    found = []
    for name, content in left.items():
        parts = [name.encode(), *unpacked(content)]
        lowered = [part.lower() for part in parts]
        if any(form in part for part in parts for form in wanted) or any(
            form.lower() in part for part in lowered for form in wanted if form.isascii()
        ):
            found.append(name)
    return found


def files_under(folder: Path, *, but: Iterable[Path] = ()) -> dict[str, bytes]:
    """All files below a folder by their paths, except some."""
    ours = {path.resolve() for path in but}
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.resolve() not in ours)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
