"""Where the records lie in a tensor, and where they lay in what it was made from.

A batch is followed from its losses backwards, over the nodes of the autograd graph: every operation says in which
dimension of its inputs the records lie, given where they lie in its output. A dimension may hold records alone, records
folded with something else (batch times positions, or positions times batch), or rows picked by an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

Shape = Sequence[int]
NOBODY = -1
"""The owner of a row that no loss depends on."""


class Mixed(Exception):
    """An operation brings records together."""


class Unknown(Exception):
    """Where the records lie in an operation's input cannot be told from the operation."""


class Place:
    """Dimension `dim` of a tensor counts `outer` x `records` x `inner`, or has the given owner for every row."""

    __slots__ = ("dim", "inner", "outer", "owners", "records")

    def __init__(
        self, records: int, dim: int = 0, outer: int = 1, inner: int = 1, owners: torch.Tensor | None = None
    ) -> None:
        self.records, self.dim, self.outer, self.inner, self.owners = records, dim, outer, inner, owners

    def at(self, dim: int) -> Place:
        """The same in another dimension."""
        return self if dim == self.dim else Place(self.records, dim, self.outer, self.inner, self.owners)

    def owned(self, owners: torch.Tensor, dim: int | None = None) -> Place:
        """Rows with these owners."""
        return Place(self.records, self.dim if dim is None else dim, owners=owners)

    @property
    def by_row(self) -> torch.Tensor:
        """The owner of every row of the dimension."""
        if self.owners is not None:
            return self.owners
        return torch.arange(self.records).repeat_interleave(self.inner).repeat(self.outer)

    @property
    def simple(self) -> bool:
        """Whether the dimension counts records and nothing else."""
        return self.owners is None and self.outer == 1 == self.inner

    def fits(self, shape: Shape) -> bool:
        """Whether a tensor of that shape can have its records here."""
        if self.dim >= len(shape):
            return False
        rows = self.outer * self.records * self.inner if self.owners is None else len(self.owners)
        return shape[self.dim] == rows

    def first(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with the records in front, and what was folded with them left where they were.

        (B, ..., outer x inner, ...); rows picked by an index are filled up with zeros.
        """
        dim = self.dim
        if self.simple:
            return (tensor.movedim(dim, 0) if dim else tensor).unsqueeze(dim + 1)
        if self.owners is None:
            split = tensor.unflatten(dim, (self.outer, self.records, self.inner)).movedim(dim + 1, 0)
            return split.flatten(dim + 1, dim + 2)
        there = (self.owners >= 0).nonzero().squeeze(1)
        owners, order = self.owners[there].sort(stable=True)
        counts = torch.bincount(owners, minlength=self.records)
        place = torch.arange(len(owners)) - (counts.cumsum(0) - counts)[owners]
        rows = tensor.movedim(dim, 0)
        device = rows.device
        # At least one row, if of nothing: of no rows there is no largest (an expert that nobody chose).
        padded = rows.new_zeros(self.records, int(counts.max()) if len(owners) else 1, *rows.shape[1:])
        padded[owners.to(device), place.to(device)] = rows[there[order].to(device)]
        return padded.movedim(1, dim + 1)

    def rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """`first` for a matrix of rows: (B, D), or (B, T, D) if a record has several rows."""
        if self.simple:
            return tensor if self.dim == 0 else tensor.movedim(self.dim, 0)
        found = self.first(tensor)
        return found.movedim(self.dim + 1, 1)

    def reshaped(self, before: Shape, after: Shape) -> Place:
        """The place in a tensor of the shape `before`, of which one of the shape `after` with this place is a view."""
        if self.owners is not None:
            return self._owned_reshaped(before, after)
        stride = self.inner * prod(after[self.dim + 1 :])
        behind = 1
        for dim in range(len(before) - 1, -1, -1):
            size = before[dim]
            if not behind:
                break  # records of no numbers, whose gradients are nothing wherever they lie
            inner, left = divmod(stride, behind)
            if not left and inner and size >= self.records * inner and size % (self.records * inner) == 0:
                return Place(self.records, dim, size // (self.records * inner), inner)
            behind *= size
        raise Unknown

    def _owned_reshaped(self, before: Shape, after: Shape) -> Place:
        assert self.owners is not None
        front, size, behind = prod(after[: self.dim]), after[self.dim], prod(after[self.dim + 1 :])
        for dim, other in enumerate(before):
            left, right = prod(before[:dim]), prod(before[dim + 1 :])
            if (left, other, right) == (front, size, behind):
                return self.at(dim)
            if left == front and other * right == size * behind and other % max(size, 1) == 0:
                return self.owned(self.owners.repeat_interleave(other // max(size, 1)), dim)  # folded with what follows
            if left == front and other and size % other == 0 and right == behind * (size // other):
                groups = self.owners.view(other, -1)
                if bool((groups == groups[:, :1]).all()):
                    return self.owned(groups[:, 0], dim)
        raise Unknown

    def picked_from(self, index: torch.Tensor, size: int, dim: int) -> Place:
        """The place in a dimension of that size, of which the rows at `index` were taken and lie here."""
        index = index.cpu() % size
        owners = torch.full((size,), NOBODY)
        owners[index] = self.by_row
        if not torch.equal(owners[index], self.by_row):
            raise Mixed  # one row for several records
        return self.owned(owners, dim).settled()

    def settled(self) -> Place:
        """The same without owners, if it is simply one row a record after another."""
        everybody = self.owners is not None and torch.equal(self.owners, torch.arange(self.records))
        return Place(self.records, self.dim) if everybody else self

    def merged(self, other: Place) -> Place:
        """What both say of one tensor; they may not contradict each other."""
        mine = (self.dim, self.outer, self.inner)
        if self.owners is None and other.owners is None:
            if mine != (other.dim, other.outer, other.inner):
                raise Mixed
            return self
        left, right = self.by_row, other.by_row
        if self.dim != other.dim or left.shape != right.shape:
            raise Mixed
        if bool(((left != right) & (left >= 0) & (right >= 0)).any()):
            raise Mixed
        if self.owners is None or other.owners is None:
            return self if self.owners is None else other
        return self.owned(torch.where(left >= 0, left, right)).settled()

    def masked(self, tensor: torch.Tensor, some: torch.Tensor) -> torch.Tensor:
        """(len(some), *shape): the tensor once for every one of some records, zero wherever it is not that record's."""
        own = (self.by_row == some.cpu().unsqueeze(1)).to(tensor.device)
        shape = [len(some)] + [1] * tensor.dim()
        shape[self.dim + 1] = tensor.shape[self.dim]
        return torch.where(own.view(shape), tensor, 0.0)  # not a product: what is not finite stays its record's own

    def lengths(self, tensor: torch.Tensor) -> torch.Tensor:
        """The length of every record's part of the tensor, (B,)."""
        if self.simple:
            others = [dim for dim in range(tensor.dim()) if dim != self.dim]
            return torch.linalg.vector_norm(tensor, dim=others) if others else tensor.abs()
        return torch.linalg.vector_norm(self.first(tensor).flatten(1), dim=1)
