"""One operation run backwards by itself: for its gradients, and to find where records lie that no rule tells of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import SystemRandom
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from noiseproof.engine.places import Place, Shape, Unknown

_SECRET = SystemRandom()
Found = Sequence[Place | None]
"""For every input the place of its records, or None if all records share it."""


def local_gradients(node: Any, output: int, errors: torch.Tensor) -> Sequence[torch.Tensor | None]:
    """What one operation makes of errors in one of its outputs, input by input.

    Where an input was spread over the output, its gradients may come unsummed, as the operation's formula gives them.
    """
    if not callable(node) or type(node).__name__ == "CopySlices":
        return _by_engine(node, output, errors)
    given: list[torch.Tensor | None] = [None] * len(node._input_metadata)
    given[output] = errors
    with torch.no_grad():
        found = node(*given)
    return found if isinstance(found, tuple) else (found,)


def _by_engine(node: Any, output: int, errors: torch.Tensor) -> Sequence[torch.Tensor | None]:
    """The same for nodes that only the engine can run; it is stopped right behind them."""
    behind = [(other, place) for other, place in node.next_functions if other is not None]
    if len(set(behind)) < len(behind):
        raise Unknown
    edges = [GradientEdge(*edge) for edge in behind]
    handles = [other.register_prehook(nothing) for other in {other for other, _ in behind}]
    try:
        found = iter(
            torch.autograd.grad([GradientEdge(node, output)], edges, [errors], retain_graph=True, allow_unused=True)
        )
    finally:
        for handle in handles:
            handle.remove()
    return [None if other is None else next(found) for other, _ in node.next_functions]


def nothing(errors: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    """A hook that lets no error through."""
    return tuple(None if error is None else torch.zeros_like(error) for error in errors)


def tried(node: Any, output: int, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    """By trial: where errors of some records alone arrive in the inputs of an operation that nothing is known of."""
    some = sorted(_SECRET.sample(range(place.records), min(3, place.records)))
    like = node._input_metadata[output]
    generator = torch.Generator(like.device).manual_seed(_SECRET.getrandbits(63))
    errors = torch.randn(*shape, dtype=like.dtype, device=like.device, generator=generator)
    trials = []
    for record in some:
        given = place.masked(errors, torch.tensor([record]))[0]
        try:
            trials.append(local_gradients(node, output, given))
        except Exception as error:
            raise Unknown from error
    found: list[Place | None] = []
    for number, (size, (behind, _)) in enumerate(zip(shapes, node.next_functions, strict=True)):
        arrived = [part for trial in trials if (part := trial[number]) is not None]
        if behind is None or len(arrived) < len(trials):
            found.append(None)
            continue
        if not any(bool(part.any()) for part in arrived):
            raise Unknown
        own = next(
            (candidate for candidate in _candidates(place, shape, size) if _holds(candidate, some, arrived)), None
        )
        if own is None and size and type(behind).__name__ != "AccumulateGrad":
            raise Unknown  # shared by the records or mixing them: who knows
        found.append(own)
    return found


def _candidates(place: Place, shape: Shape, size: Shape) -> Iterator[Place]:
    """Where records may lie in an input of that size, the likeliest first."""
    if place.fits(size):
        yield place
    for dim, rows in enumerate(size):
        if rows and rows % place.records == 0:
            yield Place(place.records, dim, 1, rows // place.records)
            yield Place(place.records, dim, rows // place.records, 1)


def _holds(place: Place, some: Sequence[int], arrived: Sequence[torch.Tensor]) -> bool:
    """Whether what arrived from each of some records lies in its own rows."""
    for record, part in zip(some, arrived, strict=True):
        if not place.fits(part.shape):
            return False
        others = place.masked(part, torch.tensor([record]))[0] != part
        if bool(others.any()):
            return False
    return True
