"""Dataset: private records, and what is public about them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.data.persons import group_array
from noiseproof.errors import DataError, SettingError

_PART = 1 << 20
"""Numbers that are hashed together."""

Kind = Literal["image", "table", "vector"]
Task = Literal["classification", "regression", "count"]


@dataclass(frozen=True)
class Column:
    """One column of a table as it was before coding: its public bounds, or its public list of categories.

    Examples:
        >>> from noiseproof.data import Column
        >>> Column("age", low=0, high=120, missing=True).width  # the number, and whether it is missing
        2
        >>> Column("job", categories=("nurse", "teacher", "other")).width
        3
    """

    name: str
    """The column's name in the table."""
    low: float | None = None
    """The public lower bound of a number or date; None for categories and text."""
    high: float | None = None
    """The public upper bound of a number or date; None for categories and text."""
    categories: tuple[str, ...] = ()
    """The public list of categories, as texts; empty for numbers, dates and text."""
    integer: bool = False
    """Whether the column holds whole numbers (or categories that are), so that synthetic records do too."""
    missing: bool = False
    """Whether a record may lack it: a number then has an indicator beside it, categories have one slot more."""
    date: str | None = None
    """How its dates are written, as `strptime` has it or `ISO8601`; its bounds are then days since 1970-01-01."""
    text: int = 0
    """Into how many features its free text is hashed."""

    @property
    def numeric(self) -> bool:
        """Whether the column is coded as one scaled number (else one-hot over its categories, or as hashed text)."""
        return not self.categories and not self.text

    @property
    def width(self) -> int:
        """How many coded features the column takes."""
        return (self.text or len(self.categories) or 1) + self.missing


@dataclass(frozen=True)
class Bought:
    """What bounds and categories cost that were bought from the private records (`data.bounds.buy_bounds`).

    Whatever is trained with them has spent it, too.
    """

    columns: tuple[str, ...]
    """The columns, perhaps the target among them, whose bounds or categories were bought."""
    epsilon: float
    """What all of them cost together."""
    delta: float = 0.0
    """What all of them cost together; only categories cost any."""
    unit: Literal["record", "person"] = "record"
    """Whose presence was hidden."""
    neighbours: str = "add-or-remove"
    """The neighbouring relation that they were bought under."""

    @property
    def note(self) -> str:
        """What a card says of it."""
        what = f"the bounds or categories of {len(self.columns)} columns, which were bought from the records."
        return f"Epsilon {self.epsilon:.3g} of it paid for {what}"


