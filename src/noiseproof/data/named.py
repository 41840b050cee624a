"""Named sets: what is public about each published set (`sets.json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, TypeAdapter

from noiseproof.data.dataset import Kind
from noiseproof.data.raw import READERS, Paths, Records, cluster_labels

CLUSTERS = (2, 10, 20, 50, 100)
"""Into how many classes shopping baskets can be had: those of `retail`, and of `purchase`, whose own labels are the 100."""


def _numbered(classes: Any) -> Any:
    """A number of classes stands for classes that are called by their numbers."""
    return tuple(map(str, range(classes))) if isinstance(classes, int) else classes


@dataclass(frozen=True)
class Download:
    """A file of a published set: its name, where it is, and its SHA-256 digest where that is publicly known.

    Where none is known, the digest of the first download is written beside the file and later reads are held against
    it: that tells a file that changed on disk, not one that was wrong from the start.
    """

    file: str
    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class Layout:
    """Files in which a set may come, and the name of what reads them."""

    reader: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    """Where under a data folder the files may lie."""
    members: tuple[str, ...] = ()
    """Members to read, if the file is an archive."""
    counts: tuple[str, ...] = ()
    """Arrays of an npz file whose lengths tell how many records a copy has."""


@dataclass(frozen=True)
class NamedSet:
    """A published data set: everything here is known without looking at a record."""

    name: str
    kind: Kind
    sizes: tuple[int, ...]
    """Records of the training and the test part, or of the whole where the set has no test part of its own."""
    shape: tuple[int, ...]
    classes: Annotated[tuple[str, ...], BeforeValidator(_numbered)]
    layouts: tuple[Layout, ...]
    high: float = 1.0
    """The largest value of a feature as it is in the files (the least is 0); tables have their schema instead."""
    downloads: tuple[Download, ...] = ()
    how: str = "comes with scikit-learn"
    notes: tuple[str, ...] = ()
    bounds: Literal["public", "data"] = "public"
    """`data` where features or classes were chosen by looking at the records, as clusters are."""
    even: bool = False
    """Whether its classes are about equally common, by the set's own description."""
    family: str | None = None
    """The set whose files it shares, if it is a variant of one."""
    clustered: bool = False
    """Whether clusters of its records stand in for the labels that its files have."""

    @property
    def shares(self) -> tuple[float, ...]:
        """How common each class is, where the set's description says it."""
        return tuple(1 / len(self.classes) for _ in self.classes) if self.even else ()

    @property
    def folder(self) -> str:
        """Its own folder under a data folder or the cache."""
        return self.family or self.name

    def read(self, layout: Layout, paths: Paths) -> Sequence[Records]:
        """The records in files of one of its layouts: the training part, then the test part if there is one."""
        parts = READERS[layout.reader](self, layout, paths)
        if not self.clustered:
            return parts
        return [(bits, cluster_labels(bits, len(self.classes))) for bits, _ in parts]


@cache
def named_sets() -> Mapping[str, NamedSet]:
    """Every named set by its name, the variants of `retail` and `purchase` last."""
    content = resources.files("noiseproof.data").joinpath("sets.json").read_bytes()
    sets = {known.name: known for known in TypeAdapter(list[NamedSet]).validate_json(content)}
    for k in CLUSTERS:
        variant = replace(sets["retail"], name=f"retail-{k}", family="retail", classes=_numbered(k))
        sets[variant.name] = variant
    for k in CLUSTERS[:-1]:
        told: Any = {"classes": _numbered(k), "bounds": "data", "notes": (f"labelled by k-means into {k} classes.",)}
        variant = replace(sets["purchase"], name=f"purchase-{k}", family="purchase", clustered=True, **told)
        sets[variant.name] = variant
    return MappingProxyType(sets)
