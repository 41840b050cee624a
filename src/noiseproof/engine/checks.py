"""Separation: whether every record's error is its own, tested by backward passes with different weights on the losses.

If a layer's output at record i enters no loss but the i-th, its error scales with the i-th loss's weight and with
nothing else. Normalising over the batch, subtracting a mean, or counting something else than records in the dimension
that should count them breaks this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from noiseproof.engine.graph import LayerUse
from noiseproof.errors import UnsupportedError


def check_shapes(uses: Sequence[LayerUse], errors: Sequence[torch.Tensor | None], records: int) -> None:
    """Refuse errors whose record dimension does not count the records."""
    for use, error in zip(uses, errors, strict=True):
        if error is not None and (error.dim() <= use.record_dim or error.shape[use.record_dim] != records):
            raise UnsupportedError(
                f"the layer {use.path} gave an output of shape {tuple(error.shape)} for {records} records; "
                f"dimension {use.record_dim} must count the records."
            )


class Separation:
    """The test for one graph: `Separation(...)` before the graph's own backward pass, `check` with its errors."""

    def __init__(self, losses: torch.Tensor, targets: Sequence[Any], uses: Sequence[LayerUse]) -> None:
        # Powers of two, because scaling by them is exact: a separate error comes out scaled to the bit.
        exponents = torch.randint(4, losses.shape, generator=torch.Generator().manual_seed(1))
        self._uses = uses
        self._weights = (2.0**exponents).to(losses)
        errors = torch.autograd.grad(losses, targets, self._weights, retain_graph=True, allow_unused=True)
        check_shapes(uses, errors, len(losses))
        # Only lengths are kept, so that the test does not hold every error twice.
        self._lengths = self._lengths_of(errors)

    def check(self, errors: Sequence[torch.Tensor | None]) -> None:
        """Refuse a network whose errors do not scale record by record."""
        for use, found, length in zip(self._uses, self._lengths, self._lengths_of(errors), strict=True):
            if found is None or length is None:
                continue
            expected = length * self._weights.to(length)
            # Mixing moves errors by at least about one over the records; sums in another order by far less.
            precision = torch.finfo(length.dtype).eps
            floor = precision * float(expected.nan_to_num(0.0, 0.0).max())
            if not torch.allclose(found, expected, rtol=64 * precision, atol=floor, equal_nan=True):
                raise UnsupportedError(
                    f"the network mixes records around the layer {use.path} (or does not have them in dimension "
                    f"{use.record_dim} there), so no record has a gradient of its own; compute each by itself."
                )

    def _lengths_of(self, errors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The length of every record's error, (B,), for each use."""
        return [
            None if error is None else _lengths(error, use.record_dim)
            for use, error in zip(self._uses, errors, strict=True)
        ]


def _lengths(error: torch.Tensor, record_dim: int) -> torch.Tensor:
    others = [dim for dim in range(error.dim()) if dim != record_dim]
    lengths: torch.Tensor = torch.linalg.vector_norm(error, dim=others) if others else error.abs()
    return lengths


# Refusals: layers after which no record has a gradient of its own, and what to use in their place.


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
    if isinstance(layer, _BatchNorm):
        channels = layer.num_features
        return (
            "normalises over the records of a batch, so that no record has a gradient of its own; replace it by "
            f"GroupNorm({gcd(channels, 32)}, {channels})"
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
