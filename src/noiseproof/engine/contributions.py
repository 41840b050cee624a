"""Contribution: what one use of one parameter adds to every record's gradient, in whatever form is cheapest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch

PIECE = 4096
"""Numbers that are summed up at a time. Of more, float32's rounding would add up: of 400,000 equal ones to 2e-5 of the length,
and a record that passes for shorter than it is would not be clipped enough."""


def squared_lengths(rows: torch.Tensor) -> torch.Tensor:
    """The sum of squares of every row, in one pass, to 5e-6 of the length or better."""
    columns = rows.shape[1]
    if columns <= PIECE:
        lengths: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths.square_()
    whole = columns - columns % PIECE
    pieces = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, PIECE)), dim=2).square_().sum(1)
    return pieces if whole == columns else pieces + squared_lengths(rows[:, whole:])


class Contribution(ABC):
    """The gradients g_1 .. g_B of B records with respect to one parameter tensor, not necessarily written out."""

    @abstractmethod
    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""

    @abstractmethod
    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,)."""

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Errors and activations, a row a record, if the gradients are their outer products; errors if they are these."""
        return ()

    @abstractmethod
    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_i w_i g_i into `out`; kinds that can compute it in place do."""
        out.copy_(self.weighted_sum(weights))

    @abstractmethod
    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""

    @abstractmethod
    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""

    @abstractmethod
    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""

    def share(self, room: Room) -> None:
        """Keep what is written out only as far as there is room; for kinds that keep anything."""
        return

    def plus(self, others: Sequence[Contribution]) -> Contribution:
        """The sum with other uses of the same parameter; kinds that can add without writing out do."""
        total = self.explicit().clone()
        for other in others:
            total += other.explicit()
        return Explicit(total)


class Explicit(Contribution):
    """Gradients that are written out: small ones (biases), and those for which no rule is known."""

    def __init__(self, gradients: torch.Tensor) -> None:
        self._gradients = gradients
        self._rows = gradients if gradients.dim() == 2 else gradients.reshape(len(gradients), -1)

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        return self._gradients

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,)."""
        return squared_lengths(self._rows)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        total = weights @ self._rows
        return total if self._gradients.dim() == 2 else total.view(self._gradients.shape[1:])

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_i w_i g_i into `out`."""
        torch.mv(self._rows.T, weights, out=out.view(-1))

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return self._rows @ vector.reshape(-1)

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""
        return self._rows @ self._rows.T

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return Explicit(self._gradients[records])


class Blocks(Contribution):
    """Gradients of a parameter whose rows are used in separate blocks (the packed projections of attention)."""

    def __init__(self, blocks: Sequence[tuple[slice, Contribution]], shape: torch.Size) -> None:
        self._blocks = sorted(blocks, key=lambda block: block[0].start)
        self._shape = shape

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        first = self._blocks[0][1].explicit()
        total = first.new_zeros(first.shape[0], *self._shape)
        for rows, part in self._blocks:
            total[:, rows] = part.explicit()
        return total

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,)."""
        return torch.stack([part.squared_norms() for _, part in self._blocks]).sum(0)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        total = weights.new_zeros(self._shape)
        for rows, part in self._blocks:
            total[rows] = part.weighted_sum(weights)
        return total

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return torch.stack([part.inner(vector[rows]) for rows, part in self._blocks]).sum(0)

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""
        return torch.stack([part.gram() for _, part in self._blocks]).sum(0)

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return Blocks([(rows, part.only(records)) for rows, part in self._blocks], self._shape)

    def share(self, room: Room) -> None:
        """Keep what is written out only as far as there is room."""
        for _, part in self._blocks:
            part.share(room)

    def plus(self, others: Sequence[Contribution]) -> Contribution:
        """The sum with other uses: the same rows add, other rows stand beside them."""
        parts: dict[tuple[int, int], list[Contribution]] = {}
        for other in (self, *others):
            if not isinstance(other, Blocks):
                return super().plus(others)
            for rows, part in other._blocks:
                parts.setdefault((rows.start, rows.stop), []).append(part)
        ends = sorted(parts)
        if any(stop > start for (_, stop), (start, _) in pairwise(ends)):
            return super().plus(others)
        return Blocks([(slice(*rows), added(parts[rows])) for rows in ends], self._shape)


def added(parts: Sequence[Contribution]) -> Contribution:
    """One contribution for all uses of a parameter, of which there is at least one."""
    return parts[0] if len(parts) == 1 else parts[0].plus(parts[1:])


# Room: how much memory a batch's written-out gradients may take.


PIECE_BYTES = 32 * 2**20
"""What is written out at a time where it is not kept. (Beyond 32 MiB the C library would fetch fresh pages each time.)"""
KEPT_BYTES = 128 * 2**20
"""What one batch may keep of written-out gradients, over all its layers."""


class Room:
    """Bytes that are left for gradients to be kept, shared by the layers of one batch."""

    def __init__(self, size: int | None = None) -> None:
        self._left = KEPT_BYTES if size is None else size

    def has(self, size: int) -> bool:
        """Whether so many bytes would fit."""
        return size <= self._left

    def take(self, size: int) -> None:
        """Use so many bytes up."""
        self._left -= size


def in_pieces(bytes_each: int) -> int:
    """How many things of that size make up a piece, at least one."""
    return max(1, PIECE_BYTES // max(1, bytes_each))
