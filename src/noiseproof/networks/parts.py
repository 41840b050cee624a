"""Parts that several networks share: checks of shapes and options, activations, initialisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from noiseproof.errors import SettingError

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}


def activation(name: str) -> nn.Module:
    """The activation of that name."""
    if name not in _ACTIVATIONS:
        raise SettingError(f"there is no activation {name!r}; there are {', '.join(_ACTIVATIONS)}.")
    return _ACTIVATIONS[name]()


def flat(shape: tuple[int, ...], classes: int) -> int:
    """The number of features of a record of any shape."""
    if not shape or min(shape) < 1:
        raise SettingError(f"records of shape {tuple(shape)} have no features to learn from.")
    _check_classes(classes)
    return math.prod(shape)


def image(network: str, shape: tuple[int, ...], classes: int, smallest: int = 1) -> tuple[int, int, int]:
    """(channels, height, width) of the records, if they are images that the network can take."""
    if len(shape) != 3 or min(shape) < 1:
        raise SettingError(
            f"{network} needs images of shape (channels, height, width), not records of shape {tuple(shape)}; "
            "choose mlp or linear for those."
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise SettingError(f"{network} needs images of at least {smallest}x{smallest} pixels, not {height}x{width}.")
    _check_classes(classes)
    return channels, height, width


def positive(network: str, option: str, value: object) -> int:
    """The value of a size option, if it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"{network}'s option {option} must be a whole number of at least 1, not {value!r}.")
    return value


def sizes(network: str, option: str, value: object) -> tuple[int, ...]:
    """The value of an option that is one size or several."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(positive(network, option, size) for size in value)
    return (positive(network, option, value),)


def probability(network: str, option: str, value: object) -> float:
    """The value of an option that is a probability below 1, such as a dropout rate."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise SettingError(f"{network}'s option {option} must lie in [0, 1), not {value!r}.")
    return float(value)


def glorot(module: nn.Module) -> nn.Module:
    """Initialise as Keras does, with which most of the papers' networks were built: Glorot uniform, biases 0."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return module


def _check_classes(classes: int) -> None:
    if classes < 2:
        raise SettingError(f"a classifier needs at least 2 classes, not {classes}.")
