"""Checks that every record's loss and gradient are its own; what mixes records is refused before anything is released.

Three of them. *Layers* known to mix records are refused by name. *Separation* runs a backward pass twice with other
weights on the losses: a layer's error at record i must scale with the i-th weight and with nothing else. A *twin batch*
(`twins`) is followed beside the batch. Besides, a record's gradient is compared with what autograd gives for it alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from random import SystemRandom
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from noiseproof.engine.clipping import RecordGradients
from noiseproof.engine.graph import Following, Use
from noiseproof.engine.products import NOTHING
from noiseproof.errors import UnsupportedError

_SECRET = SystemRandom()
PIECE_BYTES, PIECES, AT_ONCE = (2**13, 2**18), 64, 2**13
"""What is written out of a gradient at a time to compare it (a part of it, but no less and no more than that), and how many
numbers are widened at a time, at least."""
FIRST = 3
"""Batches of two records or more that are checked for certain."""
EVERY = 256
"""One batch in so many is checked later on, at times that nobody knows, and the one after it, which may be handed something."""


def is_due(checked: int, *, second: bool = False) -> bool:
    """Whether the batch that comes next is to be checked, after so many that were; always as the second of two."""
    return checked < FIRST or second or _SECRET.random() < 1 / EVERY


class GradientCheck:
    """Refuses a record's gradient that is not what autograd gives for its loss alone, clipped or not.

    Gradients are given parameter by parameter, and looked at in pieces, so that little is ever written out.
    """

    def __init__(self, record: int, parameters: Iterable[torch.Tensor]) -> None:
        self._record = record
        self._bytes = sum(4 * parameter.numel() for parameter in parameters)
        self._sizes: list[tuple[float, ...]] = []
        self._too_long = False
        self._tolerance = 1e-2

    def look(self, found: RecordGradients, expected: Sequence[torch.Tensor | None]) -> None:
        """Compare the gradients in some parameters."""
        if any(each is not None and each.dtype not in (torch.float32, torch.float64) for each in expected):
            self._tolerance = 0.2
        least, most = PIECE_BYTES
        size = min(max(self._bytes // PIECES, least), most)
        length_of = partial(_length, at_once=max(AT_ONCE, size // 4))
        for own, wanted in found.pieces(self._record, expected, size):
            written = list(own.written())
            length, other = length_of(wanted), length_of(written)
            off, stated = length_of(written, wanted), math.sqrt(float(own.squared_norms()))
            off_clipped, clip = 0.0, max(length / 2, 1e-30)
            del written
            if max(length, other) ** 2 >= NOTHING:  # float32 knows no squares of less, and nothing clips it
                clipped = own.clipped_vector(clip).split([part.numel() for part in wanted])
                self._too_long = self._too_long or length_of(clipped) > clip * (1 + 1e-6)
                off_clipped = length_of(clipped, wanted, 0.5)
            self._sizes.append((length, stated, off, off_clipped))

    def judge(self) -> None:
        """Raise if what was compared differs."""
        length, stated, *off = (math.hypot(*column) for column in zip(*self._sizes, strict=True))
        if math.isfinite(length) and (self._too_long or max(off) > self._tolerance * max(length, stated)):
            raise UnsupportedError(
                "a record's gradient is not the one that autograd gives for its loss alone; a layer's rule does not fit what "
                "the layer computes, or the loss depends on other records."
            )


def _length(
    parts: Iterable[torch.Tensor],
    others: Iterable[torch.Tensor] | None = None,
    share: float = 1.0,
    *,
    at_once: int,
) -> float:
    """The length of a gradient, or of its difference to a share of another; summed in float64, some numbers at a time."""
    found = []
    for part, other in zip(parts, repeat(None) if others is None else others, strict=False):
        rows = part.flatten().split(at_once)
        for mine, theirs in zip(rows, repeat(None) if other is None else other.flatten().split(at_once), strict=False):
            # The difference of numbers that are near each other is exact, and of others near enough.
            off = mine.cpu() if theirs is None else torch.sub(mine.cpu(), theirs.cpu(), alpha=share)
            found.append(float(torch.linalg.vector_norm(off, dtype=torch.float64)))
    return math.hypot(*found)


def separating_weights(losses: torch.Tensor) -> torch.Tensor:
    """Weights on losses that tell records apart: powers of two, because scaling by them is exact to the bit."""
    exponents = torch.randint(4, losses.shape, generator=torch.Generator().manual_seed(1))
    return (2.0**exponents).to(losses)


def lengths(use: Use, *errors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """The length of every record's error, (B,), for each target of a use."""
    return tuple([None if error is None else use.place.lengths(error) for error in errors])


def check_separation(
    followed: Following, uses: Sequence[Use], weights: torch.Tensor, own: Sequence[Any], weighted: Sequence[Any]
) -> None:
    """Refuse a network whose errors do not scale record by record with the weights on the losses.

    Args:
        followed: The graph.
        uses: Places in it.
        weights: The losses' weights.
        own: The lengths of errors without weights, use by use.
        weighted: With them.
    """
    for use, *pairs in zip(uses, own, weighted, strict=True):
        for length, found in zip(*pairs, strict=True):
            if found is None or length is None:
                continue
            expected = length * weights.to(length)
            # Mixing moves errors by at least about one over the records; sums in another order by far less.
            precision = torch.finfo(length.dtype).eps
            floor = precision * float(expected.nan_to_num(0.0, 0.0).max())
            if not torch.allclose(found, expected, rtol=64 * precision, atol=floor, equal_nan=True):
                raise followed.mixed(use.behind)


def refuse_mixing_layers(network: nn.Module) -> None:
    """Raise `UnsupportedError` for the first layer that mixes records, naming it and its replacement."""
    for path, layer in network.named_modules():
        reason = _reason(layer)
        if reason is not None:
            raise UnsupportedError(f"the layer {path or 'network'} ({type(layer).__name__}) {reason}.")


def _reason(layer: nn.Module) -> str | None:
    if any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
        return "has no parameters yet; run one batch through the network first"
    if isinstance(layer, _InstanceNorm):
        if not layer.track_running_stats:
            return None
        channels = layer.num_features
        return (
            "keeps statistics over all records; replace it by "
            f"GroupNorm({channels}, {channels}), or build it with track_running_stats=False"
        )
    if isinstance(layer, _BatchNorm) and (layer.training or not layer.track_running_stats):
        channels = layer.num_features
        return (
            "normalises over the records of a batch, so that no record has a gradient of its own; replace it by "
            f"GroupNorm({math.gcd(channels, 32)}, {channels}), or freeze its statistics by calling its eval()"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.max_norm is not None:
            return "rescales its rows by the records that it sees; build it with max_norm=None"
        if layer.scale_grad_by_freq:
            return (
                "divides gradients by how many records look up a row, which mixes them; build it with "
                "scale_grad_by_freq=False"
            )
    return None
