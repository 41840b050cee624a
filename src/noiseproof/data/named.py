"""Named sets: what is public about a published set, in which layouts its files come, and where to get them."""

from __future__ import annotations

import hashlib
import http.client
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, Union

from noiseproof.data.dataset import Kind
from noiseproof.data.formats import Part
from noiseproof.errors import DataError
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd


Records: TypeAlias = Union[Part, "pd.DataFrame"]


@dataclass(frozen=True)
class Layout:
    """Files in which a set may come, and how to read them: training part first, then the test part if it has one."""

    files: tuple[str, ...]
    read: Callable[[Sequence[Path]], Sequence[Records]]
    folders: tuple[str, ...]
    """Where under a data folder the files may lie."""
    counts: tuple[str, ...] = ()
    """Arrays of an npz file whose lengths tell how many records a copy has."""


@dataclass(frozen=True)
class NamedSet:
    """A published data set: everything here is known without looking at a record."""

    name: str
    sizes: tuple[int, ...]
    """Records of the training and the test part, or of the whole where the set has no test part of its own."""
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    kind: Kind
    layouts: tuple[Layout, ...]
    high: float = 1.0
    """The largest value of a feature as it is in the files (the least is 0); tables have their schema instead."""
    downloads: tuple[Download, ...] = ()
    how: str = "comes with scikit-learn"
    notes: tuple[str, ...] = ()
    bounds: Literal["public", "data"] = "public"
    """`data` where features or classes were chosen by looking at the records, as clusters are."""
    table: bool = False
    """Whether it is a table, with a built-in schema of its name."""
    family: str | None = None
    """The set whose files it shares, if it is a variant of one."""

    @property
    def folder(self) -> str:
        """Its own folder under a data folder or the cache."""
        return self.family or self.name


def numbered(count: int) -> tuple[str, ...]:
    """Classes that are called by their numbers."""
    return tuple(str(label) for label in range(count))


# Downloads: whole, checked and atomic, or not at all.


_CHUNK = 1 << 18
_TIMEOUT = 30.0
"""Seconds without a byte after which a download is given up."""


@dataclass(frozen=True)
class Download:
    """A file of a published set: its name, where it is, and its SHA-256 digest where that is publicly known.

    Where none is known, the digest of the first download is written beside the file and later reads are held against
    it: that tells a file that changed on disk, not one that was wrong from the start.
    """

    file: str
    url: str
    sha256: str | None = None


def cache_folder() -> Path:
    """Where downloads are kept: `noiseproof` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path there is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "noiseproof"


def fetch(download: Download, folder: Path, *, progress: Progress = SILENT) -> Path:
    """Download a file into a folder and return its path; a failed or wrong download leaves nothing behind."""
    path = folder / download.file
    staging: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{download.file}-", dir=folder)
        staging = Path(name)
        with os.fdopen(handle, "wb") as file:
            digest = hashlib.sha256()
            for chunk in _chunks(download, progress):
                digest.update(chunk)
                file.write(chunk)
        found = digest.hexdigest()
        if download.sha256 not in (None, found):
            raise DataError(
                f"{download.url} is not the file it should be: its SHA-256 digest differs; try again later."
            )
        if download.sha256 is None:
            # Before the file itself, so that a crash in between cannot leave a file without its digest.
            _digest_file(path).write_text(f"{found}  {download.file}\n")
        staging.replace(path)
    except (OSError, http.client.HTTPException, ValueError):
        raise DataError(f"{download.url} could not be fetched.") from None
    finally:
        if staging is not None:
            staging.unlink(missing_ok=True)
    return path


def verify(download: Download, path: Path) -> None:
    """Refuse a downloaded file that differs from its digest, known or written down when it was fetched."""
    expected = download.sha256
    if expected is None:
        try:
            expected = _digest_file(path).read_text().split()[0]
        except (OSError, IndexError):
            raise DataError(f"{path} has lost the digest written beside it; delete it to fetch it again.") from None
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise DataError(
            f"{path} changed since it was fetched: its SHA-256 digest differs; delete it to fetch it again."
        )


def _digest_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _chunks(download: Download, progress: Progress) -> Iterator[bytes]:
    request = urllib.request.Request(download.url, headers={"User-Agent": "noiseproof"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        total = int(answer.headers.get("Content-Length", 0))
        read = 0
        with progress.task(f"fetching {download.file}", total) as task:
            while chunk := answer.read(_CHUNK):
                read += len(chunk)
                task.advance(len(chunk))
                yield chunk
        if total and read != total:
            raise OSError("the connection ended early")
