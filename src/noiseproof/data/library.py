"""The library of named sets: where each was found, how to get the missing, and opening them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypedDict, cast

from noiseproof.data.arrays import code_arrays
from noiseproof.data.dataset import Dataset
from noiseproof.data.files import npz_length
from noiseproof.data.formats import Part
from noiseproof.data.image_sets import image_sets
from noiseproof.data.named import Layout, NamedSet, Records, cache_folder, fetch, verify
from noiseproof.data.record_sets import CLUSTERS, record_sets
from noiseproof.data.schema import built_in
from noiseproof.data.splits import Split, split
from noiseproof.data.tables import code
from noiseproof.errors import DataError, SettingError
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd


VARIABLE = "NOISEPROOF_DATA"


class Entry(TypedDict):
    """One named set in the catalogue."""

    name: str
    records: int
    features: int
    classes: int
    available: bool
    path: str | None
    how: str


@dataclass(frozen=True)
class Found:
    """The files of a named set, and the layout they are in."""

    layout: Layout
    paths: tuple[Path, ...]


@cache
def named_sets() -> Mapping[str, NamedSet]:
    """Every named set by its name."""
    return MappingProxyType({known.name: known for known in (*image_sets(), *record_sets())})


def data_folders() -> list[Path]:
    """Where named sets are looked for: the folders of NOISEPROOF_DATA, then the cache."""
    named = [Path(folder).expanduser() for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    return [*named, cache_folder()]


def catalogue() -> list[Entry]:
    """Every named set: its size, and where it was found or how to get it. Reads no record and fetches nothing."""
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
    name: str, *, target: str | None = None, seed: int = 0, test_fraction: float = 0.25, progress: Progress = SILENT
) -> Split:
    """A named set from the data folders, else fetched; its own test part where it has one, else split by seed."""
    known = named_sets()[name]
    if target is not None and not known.table:
        raise SettingError(f"{name} has labels of its own; leave the target out.")
    found = find(known) or _fetch(known, progress)
    _verify(known, found)
    parts = found.layout.read(found.paths)
    datasets, remarks = _tables(known, parts, target) if known.table else _arrays(known, parts)
    if len(datasets) == 1:
        return split(datasets[0], seed=seed, test_fraction=test_fraction, remarks=remarks)
    return Split(datasets[0], datasets[1], remarks)


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


def _arrays(known: NamedSet, parts: Sequence[Records]) -> tuple[list[Dataset], tuple[str, ...]]:
    pairs = [cast("Part", part) for part in parts]
    coded = code_arrays(pairs, classes=known.classes, low=0.0, high=known.high, name=known.name)
    if coded[0].public.shape != known.shape:
        raise DataError(
            f"the files of {known.name} hold records of shape {coded[0].public.shape}, not {known.shape}; get others."
        )
    return _annotated(known, coded), ()


def _tables(known: NamedSet, parts: Sequence[Records], target: str | None) -> tuple[list[Dataset], tuple[str, ...]]:
    schema = built_in(known.name)
    if target is not None:
        schema = schema.with_target(target)
    coded, remarks = zip(*(code(cast("pd.DataFrame", part), schema, name=known.name) for part in parts), strict=True)
    return _annotated(known, coded), tuple(dict.fromkeys(remark for some in remarks for remark in some))


def _annotated(known: NamedSet, datasets: Sequence[Dataset]) -> list[Dataset]:
    """The set's notes, and one where this copy is of another size than the set as published (sizes are public)."""
    sizes = tuple(len(dataset) for dataset in datasets)
    notes = known.notes
    if sizes != known.sizes:
        here, whole = (" and ".join(f"{size:,}" for size in some) for some in (sizes, known.sizes))
        notes = (*notes, f"this copy of {known.name} holds {here} records, where the published set has {whole}.")
    return [replace(dataset, public=replace(dataset.public, bounds=known.bounds, notes=notes)) for dataset in datasets]
