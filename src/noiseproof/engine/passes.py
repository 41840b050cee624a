"""The backward pass of a checked step: beside it one with other weights on the losses, and one record's gradient by autograd.

All three need the graph, and a graph that is kept while errors go back over it takes much memory. So they go side by side, from
one passage to the next: a passage is an output of an operation through which everything behind is reached, and what lies before
it is let go of. Only the errors of the step itself are carried over it. Those with other weights must be the same
but for their weights there, and those of one record must be nothing in other records' rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from random import SystemRandom
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import GradientEdge, Node

from noiseproof.engine.checks import check_separation, lengths, separating_weights
from noiseproof.engine.graph import Following, Use, given
from noiseproof.engine.places import Place

_SECRET = SystemRandom()
Own = tuple[Sequence[int], list[Any]]
"""Numbers of uses, and what is given by each."""
_Gradient = torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Size] | None
"""One record's in a parameter: whole, or the rows that are not zero, their values, and the shape of the whole."""


def checked(
    losses: torch.Tensor, followed: Following, alone: Alone | None, errors_only: Callable[[], Any]
) -> Iterator[Own]:
    """The backward pass of `Following.run`, section by section, while it is checked that records are kept apart.

    Args:
        losses: The losses.
        followed: Their graph.
        alone: Takes one record's gradient on the way.
        errors_only: In its context layers that have a backward pass of their own leave weights out.

    Yields:
        What the uses of each section give.

    Raises:
        UnsupportedError: If errors of one record depend on another's loss.
    """
    start: Any = losses
    errors: torch.Tensor | None = torch.ones_like(losses)
    weights, place = separating_weights(losses), Place(len(losses))
    generator = torch.Generator().manual_seed(_SECRET.getrandbits(63))
    for section, passage in enumerate([*followed.passages, None]):
        uses = [number for number, use in enumerate(followed.uses) if use.section == section]
        if alone is not None:
            shared = {edge for number in uses for edge in followed.uses[number].shared}
            alone.go_on(start, errors, place, followed, passage, shared)
        with errors_only():
            with _weighted(errors, weights, place) as scaled:
                other, onward = followed.run(start, scaled, lengths, uses, passage, retain_graph=True)
                # Only some numbers a record are kept, and before the weights are taken off again.
                seen = None if onward is None or passage is None else _seen(passage[1], onward, generator)
                del onward, scaled
            own, errors = followed.run(start, errors, _kept, uses, passage, retain_graph=followed.repeats)
        behind = [followed.uses[number] for number in uses]
        check_separation(followed, behind, weights, [each for each, _ in own], other)
        if passage is not None:
            start, place = passage
            if errors is not None and seen is not None:
                _check_passage(followed, start.node, weights, _seen(place, errors, generator), seen)
        yield uses, [own.pop(0)[1] for _ in uses]  # held by whoever takes them alone


def _kept(use: Use, *errors: torch.Tensor | None) -> tuple[Any, Any]:
    return lengths(use, *errors), given(use, *errors)


def _view(weights: torch.Tensor, place: Place, like: torch.Tensor) -> torch.Tensor:
    shape = [1] * like.dim()
    shape[place.dim] = -1
    return weights.to(like).view(shape)


@contextmanager
def _weighted(errors: torch.Tensor | None, weights: torch.Tensor, place: Place) -> Iterator[torch.Tensor | None]:
    """The errors times their records' weights; in place where that can be undone, which saves a copy."""
    if errors is None:
        yield None
        return
    by = _view(weights, place, errors)
    if errors.is_complex():
        yield errors * by
        return
    low, high = (float(end) for end in errors.aminmax()) if errors.numel() else (0.0, 0.0)
    largest = torch.finfo(errors.dtype).max / 16  # weights are powers of two up to 8
    if not errors.is_contiguous() or not (-largest < low and high < largest):
        yield errors * by
        return
    errors.mul_(by)
    try:
        yield errors
    finally:
        errors.div_(by)


