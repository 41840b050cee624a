"""Clipping: the sum of records' gradients, none longer than a norm."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from noiseproof import kernels
from noiseproof.gradients.engine.contribution import Contribution
from noiseproof.gradients.engine.flat import Flat
from noiseproof.gradients.engine.outer_products import matrix_product


def clip_weights(squared_norms: torch.Tensor, clip: float, share: float = 1.0) -> torch.Tensor:
    """What each record's gradient is multiplied by, so that its norm is at most `clip`; `share` multiplies all alike.

    A hair below clip / norm, so that float32's rounding of the norm cannot push a record over. A record whose gradient
    is not finite has the weight 0 or NaN, with which it is left out of a weighted sum, since no factor could bound it.
    """
    return squared_norms.rsqrt().mul_(clip * share * (1 - 1e-5)).clamp_max_(share)


def clipped_rows(
    contributions: Sequence[Contribution | None], flat: Flat, clip: float, share: float
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
    if not kernels.clip_layers(layers.values(), clip, share):
        return None
    for product in products:
        matrix_product(*product)
    return vector
