"""Which network to try first for records of a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noiseproof.networks.network import Network

if TYPE_CHECKING:
    from noiseproof.data.dataset import Kind


_LEAST_SIDE = 16


def suggest(shape: tuple[int, ...], classes: int, kind: Kind = "vector") -> Network:
    """A network that is a good start for such records: `small-cnn` for images, else `mlp`. Public facts decide.

    Pictures of a few pixels have too little structure for convolutions to pay for their noise.
    """
    if kind == "image" and len(shape) == 3 and min(shape[1:]) >= _LEAST_SIDE:
        return Network("small-cnn", tuple(shape), classes)
    return Network("mlp", tuple(shape), classes)
