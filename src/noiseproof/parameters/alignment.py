"""Alignment: do the networks' hidden units stand at the same places, or are they permuted?"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from noiseproof.parameters.collection import Collection

_COMPARED = 10
"""Networks that are compared with the first one."""
LIMIT = 0.1
"""From this share of disagreeing units on, networks look permuted."""


@dataclass(frozen=True)
class Disagreement:
    """The share of units of a network that are more like another unit of the first network than like their own."""

    share: float
    network: int
    """Which network, counted from 0, disagrees most."""

    @property
    def permuted(self) -> bool:
        """Whether a parameter's place seems to mean different things in different networks."""
        return self.share > LIMIT


def disagreement(collection: Collection) -> Disagreement:
    """The worst disagreement of the first networks with the very first, over all layers together.

    Units are compared by the cosine of their incoming weights. Networks from one initialisation agree nearly everywhere;
    of independent ones most units disagree.

    Formal guarantee
    ----------------
    None: it is measured on the networks, for the eyes of their owner.
    """
    kernels = [(name, shape) for name, shape in collection.layout.tensors if len(shape) >= 2 and shape[0] > 1]
    worst = Disagreement(0.0, 0)
    for network in range(1, min(len(collection), _COMPARED + 1)):
        wrong = units = 0
        for name, shape in kernels:
            place = collection.layout.slices[name]
            first, other = (
                torch.nn.functional.normalize(collection.rows[row, place].reshape(shape[0], -1).float(), dim=1)
                for row in (0, network)
            )
            alike = first @ other.T
            own = alike.diagonal()
            # Equal units (such as two of zeros) agree: only another one that is strictly more alike counts.
            wrong += int((alike.amax(1) > own + 1e-6).sum())
            units += shape[0]
        if units and wrong / units > worst.share:
            worst = Disagreement(wrong / units, network)
    return worst
