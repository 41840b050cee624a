"""Whom an attack is to tell apart: members and non-members of a data set, or of two files for a stranger's model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from noiseproof.data import Dataset, Public, Schema, read_schema
from noiseproof.data.arrays import code_arrays
from noiseproof.data.cells import MISSING_VALUES, dates, numbers
from noiseproof.data.formats import check_file, column_names, read_npz, read_table
from noiseproof.data.tables import code
from noiseproof.errors import DataError, SettingError


@dataclass(frozen=True)
class AttackSplit:
    """Records that the target was trained on, records of the same kind that it was not, and the attacker's own.

    Without a pool the attack is an auditor's: shadow models are trained on random parts of the members and non-members
    themselves, as the strongest attacks do. That tells them nothing about who is a member of the *target*.

    Raises:
        DataError: If there is no member or no non-member.

    Examples:
        >>> from noiseproof.data import load
        >>> data = load("digits")
        >>> split = AttackSplit(data.train, data.test)  # for a release that was trained on `data.train`
        >>> len(split.limited(100).records)
        100
    """

    members: Dataset
    """What the target was trained on, or some of it."""
    nonmembers: Dataset
    """Records of the same kind that it was not trained on."""
    pool: Dataset | None = None
    """The attacker's own records, which shadow models are trained on: neither members nor non-members."""

    def __post_init__(self) -> None:
        if not len(self.members) or not len(self.nonmembers):
            raise DataError("a membership attack needs at least one member and one non-member.")

    @property
    def records(self) -> Dataset:
        """The members, then the non-members; whose each is, if it is known of both."""
        return self.members.joined(self.nonmembers)

    @property
    def membership(self) -> torch.Tensor:
        """For each of `records` whether it is a member."""
        return torch.arange(len(self.members) + len(self.nonmembers)) < len(self.members)

    @property
    def attackers(self) -> Dataset:
        """What shadow models are trained on: the pool, or without one the members and non-members."""
        return self.records if self.pool is None else self.pool

    def limited(self, queries: int, seed: int = 0) -> AttackSplit:
        """Equally many random members and non-members, together at most `queries`, for a target that charges.

        Persons, where they are known, come with all their records.
        """
        generator = torch.Generator().manual_seed(seed)
        sides = (self.members, self.nonmembers)
        orders = [torch.randperm(side.persons, generator=generator) for side in sides]
        # How many persons, or records, of each side half of the answers suffice for.
        paid = [
            int((records_of(side)[order].cumsum(0) <= queries // 2).sum())
            for side, order in zip(sides, orders, strict=True)
        ]
        if min(paid) < 1:
            raise SettingError(f"{queries} answers are too few for an attack: it needs a member and a non-member.")
        members, nonmembers = (_persons_of(side, order[: min(paid)]) for side, order in zip(sides, orders, strict=True))
        return replace(self, members=members, nonmembers=nonmembers)


def records_of(dataset: Dataset) -> torch.Tensor:
    """How many records each person has; one each where persons are not known."""
    return (
        torch.ones(len(dataset), dtype=torch.long) if dataset.groups is None else torch.bincount(dataset.groups.cpu())
    )


def _persons_of(dataset: Dataset, chosen: torch.Tensor) -> Dataset:
    """All records of the chosen persons; the chosen records where persons are not known."""
    if dataset.groups is None:
        return dataset.take(chosen.to(dataset.labels.device))
    wanted = torch.zeros(dataset.persons, dtype=torch.bool, device=dataset.groups.device)
    wanted[chosen.to(wanted.device)] = True
    return dataset.take(wanted[dataset.groups].nonzero().flatten())


def split_for_attack(dataset: Dataset, seed: int = 0, *, size: int | None = None) -> AttackSplit:
    """Cut a data set at random into members (train the target on these), as many non-members, and a pool apart.

    This is the game of the papers: a record is drawn from members and non-members with equal chances and the attacker says
    which it was. Where the records' persons are known, "record" is "person": nobody is on two sides.

    Args:
        dataset: All the records.
        seed: Of the cut.
        size: The number of members; a quarter of the records by default, so that the pool, which takes the rest, holds
            enough for shadow models that are trained on `size` records and compared with as many others.

    Returns:
        Members, non-members and the pool.

    Raises:
        SettingError: If there are too few records for so many members, as many non-members and a pool.

    Examples:
        >>> from noiseproof.data import load
        >>> split = split_for_attack(load("digits").train, size=300)
        >>> len(split.members), len(split.nonmembers)
        (300, 300)

    Formal guarantee
    ----------------
    None: an attack measures, on the trusted side, how much a release gives away about real records.
    """
    size = dataset.persons // 4 if size is None else size
    if size < 1 or 2 * size >= dataset.persons:
        raise SettingError(
            f"{dataset.name} has {dataset.persons} {dataset.unit}s, too few for {size} members, as many non-members and a "
            "pool."
        )
    order = torch.randperm(dataset.persons, generator=torch.Generator().manual_seed(seed))
    members, nonmembers, pool = order[:size], order[size : 2 * size], order[2 * size :]
    return AttackSplit(*(_persons_of(dataset, part) for part in (members, nonmembers, pool)))


def read_members(
    members: Path, nonmembers: Path, *, schema: Path | None = None, coded: bool = False, encoding: str | None = None
) -> AttackSplit:
    """Records that a model was trained on and others of the same kind, from two files.

    Args:
        members: A table, or an npz file with `x` and `y` (whole numbers from 0, or `class_names` beside them).
        nonmembers: Another one of the same kind.
        schema: What is public about a table.
        coded: Whether the model takes records as this package codes them (numbers scaled to [0, 1], categories one-hot);
            else it takes numbers as they are, columns in the order of the file.
        encoding: How text files are encoded.

    Returns:
        Members and non-members.

    Raises:
        DataError: If a file cannot be read, is empty or does not fit the other.
        SettingError: If a table comes without its schema, or has words that a model cannot take as they are.

    Examples:
        >>> rng = np.random.default_rng(0)
        >>> for name in ("members.npz", "others.npz"):
        ...     np.savez(name, x=rng.random((50, 4)), y=rng.integers(2, size=50))
        >>> split = read_members(Path("members.npz"), Path("others.npz"))
        >>> split.members.features.shape
        torch.Size([50, 4])
    """
    for path in (members, nonmembers):
        check_file(path)
    if members.samefile(nonmembers):
        raise SettingError("members and non-members are one and the same file.")
    arrays = [not column_names(path, encoding or "utf-8") for path in (members, nonmembers)]
    if arrays[0] != arrays[1]:
        raise SettingError("give members and non-members as two tables or as two npz files.")
    if arrays[0]:
        if schema is not None:
            raise SettingError("a schema is for tables; npz files hold their class_names, low and high themselves.")
        return AttackSplit(*read_arrays((members, nonmembers), coded=coded))
    if schema is None:
        raise SettingError("give the table's public --schema: columns, bounds and classes.")
    found = [read_records(path, read_schema(schema), coded=coded, encoding=encoding) for path in (members, nonmembers)]
    if found[0].public.order != found[1].public.order:
        raise DataError(f"{members.name} and {nonmembers.name} have their columns in different orders.")
    return AttackSplit(*found)


def read_records(path: Path, schema: Schema, *, coded: bool = False, encoding: str | None = None) -> Dataset:
    """A table's records as a stranger's model takes them; the arguments are those of `read_members`."""
    frame = read_table(path, schema, encoding or schema.encoding)
    dataset = code(frame, schema, name=path.name)[0]
    if coded:
        return dataset
    marks = (*MISSING_VALUES, *schema.missing_values)
    columns = dataset.public.columns
    if words := [column.name for column in columns if not column.numeric]:
        raise SettingError(
            f"column {words[0]!r} holds words, which a model takes in a code of its own; give a file of numbers, or --inputs "
            "coded if it was trained on this package's code."
        )
    values = [
        dates(frame[one.name], one, marks) if one.date else numbers(frame[one.name], one.name, marks) for one in columns
    ]
    features = torch.from_numpy(np.stack(values, axis=1).astype(np.float32))
    return replace(dataset, features=features, public=replace(dataset.public, shape=(len(columns),)))


def read_arrays(paths: Sequence[Path], *, coded: bool = False) -> list[Dataset]:
    """The records of npz files of one kind, as a stranger's model takes them; the first says what is public of them."""
    held = [read_npz(path) for path in paths]
    for path, arrays in zip(paths, held, strict=True):
        if not {"x", "y"} <= arrays.keys():
            raise DataError(f"{path} must hold arrays x and y.")
        if not len(arrays["x"]) or len(arrays["x"]) != len(arrays["y"]):
            raise DataError(f"{path} has {len(arrays['x'])} records and {len(arrays['y'])} labels.")
        if arrays["x"].dtype.kind not in "fiub" or not np.isfinite(arrays["x"]).all():
            raise DataError(f"{path} holds records that are not all finite numbers.")
    if len({one["x"].shape[1:] for one in held}) > 1:
        raise DataError(f"{' and '.join(path.name for path in paths)} hold records of different shapes.")
    labels, names = [np.asarray(one["y"]).reshape(-1) for one in held], held[0].get("class_names")
    if names is not None:
        classes = tuple(str(name) for name in names.reshape(-1))
        places = {name: place for place, name in enumerate(classes)}
        unknown = sum(str(one) not in places for part in labels for one in part.tolist())
        if unknown:
            raise DataError(f"{unknown} labels are none of the class_names in {paths[0].name}.")
        labels = [np.array([places[str(one)] for one in part.tolist()]) for part in labels]
    elif all(part.dtype.kind in "iub" and part.min() >= 0 for part in labels):
        classes = tuple(str(place) for place in range(max(2, 1 + max(int(part.max()) for part in labels))))
    else:
        raise DataError(
            "labels are whole numbers from 0; or put the class_names beside them in the order of the answers."
        )
    features = [torch.from_numpy(np.asarray(one["x"], dtype=np.float32)) for one in held]
    if coded:
        facts = {name: held[0].get(name) for name in ("low", "high")}
        parts = [(one["x"], label) for one, label in zip(held, labels, strict=True)]
        features = [one.features for one in code_arrays(parts, paths[0].name, classes=len(classes), **facts)]  # type: ignore[arg-type]
    public = Public(tuple(features[0].shape[1:]), classes)
    return [
        Dataset(path.name, part, torch.from_numpy(label.astype(np.int64)), public)
        for path, part, label in zip(paths, features, labels, strict=True)
    ]
