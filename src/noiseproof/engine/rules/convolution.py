"""Convolutions in one and two dimensions, and their transposes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine.contributions import Explicit
from noiseproof.engine.correlations import Correlations, Geometry
from noiseproof.engine.rules.rule import PairRule, matched
from noiseproof.engine.tape import Contributions, Settle


def _plane(tensor: torch.Tensor) -> torch.Tensor:
    """A sequence as an image of height 1; an image as it is."""
    return tensor.unsqueeze(-2) if tensor.dim() == 3 else tensor


def _pair(values: tuple[int, ...], height: int) -> tuple[int, int]:
    """(height, width) values, where a sequence has only the latter."""
    return (values[0], values[1]) if len(values) == 2 else (height, values[0])


class ConvolutionRule(PairRule):
    """`nn.Conv1d` and `nn.Conv2d` with any stride, padding, dilation and groups."""

    module: nn.Conv1d | nn.Conv2d

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""
        layer = self.module

        def settle(error: torch.Tensor) -> Contributions:
            inputs, padding = matched(activation, layer.weight.dtype), layer.padding
            sides = layer._reversed_padding_repeated_twice
            lopsided = isinstance(padding, str) and sides[::2] != sides[1::2]
            if layer.padding_mode != "zeros" or lopsided:
                mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
                inputs, padding = F.pad(inputs, sides, mode), (0,) * len(layer.kernel_size)
            elif isinstance(padding, str):
                padding = tuple(reversed(sides[::2]))
            return _contributions(layer, inputs, error, padding)

        return settle


class TransposedConvolutionRule(PairRule):
    """`nn.ConvTranspose1d` and `nn.ConvTranspose2d`: the same correlation with input and error changing places."""

    module: nn.ConvTranspose1d | nn.ConvTranspose2d

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""

        def settle(error: torch.Tensor) -> Contributions:
            return _contributions(self.module, activation, error, self.module.padding, transposed=True)

        return settle


def _contributions(
    layer: nn.modules.conv._ConvNd,
    inputs: torch.Tensor,
    error: torch.Tensor,
    padding: tuple[int, ...] | str,
    *,
    transposed: bool = False,
) -> Contributions:
    assert not isinstance(padding, str)
    weight, bias = layer.weight, layer.bias
    error = matched(error, weight.dtype)
    found: Contributions = []
    if weight.requires_grad:
        geometry = Geometry(
            _pair(layer.kernel_size, 1),
            _pair(layer.stride, 1),
            _pair(padding, 0),
            _pair(layer.dilation, 1),
            layer.groups,
        )
        moved, still = _plane(matched(inputs, weight.dtype)), _plane(error)
        if transposed:
            moved, still = still, moved
        found.append((weight, Correlations(moved, still, weight.shape, geometry)))
    if bias is not None and bias.requires_grad:
        found.append((bias, Explicit(error.flatten(2).sum(2))))
    return found
