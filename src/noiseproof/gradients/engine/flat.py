"""Flat: all of a network's parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Flat:
    """Where each of some tensors lies in the vector that holds them one after another; worked out once, used each step."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.sizes = [parameter.numel() for parameter in parameters]
        self.size = sum(self.sizes)
        self._shapes = [parameter.shape for parameter in parameters]
        self._matrix = [parameter.dim() != 1 for parameter in parameters]

    @property
    def uniform(self) -> bool:
        """Whether all are of the first one's dtype and device, which are the vector's."""
        first = self.parameters[0]
        return all(p.dtype == first.dtype and p.device == first.device for p in self.parameters)

    def empty(self) -> torch.Tensor:
        """A vector with nothing in it yet, of the first tensor's dtype and device."""
        return self.parameters[0].detach().new_empty(self.size)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector, one of each tensor's shape."""
        parts = vector.split_with_sizes(self.sizes)
        each = zip(parts, self._shapes, self._matrix, strict=True)
        return [part.view(shape) if reshape else part for part, shape, reshape in each]
