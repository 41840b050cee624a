"""Network: a recipe from which the same module can be built again, here or from a bundle."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noiseproof.errors import SettingError

if TYPE_CHECKING:
    from noiseproof.data.dataset import Kind


_BUILDERS: dict[str, Callable[..., nn.Module]] = {}


def register(name: str) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Decorator: make `builder(input_shape, classes, **options) -> Module` available by name."""

    def add(builder: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        _BUILDERS[name] = builder
        return builder

    return add


def names() -> tuple[str, ...]:
    """Every network that can be built by name."""
    return tuple(_BUILDERS)


@dataclass(frozen=True)
class Network:
    """A named architecture for inputs of one shape: `build(seed)` makes it, with the same weights for the same seed.

    Modules map (batch, *input_shape) to (batch, classes) logits.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    """The user's own module, for `name="custom"`; a bundle of it needs the module again to be loaded."""

    @classmethod
    def of(cls, module: nn.Module, input_shape: tuple[int, ...], classes: int) -> Network:
        """A network around the user's own module, starting from the weights it has now."""
        return cls("custom", input_shape, classes, module=copy.deepcopy(module))

    def build(self, seed: int = 0) -> nn.Module:
        """A new module, initialised from `seed` (initialisation is public: it depends on no record)."""
        if self.name == "custom":
            if self.module is None:
                raise SettingError("this bundle holds a network of the user's own: pass the module to load it into.")
            return copy.deepcopy(self.module)
        if self.name not in _BUILDERS:
            raise SettingError(f"there is no network {self.name!r}; there are {', '.join(sorted(_BUILDERS))}.")
        builder = _BUILDERS[self.name]
        known = [option for option in inspect.signature(builder).parameters if option not in ("input_shape", "classes")]
        for option in self.options:
            if option not in known:
                raise SettingError(f"{self.name} has no option {option!r}; it has {', '.join(known) or 'none'}.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return builder(self.input_shape, self.classes, **self.options)


# Parts that several networks share: checks of shapes and options, activations, initialisation.


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


# Which network to try first for records of a shape.


_LEAST_SIDE = 16


def suggest(shape: tuple[int, ...], classes: int, kind: Kind = "vector") -> Network:
    """A network that is a good start for such records: `small-cnn` for images, else `mlp`. Public facts decide.

    Pictures of a few pixels have too little structure for convolutions to pay for their noise.
    """
    if kind == "image" and len(shape) == 3 and min(shape[1:]) >= _LEAST_SIDE:
        return Network("small-cnn", tuple(shape), classes)
    return Network("mlp", tuple(shape), classes)
