"""Persons: whose the records of a batch are, and samples of persons with a bounded number of records each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import torch

from noiseproof.engine.ranks import ALONE, Ranks
from noiseproof.errors import SettingError
from noiseproof.privacy.randomness import Randomness

Reduction = Literal["mean", "sum"]
"""What of a person's records' gradients is clipped."""

_PADDED = 2
"""Padding that makes persons' records at most so many times as many is cheaper than working on persons in parts."""
_SLOTS = 4096
"""And so are so many vectors with the padding, where each record has only one."""


class Owners:
    """Whose each record of a batch is. A person's records lie side by side.

    Args:
        owners: For each record its person's place in the batch, int64 of (records,), never falling.
        persons: How many persons there are; each has a record at least.
    """

    def __init__(self, owners: torch.Tensor, persons: int) -> None:
        self.owners, self.persons = owners, persons
        self.counts = torch.bincount(owners, minlength=persons)
        self.starts = self.counts.cumsum(0) - self.counts
        self.most = int(self.counts.max()) if persons else 0
        self.even = self.most * persons == len(owners)

    def summed(self, rows: torch.Tensor) -> torch.Tensor:
        """The sum of each person's rows, (persons, ...), of rows (records, ...)."""
        if self.even:
            return rows if self.most == 1 else rows.unflatten(0, (self.persons, self.most)).sum(1)
        return rows.new_zeros(self.persons, *rows.shape[1:]).index_add_(0, self.owners, rows)

    def parts(self, positions: int) -> list[torch.Tensor]:
        """Persons with nearly as many records each, by their places: all together where padding costs little.

        Args:
            positions: How many vectors a record has; the inner products among a person's grow with their square.
        """
        slots = self.persons * self.most
        if slots <= _PADDED * len(self.owners) or (positions == 1 and slots <= _SLOTS):
            return [torch.arange(self.persons, device=self.owners.device)]
        return self._levels

    @cached_property
    def _levels(self) -> list[torch.Tensor]:
        levels = (self.counts - 1).clamp(min=0).double().add(1).log2().ceil().long()
        return [there for level in range(int(levels.max()) + 1) if len(there := (levels == level).nonzero().flatten())]

    @cached_property
    def _slots(self) -> torch.Tensor:
        """Each record's place if all persons have room for as many records as anybody has."""
        first = self.starts - self.most * torch.arange(self.persons, device=self.starts.device)
        return torch.arange(len(self.owners), device=self.owners.device) - first[self.owners]

    def padded(self, vectors: torch.Tensor) -> list[torch.Tensor]:
        """For each of `parts` the vectors (records, positions, width) of persons, filled up with zeros."""
        if self.even:
            return [vectors.reshape(self.persons, -1, vectors.shape[2])]
        parts = self.parts(vectors.shape[1])
        if len(parts) == 1:
            room = vectors.new_zeros(self.persons * self.most, *vectors.shape[1:])
            return [room.index_copy_(0, self._slots, vectors).view(self.persons, -1, vectors.shape[2])]
        found = []
        for places in parts:
            counts = self.counts[places]
            slots = torch.arange(int(counts.max()), device=places.device)
            there = slots < counts[:, None]
            taken = vectors[(self.starts[places, None] + slots).where(there, 0)]
            found.append(taken.mul_(there[:, :, None, None]).flatten(1, 2))
        return found

    def to(self, device: torch.device) -> Owners:
        """The same on another device."""
        return self if self.owners.device == device else Owners(self.owners.to(device), self.persons)

    def split(self, size: int) -> list[Owners]:
        """The owners of pieces of about `size` records; one piece, maybe empty, at least."""
        if len(self.owners) <= size:
            return [self]
        return [
            Owners(self.owners[records] - persons.start, persons.stop - persons.start)
            for persons, records in self.pieces(size)
        ]

    def pieces(self, size: int) -> Iterator[tuple[slice, slice]]:
        """Persons and their records in pieces of at most `size` records, or of one person: persons are never cut."""
        ends = self.starts + self.counts
        first = begin = 0
        while first < self.persons:
            # As many persons as fit, at least one.
            last = max(first + 1, int(torch.searchsorted(ends, begin + size, right=True)))
            end = int(ends[last - 1])
            yield slice(first, last), slice(begin, end)
            first, begin = last, end


