"""Which network to try first for records of a shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noiseproof.networks.network import Network

if TYPE_CHECKING:
    from noiseproof.data.dataset import Kind


def suggest(shape: tuple[int, ...], classes: int, kind: Kind = "vector") -> Network:
    """A network that is a good start for such records: `small-cnn` for images, else `mlp`. Public facts decide."""
    if kind == "image" and len(shape) == 3:
        return Network("small-cnn", tuple(shape), classes)
    return Network("mlp", tuple(shape), classes)
