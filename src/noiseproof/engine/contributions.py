"""Contributions: every record's gradient in one parameter, in whatever form is cheapest, and never too short a norm.

Norms are upper bounds. Where they come from sums that may cancel, what rounding could hide of them is added, so that a
clipped record's share of a sum is at most the clipping norm whatever the scale of its inputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod

import torch

from noiseproof.engine.persons import Owners

PIECE = 4096
"""Numbers that are summed up at a time. Of more, float32's rounding would add up: of 400,000 equal ones to 2e-5 of the length,
and a record that passes for shorter than it is would not be clipped enough."""
PIECE_BYTES = 32 * 2**20
"""What is written out at a time where it is not kept. (Beyond 32 MiB the C library would fetch fresh pages each time.)"""
KEPT_BYTES = 128 * 2**20
"""What one batch may keep of written-out gradients, over all its layers."""


_PRECISIONS = tuple(
    (part, what)
    for part in (("mkldnn", "cuda") if torch.backends.cuda.is_built() else ("mkldnn",))
    for what in ("matmul", "conv")
)


def widened(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor` in that dtype, or float32 if that is shorter: norms and sums in half precision would be too short."""
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.promote_types(dtype, torch.float32)
    return tensor if tensor.dtype == wide else tensor.to(wide)


@contextmanager
def full_precision() -> Iterator[None]:
    """While it lasts, products of float32 are float32's, whatever the user has set (or cuDNN takes by default: TF32).

    A record's share of a sum would else be off by up to a thousandth of its length, which is more than clipping leaves room for.
    """
    before = [(*place, torch._C._get_fp32_precision_getter(*place)) for place in _PRECISIONS]
    try:
        for place in _PRECISIONS:
            torch._C._set_fp32_precision_setter(*place, "ieee")
        yield
    finally:
        for setting in before:
            torch._C._set_fp32_precision_setter(*setting)


def squared_lengths(rows: torch.Tensor) -> torch.Tensor:
    """The sum of squares of every row, in one pass, to 5e-6 of the length or better."""
    columns = rows.shape[1]
    if columns <= PIECE:
        lengths: torch.Tensor = torch.linalg.vector_norm(rows, dim=1)
        return lengths.square_()
    whole = columns - columns % PIECE
    pieces = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, PIECE)), dim=2).square_().sum(1)
    return pieces if whole == columns else pieces + squared_lengths(rows[:, whole:])


def in_pieces(bytes_each: int) -> int:
    """How many things of that size make up a piece, at least one."""
    return max(1, PIECE_BYTES // max(1, bytes_each))


class MemoryLimit:
    """Bytes that are left for gradients to be kept, shared by the layers of one batch."""

    def __init__(self, size: int | None = None) -> None:
        self._left = KEPT_BYTES if size is None else size

    def has(self, size: int) -> bool:
        """Whether so many bytes would fit."""
        return size <= self._left

    def take(self, size: int) -> None:
        """Use so many bytes up."""
        self._left -= size


class Contribution(ABC):
    """The gradients g_1 .. g_B of B records with respect to one parameter tensor, not necessarily written out.

    A rule (`register_rule`) may return one instead of a tensor, to save writing out B gradients. A subclass says how their
    norms, sums and products come about.

    Examples:
        >>> gradients: Contribution = Explicit(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))  # written out, as a tensor is
        >>> gradients.squared_norms()
        tensor([25.,  4.])
        >>> gradients.weighted_sum(torch.tensor([1.0, 0.5]))
        tensor([3., 5.])
    """

    @abstractmethod
    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""

    @abstractmethod
    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2 or a little more, (B,)."""

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
    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""

    def some_rows(self, rows: slice) -> Contribution:
        """The gradients of some of the parameter's rows; kinds that need not write out the others do not."""
        return Explicit(self.explicit()[:, rows])

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """How many records there are, and how many bytes the gradient of one takes if it is written out."""

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B), from some records' gradients at a time."""
        records, step = self.size[0], in_pieces(self.size[1])
        if records <= step:
            rows = self.explicit().flatten(1)
            return rows @ rows.T
        pieces = torch.arange(records).split(step)
        found: torch.Tensor | None = None
        for place, some in enumerate(pieces):
            rows = self.only(some).explicit().flatten(1)
            found = rows.new_empty(records, records) if found is None else found
            found[some[0] : some[-1] + 1, some[0] : some[-1] + 1] = rows @ rows.T
            # The other half mirrors this one, and what is written out twice costs more than what is multiplied.
            for other in pieces[place + 1 :]:
                block = rows @ self.only(other).explicit().flatten(1).T
                found[some[0] : some[-1] + 1, other[0] : other[-1] + 1] = block
                found[other[0] : other[-1] + 1, some[0] : some[-1] + 1] = block.T
        assert found is not None
        return found

    def by_person(self, owners: Owners) -> Contribution:
        """The gradients of persons, each the sum over that person's records; kinds that need not write out do not."""
        return WrittenSums(self, owners)

    def share(self, memory: MemoryLimit) -> None:
        """Keep what is written out only as far as memory allows; for kinds that keep anything."""
        return

    def shrink(self) -> None:
        """Write out at once what takes less memory so; for kinds that hold more than a gradient."""
        return

    def transposed(self) -> Contribution:
        """The gradients of the matrix that this one is the transpose of."""
        return Explicit(self.explicit().transpose(1, 2))

    def plus(self, others: Sequence[Contribution]) -> Contribution:
        """The sum with other uses of the same parameter; kinds that can add without writing out do."""
        total = self.explicit().clone()
        for other in others:
            total += other.explicit()
        return Explicit(total)