class PersonSampler:
    """Poisson samples of persons, with at most so many records of each, chosen uniformly and afresh every time.

    Args:
        groups: Whose each record is, int64 of (records,), from 0 to persons - 1.
        max_records_per_person: How many records of a person are taken at most.
        rng: Where samples of persons come from.
        ranks: The processes that share each sample; this one's part of it is drawn.
        choosing: What a person's records are chosen with, where it is not `rng`: each rank has its own.

    Raises:
        SettingError: If groups are not such numbers, or the bound is not positive.

    Formal guarantee
    ----------------
    None by itself. Which persons are drawn depends on their number alone; which of a person's records are taken, on that
    person's number of records alone. So a mechanism on the sample that changes by a bounded amount with one person is
    amplified as by Poisson sampling of persons.
    """

    def __init__(
        self,
        groups: torch.Tensor,
        max_records_per_person: int,
        rng: Randomness,
        ranks: Ranks = ALONE,
        choosing: Randomness | None = None,
    ) -> None:
        if max_records_per_person < 1:
            raise SettingError(f"max_records_per_person must be at least 1, not {max_records_per_person}.")
        if groups.dim() != 1 or groups.dtype != torch.int64 or not len(groups) or int(groups.min()) < 0:
            raise SettingError("groups must be the number of each record's person, int64 of (records,), from 0 on.")
        groups = groups.cpu()
        counts = torch.bincount(groups)
        if not bool(counts.all()):
            raise SettingError("groups must number persons from 0 on, without gaps.")
        self.persons = len(counts)
        self._counts, self._starts = counts, counts.cumsum(0) - counts
        # Mostly a table is sorted by its person already.
        self._order = None if bool((groups.diff() >= 0).all()) else groups.argsort(stable=True)
        self._most, self._rng, self._ranks, self._choosing = max_records_per_person, rng, ranks, choosing or rng

    def draw(self, rate: float) -> tuple[torch.Tensor, Owners]:
        """The records of a sample of persons, person by person, and whose they are."""
        return self.records_of(self.sample(rate))

    def sample(self, rate: float) -> torch.Tensor:
        """A Poisson sample of persons, by their numbers; of several ranks, this one's part of it."""
        return self._ranks.part(lambda: self._rng.poisson_sample(self.persons, rate))

    def records_of(self, persons: torch.Tensor) -> tuple[torch.Tensor, Owners]:
        """The records of these persons, at most the bound of each, chosen uniformly; and whose they are."""
        counts = self._counts[persons]
        records, owners = _ranges(self._starts[persons], counts)
        many = counts > self._most
        if bool(many.any()):
            # Of those who have more, the records with the smallest of independent draws stay: a uniform choice.
            crowded = many[owners]
            # Halved, so that rounding cannot push a draw over to the next person.
            draws = self._choosing.uniform((int(crowded.sum()),)) / 2
            ordered = (owners[crowded] + draws).argsort()
            kept = ~crowded
            place, _ = _ranges(torch.zeros_like(counts[many]), counts[many])
            chosen = crowded.nonzero().flatten()[ordered[place < self._most]]
            kept[chosen] = True
            records, owners = records[kept], owners[kept]
        if self._order is not None:
            records = self._order[records]
        return records, Owners(owners, len(persons))


def _ranges(starts: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """starts[i], starts[i] + 1, ... for counts[i] numbers, one range after another; and the i of each."""
    owners = torch.repeat_interleave(torch.arange(len(counts)), counts)
    first = counts.cumsum(0) - counts
    return torch.arange(len(owners)) + (starts - first)[owners], owners
