"""Coding: records as networks see them and back; a table's numbers become bins at public edges."""

from __future__ import annotations

import torch
from torch.nn import functional

from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.tables import layout
from noiseproof.errors import DataError, SettingError

_STEPS, _HALVINGS = 16, 12
FEWEST = 50
"""Records below which no generator is trained: the noise would be larger than all there is to learn."""
MOST_SLOTS = 4096


def edges() -> torch.Tensor:
    """Public edges of bins in [0, 1]: equal steps, and halvings towards 0, where amounts of money crowd."""
    steps = {place / _STEPS for place in range(1, _STEPS)}
    return torch.tensor(sorted(steps | {2.0**-power for power in range(1, _HALVINGS + 1)}))


class Coding:
    """How records of a public description are coded for a discriminator, and generated ones decoded.

    A table's record becomes one slot a column (one-hot): its category, a bin of its number, or that it is missing. A
    category outside the public list has no slot. Pictures and vectors stay as they are.

    Formal guarantee
    ----------------
    None is needed: each record is coded alone by a map that the public description fixes; decoding is post-processing.
    """

    def __init__(self, public: Public) -> None:
        self.public = public
        self.table = public.kind == "table" and bool(public.columns)
        self._edges = edges()
        self._places = layout(public.columns) if self.table else []
        self.sizes: tuple[int, ...] = tuple(
            len(self._edges) + 1 + column.missing if column.numeric else column.width for column, _ in self._places
        )
        """Slots of each column of a table."""
        if sum(self.sizes) > MOST_SLOTS:
            raise SettingError(
                f"the columns have {sum(self.sizes)} categories and bins together, and at most {MOST_SLOTS} can be "
                "generated; drop columns or join categories."
            )
        self.shape: tuple[int, ...] = (sum(self.sizes),) if self.table else public.shape
        """A coded record's shape."""

    def encode(self, features: torch.Tensor) -> torch.Tensor:
        """Records as a discriminator sees them."""
        if not self.table:
            return features
        parts = []
        for column, place in self._places:
            values = features[:, place]
            if not column.numeric:
                parts.append(values)
                continue
            bins = len(self._edges) + 1
            slot = torch.bucketize(values[:, 0].contiguous(), self._edges.to(values.device), right=True)
            if column.missing:
                slot = torch.where(values[:, 1] > 0.5, bins, slot)
            parts.append(functional.one_hot(slot, bins + column.missing).to(features.dtype))
        return torch.cat(parts, dim=1)

    def decode(self, coded: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Features of generated records: a slot drawn by its probability, a number drawn within its bin."""
        if not self.table:
            return coded.clamp(0, 1)
        inner = self._edges.to(coded)
        low, high = torch.cat([inner.new_zeros(1), inner]), torch.cat([inner, inner.new_ones(1)])
        parts = []
        for (column, _), probabilities in zip(self._places, coded.split(list(self.sizes), dim=1), strict=True):
            slot = torch.multinomial(probabilities.clamp_min(1e-12), 1, generator=generator).squeeze(1)
            if not column.numeric:
                parts.append(functional.one_hot(slot, column.width).to(coded.dtype))
                continue
            missing = slot == len(low)
            slot = slot.clamp(max=len(low) - 1)
            inside = torch.rand(len(slot), generator=generator, dtype=coded.dtype)
            # The lowest bin stands for the bound itself: nobody has a capital gain of between 0 and 24.
            value = torch.where(slot == 0, torch.zeros_like(inside), low[slot] + (high - low)[slot] * inside)
            value = torch.where(missing, torch.full_like(value, 0.5), value)
            columns = [value, missing.to(coded.dtype)] if column.missing else [value]
            parts.append(torch.stack(columns, dim=1))
        return torch.cat(parts, dim=1)


def check_records(dataset: Dataset) -> None:
    """Refuse, before any budget is spent, what no generator can learn from; the number of records is public."""
    if len(dataset) < FEWEST:
        raise DataError(
            f"{dataset.name} has {len(dataset)} records and a private generator needs {FEWEST} or more; with fewer the "
            "noise hides everything there is to learn."
        )
