"""The files of an end-to-end audit: one without a canary, and neighbours of it with one each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from noiseproof.audits import canaries
from noiseproof.data import Dataset, Public, Schema, decode, layout, load, neighbours
from noiseproof.data.splits import Canary, coins
from noiseproof.errors import DataError, SettingError
from noiseproof.files import write_whole
from noiseproof.privacy.budget import Neighbours

WITHOUT, CONTROL = "without", "control"
"""The world without a canary, and, under add-or-remove, one with an ordinary record in its place."""
_ATTEMPTS = 60
"""How often a canary is moved until the split trains on it, which holds out a quarter of all records."""


@dataclass(frozen=True)
class World:
    """A file of private records as a command gets it, and the canary that it holds."""

    data: Path
    schema: Path | None
    canary: Canary
    unit: Literal["record", "person"] = "record"
    """What the files differ in."""


def candidates(dataset: Dataset) -> dict[str, Canary]:
    """Records that are hard to hide, each far from the others in its own way."""
    rarest = int(torch.bincount(dataset.labels, minlength=dataset.classes).argmin())
    found = {
        "mislabelled": canaries.mislabelled(dataset),
        "corner": canaries.corner(dataset),
        "blank": (torch.zeros_like(dataset.features[0]), rarest),
    }
    return {name: (_row(dataset.public, features), label) for name, (features, label) in found.items()}


def _row(public: Public, features: torch.Tensor) -> torch.Tensor:
    """The features of a table's nearest possible row: one category a column, and nothing missing."""
    features = features.clone()
    for column, place in layout(public.columns) if public.kind == "table" else ():
        part = features[place]
        if not column.numeric:
            chosen = part[: len(column.categories)].argmax()
            part.zero_()[chosen] = 1.0
        elif column.missing:
            part[1] = 0.0
    return features


def write_worlds(
    place: Path, dataset: Dataset, relation: Neighbours, chosen: Mapping[str, Canary], seed: int, of_person: int = 1
) -> dict[str, World]:
    """A file for the world without a canary, and one for each canary (and an ordinary record, under add-or-remove).

    A command splits files by a key of its own. A canary that would be held out is moved a little, or under replace-one
    takes another record's place, until it is trained on. Where the records' persons are known, the canary is a person who
    has `of_person` such records.
    """
    if dataset.groups is not None and relation != "add-or-remove":
        raise SettingError("end to end, a canary person is added or removed; leave replace-one to records.")
    if relation == "add-or-remove":
        ordinary = int(torch.randint(len(dataset), (), generator=torch.Generator().manual_seed(seed)))
        chosen = {CONTROL: (dataset.features[ordinary], dataset.labels[ordinary].item()), **chosen}
    first = next(iter(chosen.values()))
    written = {WITHOUT: _write(place / WITHOUT, dataset, first, relation, seed)}
    without = _training_part(written[WITHOUT], relation)
    if without is None:
        raise SettingError(
            "the split that a command makes has all these records on one side, as it has a part of its own making (`.train`); "
            "give the whole data set, or more records."
        )
    held_out = _fingerprint(without)
    for name, canary in chosen.items():
        for attempt in range(_ATTEMPTS):
            moved = _moved(dataset.public, canary, attempt)
            # Under add-or-remove the first has a record more; under replace-one the second has the canary.
            pair = neighbours(dataset, seed + attempt, relation=relation, canary=moved)
            other = pair[relation == "replace-one"]
            if dataset.groups is not None:
                other = other.take(torch.cat([torch.arange(len(dataset)), torch.full((of_person,), len(dataset))]))
            written[name] = _write(place / name, other, moved, relation, seed)
            part = _training_part(written[name], relation)
            if part is not None and _fingerprint(part) != held_out and _holds(part, moved):
                break
        else:
            raise SettingError(
                f"the split holds the canary ({name}) out, wherever it was moved to; give another one, or more records."
            )
    return written


def _moved(public: Public, canary: Canary, attempt: int) -> Canary:
    """The canary with a number moved inwards, by a hundredth more each time that all numbers have had their turn."""
    features, label = canary[0].clone(), canary[1]
    flat = features.view(-1)
    numbers = range(len(flat))
    if public.kind == "table":
        numbers = [place.start for column, place in layout(public.columns) if column.numeric]  # type: ignore[assignment]
    if attempt and numbers:
        turn, number = divmod(attempt - 1, len(numbers))
        value = float(flat[numbers[number]])
        flat[numbers[number]] = value + (0.01 if value < 0.5 else -0.01) * (turn + 1)
    return features, label


def _training_part(world: World, relation: Neighbours) -> Dataset | None:
    """The records that a command trains on; None if the split puts all on one side."""
    try:
        return load(world.data, schema=world.schema, neighbours=relation).train
    except DataError:
        return None


def _fingerprint(part: Dataset) -> str:
    return replace(part, groups=None).fingerprint()  # persons are numbered anew where one more is in either part


def _holds(part: Dataset, canary: Canary) -> bool:
    """Whether the canary is among them: under replace-one another record may have taken its place instead."""
    near = (part.features - canary[0].to(part.features)).flatten(1).abs().amax(1) < 1e-3
    return bool((part.labels[near] == canary[1]).any())


def _write(path: Path, dataset: Dataset, canary: Canary, relation: Neighbours, seed: int) -> World:
    """Records as a file that `load` reads back as they are: a table with its schema, or arrays with their bounds."""
    public, unit = dataset.public, dataset.unit
    if relation == "add-or-remove":
        # In an order of coins, so that the canary is not told by its place; all others keep theirs.
        dataset = dataset.take(
            torch.from_numpy(np.argsort(coins(dataset, seed + 1), kind="stable")).to(dataset.labels.device)
        )
    if public.kind == "table" and public.target is not None:
        table, schema = path.with_suffix(".csv"), path.with_suffix(".json")
        rows = decode(public, dataset.features, dataset.labels)
        if dataset.groups is not None:
            name = public.person or "person"
            public = replace(public, person=name)
            rows[name] = dataset.groups.cpu().numpy()
        rows.to_csv(table, index=False)
        write_whole(schema, Schema.of(public).to_json())
        return World(table, schema, canary, unit)
    arrays = path.with_suffix(".npz")
    held = {
        "x": dataset.features.cpu().numpy(),
        "y": np.array(public.classes)[dataset.labels.cpu().numpy()],
        "class_names": np.array(public.classes),
        "low": np.array(0.0),
        "high": np.array(1.0),
    }
    if dataset.groups is not None:
        held["groups"] = dataset.groups.cpu().numpy()
    np.savez(arrays, **held)
    return World(arrays, None, canary, unit)