def _seen(place: Place, errors: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """What is compared of every record's errors: their length, and their products with some random vectors, (B, 5)."""
    again = torch.Generator().set_state(generator.get_state())
    rows = errors.movedim(place.dim, 0).reshape(place.records, -1)
    vectors = torch.randn(rows.shape[1], 4, generator=again).to(rows)
    return torch.cat([place.lengths(errors).unsqueeze(1), rows @ vectors], dim=1)


def _check_passage(
    followed: Following, node: Node, weights: torch.Tensor, own: torch.Tensor, found: torch.Tensor
) -> None:
    """Refuse errors that other weights on the losses change by more than these weights."""
    expected = own * weights.to(own).unsqueeze(1)
    precision = torch.finfo(own.dtype).eps
    length = expected[:, :1].abs()  # a real number, of complex errors too
    # Squares of numbers below the root of the smallest are nothing.
    most = length.nan_to_num(0.0, 0.0).max() + 1e9 * torch.finfo(own.dtype).tiny ** 0.5
    # Of products far below what mixing does, far above what sums in another order do.
    allowed = torch.cat([64 * precision * length, (precision**0.5 * length).expand(-1, 4)], dim=1) + precision * most
    if bool(((found - expected).abs() > allowed).any()):
        raise followed.mixed(node)


class Alone:
    """One record's gradient as autograd gives it, from section to section.

    Args:
        record: Which record.
        parameters: What the gradient is taken of.
    """

    def __init__(self, record: int, parameters: Sequence[torch.Tensor]) -> None:
        self._record, self._parameters = record, parameters
        self._row: torch.Tensor | None = torch.ones(())
        """The record's own errors where the section begins."""
        self._gradients: list[_Gradient] = [None] * len(parameters)

    def go_on(
        self,
        start: Any,
        like: torch.Tensor | None,
        place: Place,
        followed: Following,
        passage: tuple[GradientEdge, Place] | None,
        shared: Collection[tuple[Node, int]],
    ) -> None:
        """From one passage to the next, and from what is met on the way to its parameters."""
        if self._row is None or like is None:
            return
        errors = _zeros(like)
        errors.select(place.dim, self._record).copy_(self._row)
        if not followed.passages:  # no stop between here and the parameters
            self._add(torch.autograd.grad(start, self._parameters, errors, retain_graph=True, allow_unused=True))
            return
        edges: list[Any] = [GradientEdge(*edge) for edge in shared]
        targets = edges if passage is None else [*edges, passage[0]]
        if not targets:
            return
        found = torch.autograd.grad(start, targets, errors, retain_graph=True, allow_unused=True)
        del errors
        if passage is not None:
            self._row = self._own_row(followed, passage, found[-1])
        there = [(edge, error) for edge, error in zip(edges, found, strict=False) if error is not None]
        if there:
            ends, given = zip(*there, strict=True)
            self._add(torch.autograd.grad(ends, self._parameters, given, retain_graph=True, allow_unused=True))

    def _own_row(
        self, followed: Following, passage: tuple[GradientEdge, Place], errors: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The record's part of its errors, which is all there must be."""
        if errors is None:
            return None
        edge, place = passage
        sizes = place.lengths(errors).nan_to_num(0.0, 0.0)
        own = float(sizes[self._record])
        sizes[self._record] = 0
        if float(sizes.max()) > 64 * torch.finfo(sizes.dtype).eps * own:
            raise followed.mixed(edge.node)
        return errors.select(place.dim, self._record).clone()

    def _add(self, gradients: Sequence[torch.Tensor | None]) -> None:
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                before, gradient = self.take(index), gradient.to_dense()
                whole = gradient if before is None else before + gradient
                # Of a table one record has few rows, and all are not held beside the rows of all records.
                rows = _largest(whole).nonzero().squeeze(1) if whole.dim() == 2 and whole.numel() else None
                if rows is not None and len(rows) < len(whole) // 4:
                    self._gradients[index] = rows, whole[rows], whole.shape
                else:
                    self._gradients[index] = whole

    def take(self, index: int) -> torch.Tensor | None:
        """The gradient in a parameter, which is then no longer held; None if the record has none."""
        found, self._gradients[index] = self._gradients[index], None
        if isinstance(found, tuple):
            rows, values, shape = found
            return values.new_zeros(shape).index_copy_(0, rows, values)
        return found


def _largest(matrix: torch.Tensor) -> torch.Tensor:
    """The largest number of each row, without its sign, and without a copy of the matrix."""
    return torch.linalg.vector_norm(matrix, torch.inf, dim=1)


def _zeros(like: torch.Tensor) -> torch.Tensor:
    """Zeros; in the processor's memory such as the system makes up when they are read, which take none."""
    if like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(np.zeros(like.shape, np.float32 if like.dtype == torch.float32 else np.float64))
    return torch.zeros_like(like)
