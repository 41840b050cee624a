"""Gradients that are outer products or few rows: linear layers, embeddings, and tables that are both.

Norms are upper bounds here too: where positions may cancel, what rounding could hide of a norm is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod, sqrt

import torch

from noiseproof import kernels
from noiseproof.engine.contributions import Contribution, Explicit, MemoryLimit, Parts, added, squared_lengths
from noiseproof.engine.persons import Owners

PASS_COST = 60
"""Multiplications that take as long as writing a number and reading it twice (measured; it only has to be near)."""
FEW = 4
"""A product with so many times more rows than columns is faster made the other way round and turned (measured)."""
MANY = 2**22
"""Numbers beyond which a product is not worth a copy of its own."""
LONG = 96
"""Vectors from that length on are multiplied with each other by a kernel of our own, shorter ones by torch (measured)."""
NEGLIGIBLE = 0.02
"""The share of a squared norm that may be added for rounding before the norm is worked out again in float64."""
NOTHING = 1e-24
"""A squared norm below which nothing is clipped anyway."""


class SparseRows(Contribution):
    """Gradients with few rows that are not zero (an embedding's): the rows, and which record and row each belongs to."""

    def __init__(
        self, values: torch.Tensor, owners: torch.Tensor, rows: torch.Tensor, records: int, shape: torch.Size
    ) -> None:
        # A row that a record looked up several times is summed here once and for all: norms and sums then agree.
        merged = kernels.merge_rows(values, owners, rows) if kernels.suit(values) else None
        if merged is None:
            places, which = torch.unique(owners * shape[0] + rows, return_inverse=True)
            summed = values.new_zeros(len(places), values.shape[1]).index_add_(0, which, values)
            merged = summed, places // shape[0], places % shape[0]
        self._merged, self._owners, self._rows = merged
        self._records, self._shape = records, shape

    @property
    def _values(self) -> torch.Tensor:
        return self._merged

    def _some(self, there: torch.Tensor) -> torch.Tensor:
        return self._merged[there]

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        gradients = self._values.new_zeros(self._records, *self._shape)
        gradients[self._owners, self._rows] = self._values
        return gradients

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2 or a little more, (B,)."""
        if kernels.suit(self._values):
            return kernels.squared_lengths(self._values, self._owners, self._records).to(self._values.dtype)
        return self._by_record(squared_lengths(self._values))

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        total = self._values.new_empty(self._shape)
        self.write_sum(weights, total)
        return total

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_i w_i g_i into `out`."""
        out.zero_()
        if kernels.suit(self._values, weights, out):
            kernels.add_rows(self._values, self._rows, weights[self._owners], out)
        else:
            out.index_add_(0, self._rows, self._values * weights[self._owners, None])

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return self._by_record((self._values * vector[self._rows]).sum(1))

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        positions = self._owners.new_full((self._records,), -1)
        positions[records] = torch.arange(len(records), device=positions.device)
        there = positions[self._owners] >= 0
        owners = positions[self._owners][there]
        return SparseRows(self._some(there), owners, self._rows[there], len(records), self._shape)

    def some_rows(self, rows: slice) -> Contribution:
        """The gradients of some of the table's rows."""
        start, stop, _ = rows.indices(self._shape[0])
        there = (self._rows >= start) & (self._rows < stop)
        shape = torch.Size([stop - start, *self._shape[1:]])
        return SparseRows(self._some(there), self._owners[there], self._rows[there] - start, self._records, shape)

    @property
    def size(self) -> tuple[int, int]:
        """How many records there are, and the bytes of one gradient."""
        return self._records, prod(self._shape) * self._values.element_size()

    def by_person(self, owners: Owners) -> Contribution:
        """The sums over persons' records: the same rows, of other owners."""
        return SparseRows(self._values, owners.owners[self._owners], self._rows, owners.persons, self._shape)

    def plus(self, others: Sequence[Contribution]) -> Contribution:
        """The sum with other uses of the same table: further rows, or outer products where it is also a matrix."""
        uses = [self, *(other for other in others if isinstance(other, SparseRows))]
        products = [other for other in others if isinstance(other, OuterProducts)]
        if len(uses) + len(products) <= len(others):
            return super().plus(others)
        parts = zip(*((use._values, use._owners, use._rows) for use in uses), strict=True)
        values, owners, rows = (torch.cat(part) for part in parts)
        rows_only = SparseRows(values, owners, rows, self._records, self._shape)
        return Tied(rows_only, added(products)) if products else rows_only

    def across(self, errors: torch.Tensor, activations: torch.Tensor) -> torch.Tensor:
        """<g_i, sum_t e_it a_it^T>, (B,), in float64, from errors (B, T, rows) and activations (B, T, columns)."""
        counts = torch.bincount(self._owners, minlength=self._records)
        place = torch.arange(len(self._owners), device=counts.device) - (counts.cumsum(0) - counts)[self._owners]
        most = int(counts.max()) if len(self._owners) else 0
        values = self._values.new_zeros(self._records, most, self._shape[1], dtype=torch.float64)
        rows = self._rows.new_zeros(self._records, most)
        values[self._owners, place], rows[self._owners, place] = self._values.double(), self._rows
        met = errors.gather(2, rows.unsqueeze(1).expand(-1, errors.shape[1], -1)).double()
        return (torch.bmm(activations.double(), values.transpose(1, 2)) * met).sum((1, 2))

    def _by_record(self, values: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(self._records, dtype=torch.float64, device=values.device)
        return total.index_add_(0, self._owners, values.double()).to(values.dtype)


class ScaledRows(SparseRows):
    """Gradients whose rows are all shares of one vector a record (those of a bag): vectors (B, D), and a share for each row.

    So the rows themselves, many times as many numbers, are hardly ever written out.
    """

    def __init__(
        self, vectors: torch.Tensor, shares: torch.Tensor, owners: torch.Tensor, rows: torch.Tensor, shape: torch.Size
    ) -> None:
        super().__init__(shares.unsqueeze(1), owners, rows, len(vectors), shape)  # which adds shares up
        self._vectors, self._shares = vectors, self._merged.squeeze(1)

    @property
    def _values(self) -> torch.Tensor:
        return self._vectors[self._owners] * self._merged

    def _some(self, there: torch.Tensor) -> torch.Tensor:
        return self._vectors[self._owners[there]] * self._merged[there]

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2 or a little more, (B,)."""
        lengths = torch.linalg.vector_norm(self._vectors, dim=1, dtype=torch.float64).square_()
        shares = self._shares.double().square()
        return (lengths * lengths.new_zeros(self._records).index_add_(0, self._owners, shares)).to(self._shares.dtype)

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_i w_i g_i into `out`."""
        out.zero_()
        each = weights[self._owners] * self._shares
        if kernels.suit(self._vectors, each, out):
            kernels.add_rows(self._vectors, self._rows, each, out, self._owners)
        else:
            out.index_add_(0, self._rows, self._vectors[self._owners] * each.unsqueeze(1))


def norms_from_products(
    errors: torch.Tensor, activations: torch.Tensor, widths: tuple[int, int], terms: int, unit: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """||sum_t e_t a_t^T||^2 at most, from the inner products of positions (B, T, T); and where this is too coarse.

    Positions may cancel, which leaves of the sum what rounding made of the parts. So two things are added, in units of
    sum_t ||e_t|| ||a_t||: the rounding of inner products over `widths` numbers (and what falls below the smallest
    number), and, with `unit` for the precision, that of the weighted sum of `terms` pairs which is made of them later.
    Rounding errors are taken to add up like independent ones.
    """
    precision = torch.finfo(errors.dtype)
    squared = (errors * activations).sum((1, 2)).double().clamp_min(0)
    of_errors, of_activations = (part.diagonal(dim1=1, dim2=2).double() for part in (errors, activations))
    lengths = (of_errors * of_activations).sqrt().sum(1)
    doubt = precision.eps * (16 + 4 * sqrt(widths[0]) + 4 * sqrt(widths[1])) * lengths.square()
    lost = widths[0] * of_activations.amax(1) + widths[1] * of_errors.amax(1)
    doubt += errors.shape[1] ** 2 * precision.tiny * lost
    bound = ((squared + doubt).sqrt() + 2 * sqrt(terms) * unit * lengths).square()
    return bound, (doubt > NEGLIGIBLE * squared) & (bound > NOTHING)


class Factor:
    """One side of a sum of outer products: vectors at `T` positions of `B` records, (B, T, D).

    Two parameters may share a factor, and then share the inner products of its positions too.
    """

    def __init__(self, vectors: torch.Tensor) -> None:
        self._given = vectors
        self.rows = vectors if vectors.dim() == 2 else None
        """The vectors of records that have only one each, (B, D)."""
        if self.rows is None and self.vectors.shape[1] == 1:
            self.rows = self.vectors[:, 0]
        self._pooled: tuple[Owners, list[Factor]] | None = None

    @cached_property
    def vectors(self) -> torch.Tensor:
        """The vectors at all positions, (B, T, D)."""
        return self._given.unsqueeze(1) if self._given.dim() == 2 else self._given.flatten(1, -2)

    def by_person(self, owners: Owners) -> list[Factor]:
        """The vectors of persons, at the positions of all their records; one factor for each of the owners' parts."""
        if self._pooled is None or self._pooled[0] is not owners:
            self._pooled = owners, [Factor(part) for part in owners.padded(self.vectors)]
        return self._pooled[1]

    @cached_property
    def products(self) -> torch.Tensor:
        """Inner products between the positions of each record, (B, T, T)."""
        vectors = self.vectors
        if vectors.shape[2] >= LONG and vectors.stride(2) == 1 and kernels.suit_kind(vectors):
            return kernels.multiply_rows(vectors)
        return torch.bmm(vectors, vectors.transpose(1, 2))

    @cached_property
    def squared_norms(self) -> torch.Tensor:
        """Squared length of each record's one vector, (B,), in float64: a small one times a large one must not vanish."""
        assert self.rows is not None
        return torch.linalg.vector_norm(self.rows, dim=1, dtype=torch.float64).square_()


class Sums(Explicit):
    """g_i = sum_t e_it: the gradients of what was added at every position, a bias."""

    def __init__(self, errors: Factor) -> None:
        self._errors = errors
        super().__init__(errors.vectors.sum(1) if errors.rows is None else errors.rows)

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Errors and activations, a row a record, or errors alone."""
        return () if self._errors.rows is None else (self._errors.rows,)


class OuterProducts(Contribution):
    """g_i = sum_t e_it a_it^T, from errors e (B, T, rows) and activations a (B, T, columns)."""

    def __init__(self, errors: Factor, activations: Factor) -> None:
        self._errors, self._activations = errors, activations
        self._kept: torch.Tensor | None = None
        self._memory = MemoryLimit()

    @property
    def factors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Errors (B, T, rows) and activations (B, T, columns)."""
        return self._errors.vectors, self._activations.vectors

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        if self._kept is not None:
            return self._kept
        return torch.bmm(self._errors.vectors.transpose(1, 2), self._activations.vectors)

    def squared_norms(self) -> torch.Tensor:
        """By whichever is cheaper: inner products of positions, or the gradients written out."""
        errors, activations = self._errors, self._activations
        if errors.rows is not None:
            return (errors.squared_norms * activations.squared_norms).to(errors.rows.dtype)
        if self._kept is None and self._explicit_is_cheaper():
            self._kept = self.explicit()
            self._memory.take(prod(self.size))
        if self._kept is not None:
            return squared_lengths(self._kept.flatten(1))
        records, positions, width = errors.vectors.shape
        about = (width, activations.vectors.shape[2]), records * positions, torch.finfo(errors.vectors.dtype).eps
        bound, coarse = norms_from_products(errors.products, activations.products, *about)
        if coarse.any():
            some = coarse.nonzero().squeeze(1)
            exact = (Factor(part.vectors[some].double()).products for part in (errors, activations))
            bound[some] = norms_from_products(next(exact), next(exact), *about)[0]
        return bound.to(errors.vectors.dtype)

    @property
    def rows(self) -> tuple[torch.Tensor, ...]:
        """Errors and activations, a row a record, or errors alone."""
        if self._errors.rows is None or self._activations.rows is None:
            return ()
        return self._errors.rows, self._activations.rows

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """One matrix product over all records and positions."""
        shape = self._errors.vectors.shape[2], self._activations.vectors.shape[2]
        total = self._errors.vectors.new_empty(shape)
        self.write_sum(weights, total)
        return total

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_i w_i g_i into `out`."""
        if self._kept is not None:
            out.copy_((weights @ self._kept.flatten(1)).view(out.shape))
        elif self._errors.rows is not None and self._activations.rows is not None:
            weighted_product(self._errors.rows, self._activations.rows, weights, out)
        else:
            errors, activations = self._errors.vectors, self._activations.vectors
            each = weights.unsqueeze(1).expand(errors.shape[:2])
            if errors.stride(0) < errors.stride(1):
                # Time-major memory: rows in memory order make flattening free.
                errors, activations, each = (part.transpose(0, 1) for part in (errors, activations, each))
            weighted_product(errors.flatten(0, 1), activations.flatten(0, 1), each.flatten(), out)

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, V> = sum_t e_it^T V a_it, (B,)."""
        if self._kept is not None:
            return self._kept.flatten(1) @ vector.reshape(-1)
        return ((self._activations.vectors @ vector.T) * self._errors.vectors).sum((1, 2))

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B)."""
        if self._errors.rows is not None and self._activations.rows is not None:
            return (self._errors.rows @ self._errors.rows.T) * (self._activations.rows @ self._activations.rows.T)
        return super().gram()

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        if self._kept is not None:
            return Explicit(self._kept[records])
        return OuterProducts(Factor(self._errors.vectors[records]), Factor(self._activations.vectors[records]))

    def some_rows(self, rows: slice) -> Contribution:
        """The gradients of some of the matrix's rows."""
        if self._kept is not None:
            return super().some_rows(rows)
        return OuterProducts(Factor(self._errors.vectors[..., rows]), self._activations)

    def by_person(self, owners: Owners) -> Contribution:
        """The sums over persons' records: a person's positions are those of all their records."""
        errors, activations = self._errors.by_person(owners), self._activations.by_person(owners)
        if len(errors) == 1:
            return OuterProducts(errors[0], activations[0]) if owners.even else PersonProducts(self, owners)
        parts = [OuterProducts(*pair) for pair in zip(errors, activations, strict=True)]
        places = owners.parts(self._errors.vectors.shape[1])
        return Parts(list(zip(places, parts, strict=True)), owners.persons)

    @property
    def size(self) -> tuple[int, int]:
        """How many records there are, and the bytes of one gradient."""
        records, _, rows = self._errors.vectors.shape
        return records, rows * self._activations.vectors.shape[2] * self._errors.vectors.element_size()

    def share(self, memory: MemoryLimit) -> None:
        """Keep what is written out only as far as memory allows."""
        self._memory = memory

    def transposed(self) -> Contribution:
        """The outer products the other way round."""
        return OuterProducts(self._activations, self._errors)

    def plus(self, others: Sequence[Contribution]) -> Contribution:
        """The sum with other uses of the same matrix: their positions are further positions."""
        tables = [other for other in others if isinstance(other, SparseRows)]
        if tables:
            return tables[0].plus([self, *(other for other in others if other is not tables[0])])
        uses = [self, *(other for other in others if isinstance(other, OuterProducts))]
        if len(uses) <= len(others):
            return super().plus(others)
        return OuterProducts(
            Factor(torch.cat([use._errors.vectors for use in uses], dim=1)),
            Factor(torch.cat([use._activations.vectors for use in uses], dim=1)),
        )

    def _explicit_is_cheaper(self) -> bool:
        _, positions, rows = self._errors.vectors.shape
        columns = self._activations.vectors.shape[2]
        return self._memory.has(prod(self.size)) and PASS_COST * rows * columns < positions**2 * (rows + columns)


class PersonProducts(OuterProducts):
    """The sums over persons' records, from vectors that are filled up with zeros; weighted sums need no filling up."""

    def __init__(self, records: OuterProducts, owners: Owners) -> None:
        errors, activations = (part.by_person(owners)[0] for part in (records._errors, records._activations))
        super().__init__(errors, activations)
        self._records, self._owners = records, owners

    def write_sum(self, weights: torch.Tensor, out: torch.Tensor) -> None:
        """sum_p w_p h_p into `out`. What was written out is summed itself, since norms are then of its very numbers."""
        if self._kept is None:
            self._records.write_sum(weights[self._owners.owners], out)
        else:
            super().write_sum(weights, out)


class Tied(Contribution):
    """Gradients of a table that is looked up and is also a matrix (a tied head): few rows and outer products, in one."""

    def __init__(self, rows: SparseRows, products: Contribution) -> None:
        self._rows, self._products = rows, products

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        return self._rows.explicit() + self._products.explicit()

    def squared_norms(self) -> torch.Tensor:
        """||r_i||^2 + ||p_i||^2 + 2 <r_i, p_i>: the first two are bounds, the last is exact to float64's rounding."""
        assert isinstance(self._products, OuterProducts)
        rows, products = (part.squared_norms() for part in (self._rows, self._products))
        total = rows.double() + products.double() + 2 * self._rows.across(*self._products.factors)
        return total.clamp_min(0).to(rows.dtype)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        return self._products.weighted_sum(weights).add_(self._rows.weighted_sum(weights))

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return self._rows.inner(vector) + self._products.inner(vector)

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return added([self._rows.only(records), self._products.only(records)])

    def some_rows(self, rows: slice) -> Contribution:
        """The gradients of some of the table's rows."""
        return added([self._rows.some_rows(rows), self._products.some_rows(rows)])

    @property
    def size(self) -> tuple[int, int]:
        """How many records there are, and the bytes of one gradient."""
        return self._rows.size

    def share(self, memory: MemoryLimit) -> None:
        """Keep what is written out only as far as memory allows."""
        self._products.share(memory)


def weighted_product(errors: torch.Tensor, activations: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> None:
    """`out` becomes the sum of the outer products of two matrices' rows, each times its weight."""
    fewer_errors = errors.shape[1] <= activations.shape[1]
    if kernels.suit(errors, activations, weights, out):
        # A kernel that copies the side with fewer columns.
        if fewer_errors and kernels.sum_products(errors, activations, weights, out):
            return
        turned = out.new_empty(out.shape[::-1])
        if kernels.sum_products(activations, errors, weights, turned):
            out.copy_(turned.T)
            return
    weights = weights.unsqueeze(1)
    pair = (errors * weights, activations) if fewer_errors else (errors, activations * weights)
    matrix_product(*pair, out)


def matrix_product(errors: torch.Tensor, activations: torch.Tensor, out: torch.Tensor) -> None:
    """`out` becomes the sum of the outer products of two matrices' rows."""
    if FEW * activations.shape[1] <= errors.shape[1]:
        out.copy_(linear(activations.T, errors.T).T)
    elif _suits_onednn(errors, activations) and out.numel() <= MANY:
        out.copy_(linear(errors.T, activations.T))
    else:
        torch.mm(errors.T, activations, out=out)


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`functional.linear` without a graph, by oneDNN where it can: on AMD's processors twice as fast as torch's choice, MKL."""
    if _suits_onednn(rows, weight):
        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
        return found
    return rows @ weight.T if bias is None else torch.addmm(bias, rows, weight.T)


def _suits_onednn(*matrices: torch.Tensor) -> bool:
    if not _ONEDNN or not torch.backends.mkldnn.enabled:
        return False
    return all(part.dtype == torch.float32 and part.is_cpu and part.numel() for part in matrices)


_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
