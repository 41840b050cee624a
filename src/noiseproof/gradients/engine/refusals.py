"""Refusals: layers after which no record has a gradient of its own, and what to use in their place."""

from __future__ import annotations

from math import gcd

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from noiseproof.errors import UnsupportedError


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
