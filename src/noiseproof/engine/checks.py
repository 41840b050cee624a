"""Checks that every record's loss and gradient are its own; what mixes records is refused before anything is released.

Three of them. *Layers* known to mix records are refused by name. *Separation* runs a backward pass twice with other
weights on the losses: a layer's error at record i must scale with the i-th weight and with nothing else. A *twin batch*
(`twins`) is followed beside the batch. Besides, a record's gradient is compared with what autograd gives for it alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
FIRST = 3
"""Batches of two records or more that are checked for certain."""
EVERY = 256
"""One batch in so many is checked later on, at times that nobody knows, and the one after it, which may be handed something."""


def is_due(checked: int, *, second: bool = False) -> bool:
    """Whether the batch that comes next is to be checked, after so many that were; always as the second of two."""
    return checked < FIRST or second or _SECRET.random() < 1 / EVERY


def check_gradient(found: RecordGradients, expected: Sequence[torch.Tensor]) -> None:
    """Refuse a record's gradient that is not what autograd gives for its loss alone, clipped or not."""
    length = _length(expected)
    if not math.isfinite(length):
        return
    size = max(length, math.sqrt(float(found.squared_norms())))
    tolerance = 1e-2 if all(gradient.dtype in (torch.float32, torch.float64) for gradient in expected) else 0.2
    if max(length, _length(found.written())) ** 2 < NOTHING:
        return  # float32 knows no squares of such numbers, and nothing clips them
    clip = max(length / 2, 1e-30)
    clipped = found.clipped_vector(clip).split([gradient.numel() for gradient in expected])
    wrong = _length(found.written(), expected) > tolerance * size or _length(clipped) > clip * (1 + 1e-6)
    if wrong or _length(clipped, expected, 0.5) > tolerance * size:
        raise UnsupportedError(
            "a record's gradient is not the one that autograd gives for its loss alone; a layer's rule does not fit what the "
            "layer computes, or the loss depends on other records."
        )


def _length(parts: Iterable[torch.Tensor], others: Sequence[torch.Tensor] | None = None, share: float = 1.0) -> float:
    """The length of a gradient, or of its difference to a share of another; in float64, tensor by tensor to save memory."""
    if others is None:
        return math.hypot(*(float(part.cpu().double().norm()) for part in parts))
    pairs = zip(parts, others, strict=True)
    return math.hypot(
        *(
            float((part.cpu().double().flatten() - share * other.cpu().double().flatten()).norm())
            for part, other in pairs
        )
    )


class Separation:
    """The test for one graph: `Separation(...)` before the graph's own backward pass, `check` with its errors."""

    def __init__(self, losses: torch.Tensor, followed: Following) -> None:
        # Powers of two, because scaling by them is exact: a separate error comes out scaled to the bit.
        exponents = torch.randint(4, losses.shape, generator=torch.Generator().manual_seed(1))
        self._followed = followed
        self._weights = (2.0**exponents).to(losses)
        # Only lengths are kept, so that the test does not hold every error twice.
        errors = followed.run(losses, self._weights, lengths, retain_graph=True)
        self._lengths = self._lengths_of(errors)

    def check(self, errors: Sequence[Sequence[Any]]) -> None:
        """Refuse a network whose errors do not scale record by record; of early uses their lengths are given."""
        for use, pairs in zip(
            self._followed.uses, zip(self._lengths, self._lengths_of(errors), strict=True), strict=True
        ):
            for found, length in zip(*pairs, strict=True):
                if found is None or length is None:
                    continue
                expected = length * self._weights.to(length)
                # Mixing moves errors by at least about one over the records; sums in another order by far less.
                precision = torch.finfo(length.dtype).eps
                floor = precision * float(expected.nan_to_num(0.0, 0.0).max())
                if not torch.allclose(found, expected, rtol=64 * precision, atol=floor, equal_nan=True):
                    raise self._followed.mixed(use.behind)

    def _lengths_of(self, errors: Sequence[Sequence[Any]]) -> list[tuple[torch.Tensor | None, ...]]:
        """The length of every record's error, (B,), for each target of each use."""
        return [
            tuple(own) if use.early else tuple([lengths(use, error) for error in own])
            for use, own in zip(self._followed.uses, errors, strict=True)
        ]


def lengths(use: Use, error: torch.Tensor | None) -> torch.Tensor | None:
    """The length of every record's error, (B,)."""
    return None if error is None else use.place.lengths(error)


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
