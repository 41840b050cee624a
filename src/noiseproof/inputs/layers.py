"""The layers of a network that is one chain, and what each of them is to relevances and to noise."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from noiseproof.errors import UnsupportedError
from noiseproof.inputs.normalisation import LocalResponse, MinMax

AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers with weights, each output a sum over inputs."""
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus)
PASSED = (*ACTIVATIONS, nn.Dropout, nn.Dropout2d, nn.Identity, nn.GroupNorm, nn.LayerNorm, LocalResponse, MinMax)
"""Layers that keep the number of units: a unit's relevance is that of the unit it came from."""
_KNOWN = (*AFFINE, *POOLS, *PASSED, nn.Flatten)


def chain(module: nn.Module) -> list[nn.Module]:
    """The layers in the order in which a record meets them; refused where the network is not one chain of known ones."""
    return list(_walk(module))


def _walk(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential):
        for layer in module:
            yield from _walk(layer)
    elif isinstance(module, _KNOWN):
        yield module
    else:
        raise UnsupportedError(
            f"relevances and noise at the inputs are defined for chains of dense, convolution and pooling layers, not for "
            f"{type(module).__name__}; give a torch Sequential of those."
        )


def last_hidden(module: nn.Module) -> int:
    """|h_k|: how many units the output layer reads."""
    last = [layer for layer in chain(module) if isinstance(layer, AFFINE)][-1]
    if not isinstance(last, nn.Linear):
        raise UnsupportedError(
            "the output layer must be a dense one for its loss to be a polynomial of the last units."
        )
    return last.in_features


def first_units(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """|h0| and the inputs of one unit of it, as the authors count them.

    A dense layer has its units, each reading every feature. A convolution counts once for every place of one feature map,
    after the pool that follows it where there is one, and a unit reads one patch: 14 x 14 and 25 for their MNIST network.
    """
    layers = chain(module)
    where = next(index for index, layer in enumerate(layers) if isinstance(layer, AFFINE))
    layer = layers[where]
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    later = (index for index in range(where + 1, len(layers)) if not isinstance(layers[index], PASSED))
    after = next(later, len(layers))
    # The pool belongs to h0; whatever else follows does not.
    stop = after + 1 if after < len(layers) and isinstance(layers[after], POOLS) else where + 1
    with torch.no_grad():
        units = nn.Sequential(*layers[:stop]).cpu()(torch.zeros(1, *shape))
    return math.prod(units.shape[2:]), layer.weight[0].numel()
