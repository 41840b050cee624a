"""Flat: all of a network's parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch._utils import _unflatten_dense_tensors


class Flat:
    """Where each of some tensors lies in the vector that holds them one after another; worked out once, used each step."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.sizes = [parameter.numel() for parameter in parameters]
        self.size = sum(self.sizes)
        self._starts = [0, *accumulate(self.sizes)]
        # Shapes alone: a parameter that moves elsewhere must not be kept where it was.
        self._like = [torch.empty(parameter.shape, device="meta") for parameter in parameters]

    @property
    def uniform(self) -> bool:
        """Whether all are of the first one's dtype and device, which are the vector's."""
        first = self.parameters[0]
        return all(p.dtype == first.dtype and p.device == first.device for p in self.parameters)

    def empty(self) -> torch.Tensor:
        """A vector with nothing in it yet, of the first tensor's dtype and device."""
        first = self.parameters[0]
        return torch.empty(self.size, dtype=first.dtype, device=first.device)

    def place(self, vector: torch.Tensor, index: int) -> torch.Tensor:
        """A view of a vector: where one of the tensors lies."""
        return vector.as_strided(self._like[index].shape, self._like[index].stride(), self._starts[index])

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector, one of each tensor's shape."""
        return list(_unflatten_dense_tensors(vector, self._like))
