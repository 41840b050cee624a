"""Records as networks see them and back (a table's numbers become bins at public edges), and synthetic ones on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from noiseproof.data import Column, Dataset, Public, decode, layout
from noiseproof.data.lazy import in_memory
from noiseproof.errors import DataError, SettingError
from noiseproof.files import check_out, whole_file
from noiseproof.plugins import need
from noiseproof.releases.release import DataRelease

if TYPE_CHECKING:
    import pandas as pd

_STEPS, _HALVINGS, _MANY_HALVINGS = 16, 12, 20
FEWEST = 50
"""Records below which no generator is trained: the noise would be larger than all there is to learn."""
MOST_SLOTS = 4096
_ROWS = 1 << 13
DIGITS = 4
"""Significant digits of synthetic numbers that are written: more would be nothing but chance."""
MOST_VALUES = 256
"""Whole numbers of no more than so many values have a slot for each: forty hours a week are not between 38 and 43."""


def edges(steps: int = _STEPS) -> torch.Tensor:
    """Public edges of bins in [0, 1]: equal steps, and halvings towards 0, where amounts of money crowd.

    With more steps than usual there are more halvings, each of which has several steps too.
    """
    finer = max(1, steps // _STEPS)
    halvings = _HALVINGS if finer == 1 else _MANY_HALVINGS
    equal = {place / steps for place in range(1, steps)}
    return torch.tensor(sorted(equal | {2.0 ** (-power / finer) for power in range(1, finer * halvings + 1)}))


class Coding:
    """How records of a public description are coded for a discriminator, and generated ones decoded.

    A table's record becomes one slot a column (one-hot): its category, its whole number or a bin of its number, or that
    it is missing. A category outside the public list has no slot. Whole numbers are also known by coarse slots, the bins
    that they fall into, for looking at pairs of columns. Pictures and vectors stay as they are.

    Formal guarantee
    ----------------
    None is needed: each record is coded alone by a map that the public description fixes; decoding is post-processing.
    """

    def __init__(self, public: Public, *, steps: int = _STEPS) -> None:
        self.public = public
        self.table = public.kind == "table" and bool(public.columns)
        self._places = layout(public.columns) if self.table else []
        self._edges = {column.name: _column_edges(column, steps) for column, _ in self._places if column.numeric}
        coarse = [self._coarse(column) for column, _ in self._places]
        self.sizes: tuple[int, ...] = tuple(len(part) for part in coarse)
        """Slots of each column of a table."""
        self.coarse_sizes: tuple[int, ...] = tuple(int(part.max()) + 1 for part in coarse)
        """Coarse slots of each column."""
        starts = [sum(self.coarse_sizes[:place]) for place in range(len(coarse))]
        self.coarse = torch.cat([part + start for part, start in zip(coarse, starts, strict=True)] or [torch.zeros(0)])
        """For every slot the coarse slot that it belongs to."""
        if sum(self.sizes) > MOST_SLOTS:
            raise SettingError(
                f"the columns have {sum(self.sizes)} categories and bins together, and at most {MOST_SLOTS} can be "
                "generated; drop columns or join categories."
            )
        self.widths: tuple[torch.Tensor | None, ...] = tuple(
            torch.cat([torch.zeros(1), self._edges[column.name], torch.ones(1)]).diff() if column.numeric else None
            for column, _ in self._places
        )
        """Of each column of numbers, how wide its slots are, as shares of the range; the one for missing values is none."""
        self.shape: tuple[int, ...] = (sum(self.sizes),) if self.table else public.shape
        """A coded record's shape."""

    def _coarse(self, column: Column) -> torch.Tensor:
        """The coarse slot of each of a column's slots, the one for missing values last."""
        if not column.numeric:
            return torch.arange(column.width)
        bins = len(self._edges[column.name]) + 1
        values = torch.arange(bins)
        common = edges()
        if _is_exact(column) and bins > len(common) + 1:
            values = torch.bucketize(values / (bins - 1), common, right=True)
        return torch.cat([values, values.max().reshape(1) + 1]) if column.missing else values

    def coarsen(self, coded: torch.Tensor) -> torch.Tensor:
        """Coarse slots of coded records."""
        wide = coded.new_zeros(len(coded), sum(self.coarse_sizes))
        return wide.index_add(1, self.coarse.to(coded.device), coded)

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Records as a discriminator sees them."""
        if not self.table:
            return features
        features, parts = in_memory(features), []
        for column, place in self._places:
            values = features[:, place]
            if column.numeric:
                size = len(self._edges[column.name]) + 1 + column.missing
                values = functional.one_hot(self._bin(column, values), size).to(features.dtype)
            parts.append(values)
        return torch.cat(parts, dim=1)

    def slots(self, features: torch.Tensor) -> torch.Tensor:
        """The slot of every column of a table, (records, columns); of a category outside the public list, the first."""
        features = in_memory(features)
        parts = [(column, features[:, place]) for column, place in self._places]
        return torch.stack(
            [self._bin(column, values) if column.numeric else values.argmax(1) for column, values in parts], dim=1
        )

    def _bin(self, column: Column, values: torch.Tensor) -> torch.Tensor:
        """The slot of a numeric column's features."""
        inner = self._edges[column.name].to(values.device)
        slot = torch.bucketize(values[:, 0].contiguous(), inner, right=True)
        return torch.where(values[:, 1] > 0.5, len(inner) + 1, slot) if column.missing else slot

    def decode(self, coded: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Features of generated records: a slot drawn by its probability, a number drawn within its bin."""
        if not self.table:
            return coded.clamp(0, 1)
        parts = coded.clamp_min(1e-12).split(list(self.sizes), dim=1)
        slots = [torch.multinomial(part, 1, generator=generator).squeeze(1) for part in parts]
        return self.from_slots(torch.stack(slots, dim=1), generator)

    def from_slots(self, slots: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Features of records with these slots, (records, columns); a number is drawn within its bin."""
        parts = []
        for (column, _), slot in zip(self._places, slots.unbind(1), strict=True):
            if column.numeric:
                parts.append(self._numbers(column, slot, generator).float())
            else:
                parts.append(torch.zeros(len(slot), column.width).scatter_(1, slot[:, None], 1.0))
        return torch.cat(parts, dim=1)

    def _numbers(self, column: Column, slot: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A numeric column's features for slots that were drawn."""
        inner = self._edges[column.name]
        bins = len(inner) + 1
        missing = slot == bins
        slot = slot.clamp(max=bins - 1)
        if _is_exact(column):
            value = slot / (bins - 1)
        else:
            low, high = torch.cat([inner.new_zeros(1), inner]), torch.cat([inner, inner.new_ones(1)])
            inside = torch.rand(len(slot), generator=generator)
            # The lowest bin stands for the bound itself: nobody has a capital gain of between 0 and 24.
            value = torch.where(slot == 0, torch.zeros_like(inside), low[slot] + (high - low)[slot] * inside)
        value = torch.where(missing, torch.full_like(value, 0.5), value)
        return torch.stack([value, missing.to(value.dtype)] if column.missing else [value], dim=1)


def _is_exact(column: Column) -> bool:
    """Whether every whole number between the column's bounds has a slot of its own."""
    if column.low is None or column.high is None or not column.integer:
        return False
    width = column.high - column.low
    return float(column.low).is_integer() and float(width).is_integer() and width < MOST_VALUES


def _column_edges(column: Column, steps: int) -> torch.Tensor:
    """A column's edges in [0, 1]: halfway between whole numbers, or the common ones."""
    if not _is_exact(column):
        return edges(steps)
    assert column.low is not None
    assert column.high is not None
    values = round(column.high - column.low)
    return (torch.arange(values) + 0.5) / values


def check_records(dataset: Dataset) -> None:
    """Refuse, before any budget is spent, what no generator can learn from; the number of units is public."""
    if texts := [column.name for column in dataset.public.columns if column.text]:
        raise DataError(f"a generator makes no free text, such as column {texts[0]!r}; skip it.")
    if dataset.persons < FEWEST:
        raise DataError(
            f"{dataset.name} has {dataset.persons} {dataset.unit}s and a private generator needs {FEWEST} or more; with "
            "fewer the noise hides everything there is to learn."
        )


# Synthetic records on disk: a table as CSV or Parquet, pictures as npz with a contact sheet, each with its card.


def card_path(out: Path) -> Path:
    """Where the card of a file of records lies: beside it."""
    return out.with_name(out.name + ".card.json")


def sheet_path(out: Path) -> Path:
    """Where the contact sheet of a file of pictures lies."""
    return out.with_name(out.name + ".png")


def check_target(out: Path, dataset: Dataset, *, force: bool = False, inputs: Sequence[str | Path | None] = ()) -> None:
    """Refuse, before any budget is spent, a file that does not suit the records, cannot be written or exists.

    Args:
        out: Where the synthetic records are to go; their card, and a contact sheet of pictures, go beside it.
        dataset: The records that the synthetic ones stand for.
        force: Whether files that are there may be replaced.
        inputs: Files that are read and must not be written over.

    Raises:
        SettingError: If the ending does not suit the records, the folder is missing, or there is a file.
    """
    table = dataset.public.kind == "table"
    fitting = (".csv", ".parquet") if table else (".npz",)
    if out.suffix not in fitting:
        what = "a table is written as" if table else "records that are no table are written as"
        raise SettingError(f"{what} {' or '.join(fitting)}, not {out.name}; rename --out.")
    if out.suffix == ".parquet":
        need("Parquet needs", "parquet", "pyarrow")
    if dataset.public.is_picture:
        need("a contact sheet of pictures needs", "plots", "matplotlib")
    if not out.parent.is_dir():
        raise SettingError(f"there is no folder {out.parent}; make it, or choose another --out.")
    for path in (out, card_path(out), sheet_path(out)):
        if path.is_dir():
            raise SettingError(f"{path} is a folder; choose another --out.")
        check_out(path, force=force, inputs=inputs)


def write(release: DataRelease, out: Path, *, force: bool = False) -> list[Path]:
    """Write synthetic records, their card and, of pictures, a contact sheet, each file whole or not at all.

    Args:
        release: The records and their card.
        out: A `.csv`, `.parquet` or `.npz` file.
        force: Whether files that are there may be replaced.

    Returns:
        The files written.

    Raises:
        SettingError: As `check_target`.
    """
    records = release.dataset
    import pandas as pd

    check_target(out, records, force=force)
    # Both or neither: records do not lie about without their card, nor a card without its records.
    with whole_file(card_path(out)) as card, whole_file(out) as file:
        card.write(release.card.to_json().encode() + b"\n")
        card.flush()
        if out.suffix == ".npz":
            arrays = {"x": records.features.numpy(), "y": records.labels.numpy()}
            np.savez_compressed(file, allow_pickle=False, class_names=np.array(records.public.classes), **arrays)
        elif out.suffix == ".csv":
            for place, frame in enumerate(_frames(records)):
                frame.to_csv(file, index=False, header=place == 0)
        else:
            pd.concat(_frames(records), ignore_index=True).to_parquet(file, index=False)
    if not records.public.is_picture:
        return [out, card_path(out)]
    return [out, card_path(out), write_sheet(records, sheet_path(out))]


def _frames(records: Dataset) -> Iterator[pd.DataFrame]:
    """The table, part by part: a coded one takes many times the memory of the file."""
    for start in range(0, max(1, len(records)), _ROWS):
        part = slice(start, start + _ROWS)
        yield decode(records.public, records.features[part], records.labels[part], digits=DIGITS)


def contact_sheet(dataset: Dataset, rows: int = 10) -> torch.Tensor:
    """Pictures side by side, one column a class, `rows` of each: (height, width, 3) in [0, 1]."""
    depth, height, width = dataset.public.shape
    sheet = torch.ones(dataset.classes, rows, depth, height + 2, width + 2)
    for place in range(dataset.classes):
        found = dataset.features[dataset.labels == place][:rows]
        sheet[place, : len(found), :, 1:-1, 1:-1] = found
    joined = sheet.permute(1, 3, 0, 4, 2).reshape(rows * (height + 2), dataset.classes * (width + 2), depth)
    return joined[:, :, :3] if depth >= 3 else joined[:, :, :1].expand(-1, -1, 3)


def write_sheet(dataset: Dataset, path: Path) -> Path:
    """Write the contact sheet as a PNG, three pixels for one."""
    from matplotlib.image import imsave

    pixels = contact_sheet(dataset).clamp(0, 1).numpy().repeat(3, axis=0).repeat(3, axis=1)
    with whole_file(path) as file:
        imsave(file, pixels, format="png")
    return path
