"""Named sets: what is public about a published set, in which layouts its files come, and where to get them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, Union

from noiseproof.data.dataset import Kind
from noiseproof.data.fetch import Download
from noiseproof.data.formats import Part

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
