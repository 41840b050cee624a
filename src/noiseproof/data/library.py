"""The library of named sets: where each was found, how to get the missing, and opening them."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypedDict

from noiseproof.data.arrays import code_arrays
from noiseproof.data.dataset import Dataset, Task
from noiseproof.data.formats import npz_length
from noiseproof.data.named import CLUSTERS, Download, Layout, NamedSet, named_sets
from noiseproof.data.schema import built_in
from noiseproof.data.tables import code
from noiseproof.errors import DataError, SettingError
from noiseproof.files import whole_file, write_whole
from noiseproof.progress import SILENT, Progress

VARIABLE = "NOISEPROOF_DATA"

_CHUNK = 1 << 18
_TIMEOUT = 30.0
"""Seconds without a byte after which a download is given up."""


class Entry(TypedDict):
    """One named set in the catalogue."""

    name: str
    """What `load` takes."""
    records: int
    """Training and test records together, of the copy that was found where its file tells, else of the published set."""
    features: int
    """Numbers in a record, of a picture every pixel's."""
    classes: int
    """How many there are."""
    available: bool
    """Whether its files were found; else `load` tries to fetch them."""
    path: str | None
    """The first of its files; None where there is none, or none was found."""
    how: str
    """How to get it."""


@dataclass(frozen=True)
class Found:
    """The files of a named set, and the layout they are in."""

    layout: Layout
    paths: tuple[Path, ...]


def data_folders() -> list[Path]:
    """Where named sets are looked for: the folders of NOISEPROOF_DATA, then the cache."""
    named = [Path(folder).expanduser() for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    return [*named, cache_folder()]


def catalogue() -> list[Entry]:
    """Every named set: its size, and where it was found or how to get it. Reads no record and fetches nothing.

    Returns:
        An entry for each set, a dictionary with `name`, `records`, `features`, `classes`, `available`, `path` and `how`.

    Examples:
        >>> from noiseproof.data import catalogue
        >>> [entry["records"] for entry in catalogue() if entry["name"] == "digits"]
        [1797]
    """
    return [_entry(known) for known in named_sets().values() if known.folder == known.name]


def find(known: NamedSet) -> Found | None:
    """The first of the data folders that has a set's files, in the first layout that is complete there."""
    for folder in data_folders():
        for layout in known.layouts:
            for place in layout.folders:
                paths = tuple(folder / place / file for file in layout.files)
                if all(path.is_file() for path in paths):
                    return Found(layout, paths)
    return None


def open_named(
    name: str,
    *,
    target: str | None = None,
    task: Task | None = None,
    bounds: tuple[float, float] | None = None,
    progress: Progress = SILENT,
) -> tuple[list[Dataset], tuple[str, ...]]:
    """The records of a named set from the data folders, else fetched, and remarks for their owner.

    A set with a test part of its own has two parts, any other one.
    """
    known, schema = named_sets()[name], None
    if known.kind == "table":
        schema = built_in(name)
        schema = schema.with_target(target or schema.target.name).with_task(task, bounds)
    elif (target, task, bounds) != (None, None, None):
        raise SettingError(f"{name} has labels of its own; leave target and task out.")
    found = find(known) or _fetch(known, progress)
    _verify(known, found)
    records: Sequence[Any] = known.read(found.layout, found.paths)
    remarks: dict[str, None] = {}
    if schema is None:
        parts = _arrays(known, records)
    else:
        parts = []
        for frame in records:
            part, said = code(frame, schema, name=name)
            parts.append(part)
            remarks |= dict.fromkeys(said)
    sizes = tuple(map(len, parts))
    notes = known.notes
    if sizes != known.sizes:
        here, whole = (" and ".join(f"{size:,}" for size in some) for some in (sizes, known.sizes))
        notes = (*notes, f"this copy of {name} holds {here} records, where the published set has {whole}.")
    told: Any = {"bounds": known.bounds, "notes": notes, "class_shares": known.shares}
    return [replace(part, public=replace(part.public, **told)) for part in parts], tuple(remarks)


def _entry(known: NamedSet) -> Entry:
    found = find(known)
    counted = None
    if found and found.layout.counts:
        counted = npz_length(found.paths[0], found.layout.counts)
    how = known.how
    if known.name == "retail":
        how += f"; in {', '.join(map(str, CLUSTERS))} classes as retail-2 and so on"
    return Entry(
        name=known.name,
        records=counted or sum(known.sizes),
        features=prod(known.shape),
        classes=len(known.classes),
        available=found is not None,
        path=str(found.paths[0]) if found and found.paths else None,
        how=how,
    )


def _fetch(known: NamedSet, progress: Progress) -> Found:
    folder = cache_folder() / known.folder
    try:
        for download in known.downloads:
            if not (folder / download.file).is_file():
                fetch(download, folder, progress=progress)
    except DataError as error:
        raise DataError(
            f"{known.name} is in none of the data folders and {str(error).removesuffix('.')}; put {known.how} into a "
            f"folder and name that folder in {VARIABLE}."
        ) from None
    files = tuple(download.file for download in known.downloads)
    layout = next(layout for layout in known.layouts if layout.files == files)
    return Found(layout, tuple(folder / file for file in files))


def _verify(known: NamedSet, found: Found) -> None:
    """Hold what was fetched against its digests; what users put into folders of their own is theirs to vouch for."""
    fetched = {cache_folder() / known.folder / download.file: download for download in known.downloads}
    for path in found.paths:
        if path in fetched:
            verify(fetched[path], path)


def _arrays(known: NamedSet, parts: Sequence[Any]) -> list[Dataset]:
    coded = code_arrays(parts, known.name, classes=known.classes, low=0.0, high=known.high)
    if coded[0].public.shape != known.shape:
        raise DataError(
            f"the files of {known.name} hold records of shape {coded[0].public.shape}, not {known.shape}; get others."
        )
    return coded


# Downloads: whole, checked and atomic, or not at all.


def cache_folder() -> Path:
    """Where downloads are kept: `noiseproof` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules: a relative path there is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "noiseproof"


def fetch(download: Download, folder: Path, *, progress: Progress = SILENT) -> Path:
    """Download a file into a folder and return its path; a failed or wrong download leaves nothing behind."""
    path = folder / download.file
    digest = hashlib.sha256()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            for chunk in _chunks(download, progress):
                digest.update(chunk)
                file.write(chunk)
            if download.sha256 not in (None, digest.hexdigest()):
                raise DataError(
                    f"{download.url} is not the file it should be: its SHA-256 digest differs; try again later."
                )
            if download.sha256 is None:
                # Before the file itself, so that a crash in between cannot leave a file without its digest.
                write_whole(_digest_file(path), f"{digest.hexdigest()}  {download.file}\n")
    except (OSError, http.client.HTTPException, ValueError):
        raise DataError(f"{download.url} could not be fetched.") from None
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
