"""Flat: all of a network's parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._utils import _unflatten_dense_tensors


class Flat:
    """Where each of some tensors lies in the vector that holds them one after another; worked out once, used each step."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.sizes = [parameter.numel() for parameter in parameters]
        self.size = sum(self.sizes)
        # Shapes alone: a parameter that moves elsewhere must not be kept where it was.
        self._last: tuple[torch.Tensor, list[torch.Tensor]] | None = None
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

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector, one of each tensor's shape."""
        last, self._last = self._last, None
        return last[1] if last is not None and last[0] is vector else list(_unflatten_dense_tensors(vector, self._like))

    def places(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """As `split`, for a vector that is filled now and split next."""
        views = self.split(vector)
        self._last = vector, views
        return views