def added(parts: Sequence[Contribution]) -> Contribution:
    """One contribution for all uses of a parameter, of which there is at least one."""
    return parts[0] if len(parts) == 1 else parts[0].plus(parts[1:])


class Explicit(Contribution):
    """Gradients that are written out: small ones (biases), and those for which no rule is known."""

    def __init__(self, gradients: torch.Tensor) -> None:
        self._gradients = widened(gradients, gradients.dtype)
        self._rows = self._gradients if gradients.dim() == 2 else self._gradients.reshape(len(gradients), -1)

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        return self._gradients

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2 or a little more, (B,)."""
        return squared_lengths(self._rows)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        return (weights @ self._rows).view(self._gradients.shape[1:])

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_i w_i g_i into `out`."""
        torch.mv(self._rows.T, weights, out=out.view(-1))

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return self._rows @ vector.reshape(-1)

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return Explicit(self._gradients[records])

    @property
    def size(self) -> tuple[int, int]:
        """How many records there are, and the bytes of one gradient."""
        return len(self._rows), self._rows.shape[1] * self._rows.element_size()

    def by_person(self, owners: Owners) -> Contribution:
        """The sums over persons' records, written out."""
        return Explicit(owners.summed(self._gradients))

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""
        return self._rows @ self._rows.T


class WrittenSums(Contribution):
    """h_p = the sum of g_i over a person's records, written out for some persons at a time, or kept where there is room."""

    def __init__(self, records: Contribution, owners: Owners) -> None:
        self._records, self._owners = records, owners
        self._kept: Explicit | None = None
        self._memory = MemoryLimit()

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (P, *shape)."""
        return torch.cat([part.explicit() for _, part in self._parts()])

    def squared_norms(self) -> torch.Tensor:
        """||h_p||^2 or a little more, (P,)."""
        if self._kept is None and self._memory.has(prod(self.size)):
            self._kept = Explicit(self.explicit())
            self._memory.take(prod(self.size))
        return torch.cat([part.squared_norms() for _, part in self._parts()])

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_p w_p h_p, of the parameter's shape: of the very numbers that the norms are of."""
        return torch.stack([part.weighted_sum(weights[some]) for some, part in self._parts()]).sum(0)

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<h_p, v>, (P,)."""
        return self._owners.summed(self._records.inner(vector))

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some persons, by index."""
        return Explicit(self.explicit()[records])

    @property
    def size(self) -> tuple[int, int]:
        """How many persons there are, and the bytes of one gradient."""
        return self._owners.persons, self._records.size[1]

    def share(self, memory: MemoryLimit) -> None:
        """Keep what is written out only as far as memory allows."""
        self._memory = memory

    def _parts(self) -> Iterator[tuple[slice, Contribution]]:
        if self._kept is not None:
            yield slice(None), self._kept
            return
        device = self._owners.owners.device
        for persons, records in self._owners.pieces(in_pieces(self.size[1])):
            rows = self._records.only(torch.arange(records.start, records.stop, device=device)).explicit()
            owners = self._owners.owners[records] - persons.start
            yield persons, Explicit(Owners(owners, persons.stop - persons.start).summed(rows))


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
        """||g_i||^2 or a little more, (B,)."""
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

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return Blocks([(rows, part.only(records)) for rows, part in self._blocks], self._shape)

    @property
    def size(self) -> tuple[int, int]:
        """How many records there are, and the bytes of one gradient."""
        sizes = [part.size for _, part in self._blocks]
        return sizes[0][0], sum(each for _, each in sizes)

    def by_person(self, owners: Owners) -> Contribution:
        """The sums over persons' records, block by block."""
        return Blocks([(rows, part.by_person(owners)) for rows, part in self._blocks], self._shape)

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""
        return torch.stack([part.gram() for _, part in self._blocks]).sum(0)

    def share(self, memory: MemoryLimit) -> None:
        """Keep what is written out only as far as memory allows."""
        for _, part in self._blocks:
            part.share(memory)

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


class Parts(Contribution):
    """Gradients of some of the records beside those of others, by their places."""

    def __init__(self, parts: Sequence[tuple[torch.Tensor, Contribution]], records: int) -> None:
        self._parts, self._records = parts, records

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        return self._placed([part.explicit() for _, part in self._parts])

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2 or a little more, (B,)."""
        return self._placed([part.squared_norms() for _, part in self._parts])

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        return torch.stack([part.weighted_sum(weights[places]) for places, part in self._parts]).sum(0)

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return self._placed([part.inner(vector) for _, part in self._parts])

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return Explicit(self.explicit()[records])

    @property
    def size(self) -> tuple[int, int]:
        """How many records there are, and the bytes of one gradient."""
        return self._records, self._parts[0][1].size[1]

    def share(self, memory: MemoryLimit) -> None:
        """Keep what is written out only as far as memory allows."""
        for _, part in self._parts:
            part.share(memory)

    def _placed(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        total = values[0].new_empty(self._records, *values[0].shape[1:])
        for (places, _), value in zip(self._parts, values, strict=True):
            total[places] = value
        return total
