"""Hidden units bounded to [0, 1]: eq. 22's local response normalisation and min-max, and a network that has them."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class LocalResponse(nn.Module):
    """Eq. 22 of Phan et al.: a unit over the larger of itself and (q + alpha * its neighbours' squares) ^ beta.

    The neighbours are the units at the same place in the `length` feature maps around. What is not negative becomes at
    most 1. The defaults are the paper's.
    """

    def __init__(self, q: float = 2.0, length: int = 5, alpha: float = 1e-4, beta: float = 0.75) -> None:
        super().__init__()
        self.q, self.length, self.alpha, self.beta = q, length, alpha, beta

    def forward(self, units: torch.Tensor) -> torch.Tensor:
        """The bounded units, of (records, maps, ...)."""
        reach = self.length // 2
        squares = units.square().flatten(2).unsqueeze(1)
        window = (2 * reach + 1, 1)
        total = functional.avg_pool2d(squares, window, stride=1, padding=(reach, 0)) * window[0]
        around = (self.q + self.alpha * total.squeeze(1).view_as(units)) ** self.beta
        return units / torch.maximum(units, around)


class MinMax(nn.Module):
    """Each unit of a dense layer moved and stretched to [0, 1] by its extremes over the batch, as in the paper.

    In evaluation the extremes are those of the last batch that was seen in training, and what lies beyond them is cut off:
    a record's answer does not depend on the others that it is asked with. A unit that is the same for all is 0.
    """

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, units: int) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(units))
        self.register_buffer("high", torch.ones(units))

    def forward(self, units: torch.Tensor) -> torch.Tensor:
        """The bounded units, of (records, units)."""
        low, high = self.low, self.high
        if self.training:
            low, high = units.amin(0), units.amax(0)
            with torch.no_grad():
                self.low.copy_(low)
                self.high.copy_(high)
        span = (high - low).clamp(min=torch.finfo(units.dtype).eps)
        return ((units - low) / span).clamp(0, 1)


def bounded(module: nn.Module) -> nn.Module:
    """The network with a normalisation after every hidden activation: eq. 22 after convolutions, min-max after dense layers."""
    from noiseproof.inputs.layers import ACTIVATIONS, AFFINE, chain

    layers: list[nn.Module] = []
    units = 0
    for layer in chain(module):
        layers.append(layer)
        if isinstance(layer, AFFINE):
            units = layer.out_features if isinstance(layer, nn.Linear) else 0
        elif isinstance(layer, ACTIVATIONS):
            layers.append(MinMax(units) if units else LocalResponse())
    return nn.Sequential(*layers)
