"""Clipping: the sum of records' gradients, none longer than a norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._utils import _unflatten_dense_tensors

from noiseproof import kernels
from noiseproof.engine.contributions import Contribution
from noiseproof.engine.outer_products import matrix_product


def clip_weights(squared_norms: torch.Tensor, max_grad_norm: float, share: float = 1.0) -> torch.Tensor:
    """What each record's gradient is multiplied by, so that its norm is at most `clip`; `share` multiplies all alike.

    A hair below clip / norm, so that float32's rounding of the norm cannot push a record over. A record whose gradient
    is not finite has the weight 0 or NaN, with which it is left out of a weighted sum, since no factor could bound it.
    """
    return squared_norms.rsqrt().mul_(max_grad_norm * share * (1 - 1e-5)).clamp_max_(share)


def clipped_rows(
    contributions: Sequence[Contribution | None], flat: Flat, max_grad_norm: float, share: float
) -> torch.Tensor | None:
    """The sum of the clipped gradients as one vector, where every layer saw one row a record; None where not.

    A kernel does in one pass what norms, weights, products with them and sums of biases would in some twenty operations,
    which take longer than their arithmetic if a batch is small.
    """
    every = [() if part is None else part.rows for part in contributions]
    if not all(every) or not all(kernels.suit(*rows) for rows in every):
        return None
    layers: dict[int, kernels.Layer] = {}
    products: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    vector = flat.empty()
    for rows, place in zip(every, flat.places(vector), strict=True):
        errors = rows[0]
        # A weight and the bias beside it share their errors.
        layer = layers.setdefault(id(errors), kernels.Layer(errors))
        if len(rows) == 1 and layer.sums is None:
            layer.sums = place
        elif len(rows) == 2 and layer.activations is None:
            layer.activations, layer.scaled = rows[1], torch.empty_like(errors)
            products.append((layer.scaled, layer.activations, place))
        else:
            return None
    if not kernels.clip_layers(layers.values(), max_grad_norm, share):
        return None
    for product in products:
        matrix_product(*product)
    return vector


# Flat: all of a network's parameters as one vector, and back.


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