@dataclass(frozen=True)
class Public:
    """What anybody may know about a data set without seeing a record.

    Every data set has one as `dataset.public`, every release as `release.public`.

    Examples:
        >>> import torch
        >>> from noiseproof.data import Public
        >>> Public(shape=(1, 28, 28), classes=tuple("0123456789"), kind="image").outputs
        10
        >>> prices = Public(shape=(4,), classes=(), task="regression", target_bounds=(0.0, 500.0))
        >>> prices.in_units(torch.tensor([0.5]))
        tensor([250.])
    """

    shape: tuple[int, ...]
    """One coded record's shape; every coded feature lies in [0, 1]."""
    classes: tuple[str, ...]
    """The names of the classes, in the order that labels count them in; empty for a numeric target."""
    kind: Kind = "vector"
    """What a record is: an `image` of (channels, height, width), a row of a `table`, or any other `vector`."""
    columns: tuple[Column, ...] = ()
    """The columns of a table that are learned from, in the order of their coded features."""
    target: str | None = None
    """The column of a table that is predicted."""
    order: tuple[str, ...] = ()
    """The names of a table's columns, the target among them, in the order of the file."""
    integer_classes: bool = False
    """Whether a table's classes were whole numbers before coding."""
    bounds: Literal["public", "data"] = "public"
    """Where bounds, categories and classes came from: `public` (the user's schema or the set's definition) or `data` (read
    off the private records, for which no guarantee accounts: cards say so)."""
    notes: tuple[str, ...] = ()
    """What cards must repeat about the data: bounds read off it, a stand-in for another set. Public as all else here:
    a note never depends on a record's values unless it says so."""
    task: Task = "classification"
    """What the target is: one of `classes`, or a number (`regression`; `count` for whole numbers from 0)."""
    target_bounds: tuple[float, float] | None = None
    """The bounds by which a numeric target is coded to [0, 1]; None for classes."""
    class_shares: tuple[float, ...] = ()
    """How common each class is, where that is public knowledge; empty where nobody declared it."""
    person: str | None = None
    """The column that tells whose a record is, where several may be one person's. It is never a feature."""
    missing_values: tuple[str, ...] = ()
    """Texts of a table that stand for a missing value, besides the usual ones."""
    bought: Bought | None = None
    """What was paid for bounds and categories, where they were bought from the records."""

    @property
    def is_picture(self) -> bool:
        """Whether a record is a picture of (channels, height, width)."""
        return self.kind == "image" and len(self.shape) == 3

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record: one a class, or one for a numeric target."""
        return len(self.classes) if self.task == "classification" else 1

    def in_units(self, coded: torch.Tensor) -> torch.Tensor:
        """Coded values of a numeric target, such as predictions, in the target's own units and within its bounds."""
        if self.target_bounds is None:
            raise SettingError("only a numeric target has units; this one has classes.")
        low, high = self.target_bounds
        return low + coded.clamp(0, 1) * (high - low)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Coded private records, and what is public about them; `load`, `from_arrays` and `from_torch` make them.

    Raises:
        DataError: If features, labels, groups and the public shape do not fit each other.

    Examples:
        >>> import torch
        >>> from noiseproof.data import Dataset, Public
        >>> public = Public(shape=(2,), classes=("no", "yes"))
        >>> data = Dataset("mine", torch.rand(10, 2), torch.tensor([0, 1] * 5), public)
        >>> len(data), data.classes, data.unit
        (10, 2, 'record')
        >>> len(data.take(torch.tensor([0, 3])))
        2
    """

    name: str
    """What the set is called, in messages."""
    features: torch.Tensor = field(repr=False)
    """float32 of (records, *shape), every value in [0, 1]."""
    labels: torch.Tensor = field(repr=False)
    """Of (records,): int64 places in the list of classes, or float32 in [0, 1] for a numeric target
    (`public.target_bounds`)."""
    public: Public = field(repr=False)
    """What is public about the records."""
    groups: torch.Tensor | None = field(default=None, repr=False)
    """Whose each record is, where a person may have several: an id a record, kept as int64 of (records,) from 0 to `persons`
    - 1. As private as the records."""

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", group_array(self.groups, len(self.labels), self.name))
        if tuple(self.features.shape[1:]) != self.public.shape or len(self.features) != len(self.labels):
            raise DataError(
                f"{self.name}: features of shape {tuple(self.features.shape)} and {len(self.labels)} labels do not fit "
                f"records of shape {self.public.shape}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.public.classes)

    @property
    def outputs(self) -> int:
        """How many numbers a network gives for a record."""
        return self.public.outputs

    @property
    def persons(self) -> int:
        """Number of persons; of records, where each is taken for a person of its own."""
        if self.groups is None:
            return len(self)
        return int(self.groups.max()) + 1 if len(self) else 0

    @property
    def unit(self) -> Literal["record", "person"]:
        """What neighbouring data sets differ in: all records of one person where `groups` are known, else one record."""
        return "record" if self.groups is None else "person"

    @property
    def weights(self) -> torch.Tensor | None:
        """What each record counts for, float64 of (records,), such that every person counts for 1; None without persons.

        A person's weighted sum is then the mean over their records, which is no longer than the longest of these.
        """
        if self.groups is None:
            return None
        return torch.bincount(self.groups).double().reciprocal()[self.groups]

    def take(self, indices: torch.Tensor) -> Dataset:
        """The records at `indices`, in that order."""
        groups = None if self.groups is None else torch.unique(self.groups[indices], return_inverse=True)[1]
        return replace(self, features=self.features[indices], labels=self.labels[indices], groups=groups)

    def joined(self, other: Dataset) -> Dataset:
        """These records, then the other's, none of whose persons is one of these; persons only where both know them."""
        features, labels = torch.cat([self.features, other.features]), torch.cat([self.labels, other.labels])
        groups = None
        if self.groups is not None and other.groups is not None:
            groups = torch.cat([self.groups, other.groups + self.persons])
        return replace(self, features=features, labels=labels, groups=groups)

    def fingerprint(self) -> str:
        """A hash of the records, to tell whether two runs saw the same data. Itself private: never released."""
        digest = hashlib.sha256()
        for tensor in (self.features, self.labels, *(() if self.groups is None else (self.groups,))):
            digest.update(str(tuple(tensor.shape)).encode())
            for part in _parts(tensor):
                digest.update(part.tobytes())
        return digest.hexdigest()

    def identities(self) -> npt.NDArray[np.uint64]:
        """Two 64-bit numbers for each record: a hash of its features and label alone. Private, as the records are."""
        labels = self.labels.cpu().numpy().astype("<f8" if self.labels.is_floating_point() else "<i8")
        found, start = np.empty((len(labels), 2), np.uint64), 0
        for part in _parts(self.features):
            width = part[:1].nbytes
            values, names = part.tobytes(), labels[start : start + len(part)].tobytes()
            digests = []
            for place in range(len(part)):
                one = hashlib.blake2b(values[place * width : (place + 1) * width], digest_size=16)
                one.update(names[8 * place : 8 * place + 8])
                digests.append(one.digest())
            found[start : start + len(part)] = np.frombuffer(b"".join(digests), np.uint64).reshape(-1, 2)
            start += len(part)
        return found


def _parts(tensor: torch.Tensor) -> Iterator[npt.NDArray[Any]]:
    """The tensor as arrays, some records at a time: they may be on disk, and more than memory holds."""
    for part in tensor.detach().split(max(1, _PART * len(tensor) // max(1, tensor.numel()))):
        yield part.cpu().clone().numpy()
