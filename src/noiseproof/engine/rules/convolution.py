"""Convolutions and their transposes: the gradients of kernels, in one and two dimensions without unfolding whole inputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod, sqrt
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from noiseproof.engine.contributions import (
    Contribution,
    Explicit,
    MemoryLimit,
    full_precision,
    in_pieces,
    squared_lengths,
)
from noiseproof.engine.products import PASS_COST, norms_from_products

CHUNK_BYTES = 8 * 2**20
"""Unfolded input that is made at a time: it is read several times, and should then still be in a cache."""
SMALL = 32
"""Numbers of a window up to which unfolding them takes less than a convolution whose groups are records (measured)."""
SUM_COST = 8
"""Multiplications of a matrix product that take as long as adding a number that lies somewhere else (it only has to be near)."""
TOGETHER = 8
"""Records whose gradients are made at a time, as the groups of one convolution: the fastest of a few sizes in one run."""


@dataclass(frozen=True)
class Geometry:
    """How a kernel of (height, width) moves over the input."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int


class Correlations(Contribution):
    """g_i[o, c, u, v] = sum over places p of e_i[o, p] x_i[c, p * stride + (u, v) * dilation].

    Inputs x (B, C, H, W) and errors e (B, O, H', W'). Gradients are written out by the backward pass of a convolution in
    which every record is a group of channels, or by products with the unfolded input where a window is small.
    """

    def __init__(self, inputs: torch.Tensor, errors: torch.Tensor, shape: torch.Size, geometry: Geometry) -> None:
        self._inputs, self._errors, self._shape, self._geometry = inputs, errors, shape, geometry
        self._records, self._all_rows = errors.shape[:2]
        self._rows = errors.shape[1] // geometry.groups
        self._channels = inputs.shape[1] // geometry.groups
        self._dtype_size = errors.element_size()
        self._kept: list[torch.Tensor] | None = None
        """Gradients that are written out, a row a record, for some records after others: as they were made, uncopied."""
        self._memory = MemoryLimit()

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, *shape)."""
        parts = self._written() if self._kept is None else self._kept
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self._kept is not None:
            self._kept = [rows]  # which may be asked for again
        return rows.view(self._records, *self._shape)

    def squared_norms(self) -> torch.Tensor:
        """By whichever is cheaper: the gradients written out, or inner products of places."""
        if self._kept is None and self._products_are_cheaper:
            return self._norms_from_products()
        self._keep_if_there_is_room()
        if self._kept is not None:
            return torch.cat([squared_lengths(part) for part in self._kept])
        pieces = self._pieces(in_pieces(self.size[1]))
        each = [squared_lengths(part) for some in pieces for part in self._written(some)]
        lengths = torch.cat(each).double().sqrt()
        # The sum is made from the pairs again, where large parts that cancel leave their rounding.
        parts = (squared_lengths(part.flatten(1)).double() for part in (self._errors, self._inputs))
        most = prod(parts, start=torch.tensor(prod(self._geometry.kernel))).sqrt()
        rounding = 2 * sqrt(self._records * self._places) * torch.finfo(self._errors.dtype).eps
        return (lengths + rounding * most).square().to(self._errors.dtype)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, of the parameter's shape."""
        if self._kept is not None:
            total = weights.new_zeros(prod(self._shape))
            for part, own in zip(self._kept, weights.split([len(part) for part in self._kept]), strict=True):
                total.addmv_(part.T, own)
            return total.view(self._shape)
        return self._backward(self._errors * weights[:, None, None, None], self._inputs, self._geometry.groups).view(
            self._shape
        )

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        geometry = self._geometry
        kernel = vector.reshape(self._all_rows, self._channels, *geometry.kernel)
        if self._kept is None:
            # <g_i, v> = <e_i, conv(x_i, v)>.
            where = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
            return (functional.conv2d(self._inputs, kernel, None, *where) * self._errors).sum((1, 2, 3))
        return torch.cat([part @ vector.reshape(-1) for part in self._kept])

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B); what is written out for it is kept where there is room, for the sums that follow."""
        self._keep_if_there_is_room()
        if self._kept is None:
            return super().gram()
        rows = self.explicit().flatten(1)
        return rows @ rows.T

    @property
    def size(self) -> tuple[int, int]:
        """How many records there are, and the bytes of one gradient."""
        return self._records, prod(self._shape) * self._dtype_size

    def share(self, memory: MemoryLimit) -> None:
        """Keep what is written out only as far as memory allows."""
        self._memory = memory

    def shrink(self) -> None:
        """Write out at once what takes less memory so: few channels and many places."""
        if prod(self.size) < self._errors.nbytes and not self._products_are_cheaper:
            with full_precision():
                self._keep()

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        if self._kept is not None:
            return Explicit(self.explicit()[records])
        return Correlations(self._inputs[records], self._errors[records], self._shape, self._geometry)

    @property
    def _places(self) -> int:
        return self._errors.shape[2] * self._errors.shape[3]

    def _keep_if_there_is_room(self) -> None:
        if self._kept is None and self._memory.has(prod(self.size)):
            self._memory.take(prod(self.size))
            self._keep()

    def _keep(self) -> None:
        self._kept = self._written()
        # The pair is not needed any more, and may be larger than what was made of it.
        self._inputs = self._errors = self._errors.new_empty(0)

    @property
    def _products_are_cheaper(self) -> bool:
        columns = self._channels * prod(self._geometry.kernel)
        # Without room for the gradients, the weighted sum is made from the pairs again.
        again = 0 if self._memory.has(prod(self.size)) else self._places
        products = self._places**2 * self._rows + min(self._places**2 * columns, self._cost_by_pixels)
        return products < self._rows * columns * (PASS_COST + again)

    @property
    def _padded(self) -> tuple[int, int]:
        """How high and wide the input is with its padding."""
        (height, width), (down, right) = self._inputs.shape[2:], self._geometry.padding
        return height + 2 * down, width + 2 * right

    @property
    def _cost_by_pixels(self) -> int:
        """Multiplications, or what takes as long, for windows' inner products from those of pixels."""
        sums = prod(self._geometry.kernel) * self._places**2
        return prod(self._padded) ** 2 * self._channels + SUM_COST * sums

    def _norms_from_products(self) -> torch.Tensor:
        """Sums over pairs of places, of the errors' inner product times that of the input's windows."""
        columns = self._channels * prod(self._geometry.kernel)
        dtype = self._errors.dtype
        about = (self._rows, columns), self._records * self._places, torch.finfo(dtype).eps
        found = []
        by_pixels = self._cost_by_pixels < self._places**2 * columns
        numbers = prod(self._padded) ** 2 if by_pixels else self._places * columns
        for some in self._pieces(self._chunk(numbers)):
            errors = self._vectors(some)
            windows = None if by_pixels else self._windows(some)
            products = self._products_by_pixels(some) if windows is None else _products(windows)
            bound, coarse = norms_from_products(_products(errors), products, *about)
            if coarse.any():
                windows = self._windows(some) if windows is None else windows
                exact = (_products(part[coarse].double()) for part in (errors, windows))
                bound[coarse] = norms_from_products(next(exact), next(exact), *about)[0]
            found.append(bound.view(-1, self._geometry.groups).sum(1))
        return torch.cat(found).to(dtype)

    def _written(self, some: slice = slice(None)) -> list[torch.Tensor]:
        """The gradients of some records written out, a row each, a few records after others."""
        columns = self._channels * prod(self._geometry.kernel)
        if columns <= SMALL:
            pieces = self._pieces(self._chunk(4 * self._places * columns), some)
            products = [torch.bmm(self._vectors(piece), self._windows(piece).transpose(1, 2)) for piece in pieces]
            return [part.view(-1, prod(self._shape)) for part in products]
        found = []
        for errors, inputs in zip(*(part[some].split(TOGETHER) for part in (self._errors, self._inputs)), strict=True):
            error, given = (part.reshape(1, -1, *part.shape[2:]) for part in (errors, inputs))
            made = self._backward(error, given, len(errors) * self._geometry.groups)
            found.append(made.reshape(len(errors), prod(self._shape)))
        return found

    def _backward(self, errors: torch.Tensor, inputs: torch.Tensor, groups: int) -> torch.Tensor:
        """The gradient of a kernel, by torch."""
        stride, padding, dilation = self._geometry.stride, self._geometry.padding, self._geometry.dilation
        kernel = inputs.new_empty(errors.shape[1], self._channels, *self._geometry.kernel)
        found: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
            errors, inputs, kernel, None, stride, padding, dilation, False, [0, 0], groups, [False, True, False]
        )
        return found[1]

    def _vectors(self, some: slice) -> torch.Tensor:
        """The errors: (records x groups, rows of the kernel, places)."""
        return self._errors[some].reshape(-1, self._rows, self._places)

    def _windows(self, some: slice) -> torch.Tensor:
        """The input unfolded: (records x groups, columns as in the kernel, places)."""
        inputs, geometry = self._inputs[some], self._geometry
        padding = geometry.padding
        if geometry.kernel == (1, 1) and geometry.stride == (1, 1) and padding == (0, 0):
            return inputs.reshape(len(inputs) * geometry.groups, self._channels, self._places)
        if padding != (0, 0):
            inputs = functional.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
        inputs = inputs.contiguous()
        channel, down, right = inputs.stride()[1:]
        windows = inputs.as_strided(
            (len(inputs) * geometry.groups, self._channels, *geometry.kernel, *self._errors.shape[2:]),
            (
                channel * self._channels,
                channel,
                down * geometry.dilation[0],
                right * geometry.dilation[1],
                down * geometry.stride[0],
                right * geometry.stride[1],
            ),
        )
        return windows.reshape(len(windows), -1, self._places)

    def _products_by_pixels(self, some: slice) -> torch.Tensor:
        """Inner products of the input's windows, (records x groups, places, places): sums of inner products of its pixels.

        Windows overlap, so that each pair of pixels is multiplied once where windows would multiply it several times.
        """
        geometry, (height, width) = self._geometry, self._padded
        (down, right), (high, wide) = geometry.padding, self._errors.shape[2:]
        padded = functional.pad(self._inputs[some], (right, right, down, down))
        pixels = _products(padded.reshape(-1, self._channels, height * width)).view(-1, height, width, height, width)
        total = pixels.new_zeros(len(pixels), high, wide, high, wide)
        step = geometry.stride
        for place in product(*(range(size) for size in geometry.kernel)):
            top, left = (at * apart for at, apart in zip(place, geometry.dilation, strict=True))
            rows, columns = slice(top, top + step[0] * high, step[0]), slice(left, left + step[1] * wide, step[1])
            total += pixels[:, rows, columns, rows, columns]
        return total.view(-1, self._places, self._places)

    def _chunk(self, numbers: int) -> int:
        """How many records to take at a time, if each needs room for so many `numbers`."""
        return max(1, CHUNK_BYTES // max(1, self._inputs.element_size() * numbers * self._geometry.groups))

    def _pieces(self, size: int, some: slice = slice(None)) -> Iterator[slice]:
        """`some` of the records in pieces of `size`."""
        start, stop, _ = some.indices(self._records)
        return (slice(first, min(first + size, stop)) for first in range(start, stop, size))


def _products(vectors: torch.Tensor) -> torch.Tensor:
    """Inner products between the columns of each matrix."""
    return torch.bmm(vectors.transpose(1, 2), vectors)


class Options(NamedTuple):
    """What a convolution was called with, as torch's graph keeps it."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def convolved(inputs: torch.Tensor, errors: torch.Tensor, shape: torch.Size, options: Options) -> Contribution:
    """Every record's gradient in the kernel of a convolution, from what it was given and the errors in what it gave."""
    dims = len(shape) - 2
    stride, padding, dilation, more = (
        tuple(part) * dims if len(part) == 1 else tuple(part)
        for part in (options.stride, options.padding, options.dilation, options.output_padding)
    )
    if dims > 2:
        return Explicit(_written_out(inputs, errors, shape, options))
    if dims == 1:  # a sequence is an image of height 1
        inputs, errors = inputs.unsqueeze(-2), errors.unsqueeze(-2)
    pairs = ((tuple(shape[2:]), 1), (stride, 1), (padding, 0), (dilation, 1))
    shapes: list[Any] = [own if dims == 2 else (high, *own) for own, high in pairs]
    if options.transposed:  # the same correlation, with input and error changing places
        inputs, errors = errors, inputs
        if any(extra >= step for extra, step in zip(more, stride, strict=True)):
            # The last rows that output padding added are beyond all that the kernel reached.
            ends = [(pad, pad - extra) for pad, extra in zip(padding, more, strict=True)]
            inputs = functional.pad(inputs, [side for both in reversed(ends) for side in both])
            shapes[2] = (0, 0)
    return Correlations(inputs, errors, shape, Geometry(*[*shapes, options.groups]))


def _written_out(inputs: torch.Tensor, errors: torch.Tensor, shape: torch.Size, options: Options) -> torch.Tensor:
    """The gradients themselves in any number of dimensions, (B, *shape)."""
    kernel = inputs.new_empty(shape)

    def one(given: torch.Tensor, error: torch.Tensor) -> torch.Tensor:
        gradients: tuple[torch.Tensor, ...] = torch.ops.aten.convolution_backward(
            error.unsqueeze(0), given.unsqueeze(0), kernel, None, *options, [False, True, False]
        )
        return gradients[1]

    found: torch.Tensor = torch.func.vmap(one)(inputs, errors)
    return found
