"""Layers that normalise each record by itself, then scale and shift: every entry of the weight acts at many places."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.gradients.engine.contribution import Explicit
from noiseproof.gradients.engine.rules.rule import PairRule, matched
from noiseproof.gradients.engine.tape import Contributions, Settle


def _settle_affine(
    module: nn.Module,
    normalised: Callable[[], torch.Tensor],
    reduce: Callable[[torch.Tensor], torch.Tensor],
    record_dim: int,
) -> Settle:
    """Contributions of y = w x^ + b, where `reduce` sums what one entry of w was applied to (records come first)."""

    def settle(error: torch.Tensor) -> Contributions:
        found: Contributions = []
        weight, bias = module.weight, getattr(module, "bias", None)
        for parameter, values in ((weight, lambda: error * normalised()), (bias, lambda: error)):
            if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                gradients = reduce(matched(values(), parameter.dtype).movedim(record_dim, 0))
                found.append((parameter, Explicit(gradients.reshape(-1, *parameter.shape))))
        return found

    return settle


class LayerNormRule(PairRule):
    """`nn.LayerNorm` and `nn.RMSNorm`: one weight a feature, used at every position."""

    module: nn.LayerNorm | nn.RMSNorm

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""
        layer = self.module
        shape = list(layer.normalized_shape)

        def normalised() -> torch.Tensor:
            if isinstance(layer, nn.RMSNorm):
                return F.rms_norm(activation, shape, None, layer.eps)
            return F.layer_norm(activation, shape, None, None, layer.eps)

        def over_positions(values: torch.Tensor) -> torch.Tensor:
            positions = tuple(range(1, values.dim() - len(shape)))
            return values.sum(positions) if positions else values

        return _settle_affine(layer, normalised, over_positions, self.record_dim)


class ChannelNormRule(PairRule):
    """`nn.GroupNorm` and `nn.InstanceNorm`: one weight a channel, used at every place."""

    module: nn.GroupNorm

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""
        layer = self.module
        groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else activation.shape[1]

        def over_places(values: torch.Tensor) -> torch.Tensor:
            return values.flatten(2).sum(2) if values.dim() > 2 else values

        return _settle_affine(
            layer, lambda: F.group_norm(activation, groups, None, None, layer.eps), over_places, self.record_dim
        )
