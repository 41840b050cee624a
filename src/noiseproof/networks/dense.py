"""Dense networks: `mlp`, `linear`, and `lu-mlp` (Lu et al., Table 4). Records of any shape are flattened first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from noiseproof.networks.network import register
from noiseproof.networks.parts import activation as activation_of
from noiseproof.networks.parts import flat, glorot, sizes


@register("mlp")
def mlp(
    input_shape: tuple[int, ...],
    classes: int,
    hidden: int | Sequence[int] = 128,
    activation: str = "tanh",
) -> nn.Module:
    """Dense layers of `hidden` units each; tanh by default: bounded activations keep clipped gradients small."""
    return _dense([flat(input_shape, classes), *sizes("mlp", "hidden", hidden), classes], activation)


@register("linear")
def linear(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Softmax regression: one dense layer."""
    return _dense([flat(input_shape, classes), classes], "tanh")


@register("lu-mlp")
def lu_mlp(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Lu et al.'s network: features - 128 tanh - classes, initialised as in Keras."""
    return glorot(_dense([flat(input_shape, classes), 128, classes], "tanh"))


def _dense(widths: list[int], activation: str) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths[:-1]):
        layers += [nn.Linear(fan_in, fan_out), activation_of(activation)]
    return nn.Sequential(*layers, nn.Linear(widths[-2], widths[-1]))
