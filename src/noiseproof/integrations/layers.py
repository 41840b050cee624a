"""`fix`: put layers that keep records apart in the place of those that mix them, and say which."""

from __future__ import annotations

import logging
import math

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from noiseproof.errors import UnsupportedError

_LOGGER = logging.getLogger("noiseproof")


def fix(model: nn.Module) -> tuple[str, ...]:
    """Replace the layers of a model that no private training can have; call it before the optimizer is made.

    A batch normalisation becomes a `GroupNorm` with its scale and shift, since no record has a gradient of its own where
    it is normalised by others; an instance normalisation loses its running statistics. What a pretrained model knows by its
    batch statistics is lost: fine-tune longer, or freeze the part and put it into evaluation.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
        >>> fix(model)
        ('1: BatchNorm2d(64) became GroupNorm(32, 64)',)

    Args:
        model: The network, which is changed in place.

    Returns:
        What was changed, a sentence each; they are logged too.

    Raises:
        UnsupportedError: If the model itself is such a layer, so that there is no place to put another one.
    """
    changes = []
    for path, layer in list(model.named_modules()):
        if isinstance(layer, _BatchNorm):
            channels = layer.num_features
            other: nn.Module = nn.GroupNorm(math.gcd(channels, 32), channels, eps=layer.eps, affine=layer.affine)
            said = f"{path}: {type(layer).__name__}({channels}) became GroupNorm({math.gcd(channels, 32)}, {channels})"
        elif isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            other = type(layer)(layer.num_features, eps=layer.eps, affine=layer.affine)
            said = f"{path}: {type(layer).__name__} lost its running statistics"
        else:
            continue
        if not path:
            raise UnsupportedError("the model itself is the layer that mixes records; use a GroupNorm instead.")
        if layer.affine:
            with torch.no_grad():
                other.weight.copy_(layer.weight)  # type: ignore[operator]
                other.bias.copy_(layer.bias)  # type: ignore[operator]
        parent, _, name = path.rpartition(".")
        place = next(layer.parameters(), None)
        setattr(model.get_submodule(parent), name, other if place is None else other.to(place))
        changes.append(said)
        _LOGGER.warning("noiseproof.fix: %s", said)
    return tuple(changes)
