"""Outer products: the gradients of a matrix that was applied at one or many positions of every record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch

from noiseproof.engine.contributions import Contribution, Explicit, Room, in_pieces, squared_lengths

PASS_COST = 60
"""Multiplications that take as long as writing a number and reading it twice (measured; it only has to be near)."""


FEW = 4
"""A product with so many times more rows than columns is faster made the other way round and turned (measured)."""


def matrix_product(errors: torch.Tensor, activations: torch.Tensor, out: torch.Tensor) -> None:
    """`out` becomes the sum of the outer products of two matrices' rows."""
    if FEW * activations.shape[1] <= errors.shape[1]:
        out.copy_((activations.T @ errors).T)
    else:
        torch.mm(errors.T, activations, out=out)


class Factor:
    """One side of a sum of outer products: vectors at `T` positions of `B` records, (B, T, D).

    Two parameters may share a factor, and then share the Gram matrices of its positions too.
    """

    def __init__(self, vectors: torch.Tensor) -> None:
        self._given = vectors
        self.rows = vectors if vectors.dim() == 2 else None
        """The vectors of records that have only one each, (B, D)."""
        if self.rows is None and self.vectors.shape[1] == 1:
            self.rows = self.vectors[:, 0]

    @cached_property
    def vectors(self) -> torch.Tensor:
        """The vectors at all positions, (B, T, D)."""
        return self._given.unsqueeze(1) if self._given.dim() == 2 else self._given.flatten(1, -2)

    @cached_property
    def positions_gram(self) -> torch.Tensor:
        """Inner products between the positions of each record, (B, T, T)."""
        return torch.bmm(self.vectors, self.vectors.transpose(1, 2))

    @cached_property
    def squared_norms(self) -> torch.Tensor:
        """Squared length of each record's vectors taken together, (B,)."""
        return squared_lengths(self.vectors.flatten(1) if self.rows is None else self.rows)


class Sums(Explicit):
    """g_i = sum_t e_it: the gradients of what was added at every position, a bias."""

    def __init__(self, errors: Factor) -> None:
        self._errors = errors
        super().__init__(errors.vectors.sum(1) if errors.rows is None else errors.rows)

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,), which the weight beside the bias may have needed already."""
        return super().squared_norms() if self._errors.rows is None else self._errors.squared_norms

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """The errors, of records that have one row of them."""
        return () if self._errors.rows is None else (self._errors.rows,)


class OuterProducts(Contribution):
    """g_i = sum_t e_it a_it^T, from errors e (B, T, rows) and activations a (B, T, columns)."""

    def __init__(self, errors: Factor, activations: Factor) -> None:
        self._errors, self._activations = errors, activations
        self._kept: torch.Tensor | None = None
        self._room = Room()

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, rows, columns)."""
        if self._kept is not None:
            return self._kept
        return torch.bmm(self._errors.vectors.transpose(1, 2), self._activations.vectors)

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,), by whichever is cheaper: Gram matrices over positions, or the gradients written out."""
        if self._errors.rows is not None:
            return self._errors.squared_norms * self._activations.squared_norms
        if self._kept is None and self._explicit_is_cheaper():
            self._kept = self.explicit()
            self._room.take(self._explicit_bytes)
        if self._kept is not None:
            return squared_lengths(self._kept.flatten(1))
        return (self._errors.positions_gram * self._activations.positions_gram).sum((1, 2))

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Errors and activations, of records that have one row of each."""
        if self._errors.rows is None or self._activations.rows is None:
            return ()
        return self._errors.rows, self._activations.rows

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i: one matrix product over all records and positions."""
        if self._kept is not None:
            return (weights @ self._kept.flatten(1)).view(self._kept.shape[1:])
        errors, activations = self._weighted_pair(weights)
        if FEW * activations.shape[1] <= errors.shape[1]:
            return (activations.T @ errors).T.contiguous()
        return errors.T @ activations

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_i w_i g_i into `out`."""
        if self._kept is not None:
            super().write_sum(weights, out)
            return
        errors, activations = self._weighted_pair(weights)
        matrix_product(errors, activations, out)

    def _weighted_pair(self, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Errors and activations at all positions, (B x T, D), one of them weighted."""
        if self._errors.rows is not None and self._activations.rows is not None:
            return self._errors.rows * weights.unsqueeze(1), self._activations.rows
        errors, activations = self._errors.vectors, self._activations.vectors
        if errors.stride(0) < errors.stride(1):
            # Time-major memory: rows in memory order make flattening free.
            errors, activations, weights = errors.transpose(0, 1), activations.transpose(0, 1), weights[None, :, None]
        else:
            weights = weights[:, None, None]
        if errors.shape[-1] <= activations.shape[-1]:
            errors = errors * weights
        else:
            activations = activations * weights
        return errors.flatten(0, 1), activations.flatten(0, 1)

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, V> = sum_t e_it^T V a_it, (B,)."""
        if self._kept is not None:
            return self._kept.flatten(1) @ vector.reshape(-1)
        return ((self._activations.vectors @ vector.T) * self._errors.vectors).sum((1, 2))

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B): products of two small Gram matrices, or the gradients' own, a block of rows at a time."""
        errors, activations = self._errors.vectors, self._activations.vectors
        records, positions, rows = errors.shape
        columns = activations.shape[-1]
        if self._errors.rows is not None and self._activations.rows is not None:
            return (self._errors.rows @ self._errors.rows.T) * (self._activations.rows @ self._activations.rows.T)
        if self._kept is not None:
            return self._kept.flatten(1) @ self._kept.flatten(1).T
        total = errors.new_zeros(records, records)
        if records * positions**2 * (rows + columns) < rows * columns * (records + positions):
            flat_errors, flat_activations = errors.reshape(-1, rows), activations.reshape(-1, columns)
            # (records x positions)^2 products would be too many to hold at once.
            step = in_pieces(errors.element_size() * records * positions**2)
            for start in range(0, records, step):
                some = slice(start * positions, (start + step) * positions)
                products = (flat_errors[some] @ flat_errors.T) * (flat_activations[some] @ flat_activations.T)
                total[start : start + step] = products.view(-1, positions, records, positions).sum((1, 3))
            return total
        step = in_pieces(errors.element_size() * records * columns)
        for start in range(0, rows, step):
            block = torch.bmm(errors[..., start : start + step].transpose(1, 2), activations).flatten(1)
            total.addmm_(block, block.T)
        return total

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return OuterProducts(Factor(self._errors.vectors[records]), Factor(self._activations.vectors[records]))

    def share(self, room: Room) -> None:
        """Keep what is written out only as far as there is room."""
        self._room = room

    def plus(self, others: Sequence[Contribution]) -> Contribution:
        """The sum with other uses of the same matrix: their positions are further positions."""
        uses = [self, *(other for other in others if isinstance(other, OuterProducts))]
        if len(uses) <= len(others):
            return super().plus(others)
        return OuterProducts(
            Factor(torch.cat([use._errors.vectors for use in uses], dim=1)),
            Factor(torch.cat([use._activations.vectors for use in uses], dim=1)),
        )

    def _explicit_is_cheaper(self) -> bool:
        _, positions, rows = self._errors.vectors.shape
        columns = self._activations.vectors.shape[-1]
        return self._room.has(self._explicit_bytes) and PASS_COST * rows * columns < positions**2 * (rows + columns)

    @property
    def _explicit_bytes(self) -> int:
        records, _, rows = self._errors.vectors.shape
        return records * rows * self._activations.vectors.shape[-1] * self._errors.vectors.element_size()
