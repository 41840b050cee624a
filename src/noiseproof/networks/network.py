"""Network, from which the same module can be built again, here or from a bundle; the register; parts that networks share."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from noiseproof.errors import SettingError
from noiseproof.plugins import load_plugins
from noiseproof.settings import adapters, read
from noiseproof.tensors import seeded

if TYPE_CHECKING:
    from noiseproof.data.dataset import Kind


_BUILDERS: dict[str, Callable[..., nn.Module]] = {}
_GIVEN = ("input_shape", "classes", "return")


def register(name: str) -> Callable[[Callable[..., nn.Module]], Callable[..., nn.Module]]:
    """Decorator that makes a network available by name.

    Args:
        name: A name that no other network has. A bundle holds it: whoever loads one must have registered the network, by
            importing its module or by an entry point of the group `noiseproof.networks`.

    Returns:
        A decorator of `builder(input_shape, classes, **options) -> Module`, whose options are checked by its annotations.

    Raises:
        ValueError: If another network has the name.

    Examples:
        >>> from torch import nn
        >>> from noiseproof.networks import Network, register
        >>> @register("two-units")
        ... def two_units(input_shape: tuple[int, ...], classes: int, bias: bool = True) -> nn.Module:
        ...     return nn.Sequential(nn.Flatten(), nn.LazyLinear(2, bias=bias), nn.Linear(2, classes))
        >>> Network("two-units", (5,), 3).build()[2].out_features
        3
    """

    def add(builder: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        if name in _BUILDERS:
            raise ValueError(f"two networks are named {name!r}")
        _BUILDERS[name] = builder
        return builder

    return add


def names() -> tuple[str, ...]:
    """Every network that can be built by name: the library's, and those of installed packages.

    Returns:
        What `Network` takes as its name.

    Examples:
        >>> from noiseproof.networks import names
        >>> "mlp" in names(), "small-cnn" in names()
        (True, True)
    """
    load_plugins("noiseproof.networks")
    return tuple(_BUILDERS)


@dataclass(frozen=True)
class Network:
    """A named architecture for inputs of one shape: `build(seed)` makes it, with the same weights for the same seed.

    Modules map (batch, *input_shape) to (batch, classes) logits.

    Examples:
        >>> import torch
        >>> from noiseproof.networks import Network
        >>> network = Network("mlp", input_shape=(64,), classes=10, options={"hidden": 32})
        >>> network.build(seed=0)(torch.zeros(5, 64)).shape
        torch.Size([5, 10])
        >>> own = Network.of(torch.nn.Linear(64, 10), input_shape=(64,), classes=10)
    """

    name: str
    """One of `names()`, or `custom` for a module of the user's own (`Network.of`)."""
    input_shape: tuple[int, ...]
    """One record's shape, without the batch."""
    classes: int
    """The number of outputs (`Public.outputs`), which is 1 for a numeric target."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the named network, such as `hidden` of `mlp`; they are checked when it is built."""
    module: nn.Module | None = field(default=None, repr=False, compare=False)
    """The user's own module, for `name="custom"`; a bundle of it needs the module again to be loaded."""

    @classmethod
    def of(cls, module: nn.Module, input_shape: tuple[int, ...], classes: int) -> Network:
        """A network around the user's own module, starting from the weights it has now.

        Args:
            module: The module; it is copied.
            input_shape: One record's shape, without the batch.
            classes: The number of its outputs.

        Returns:
            The network.
        """
        return cls("custom", input_shape, classes, module=copy.deepcopy(module))

    def build(self, seed: int | None = 0) -> nn.Module:
        """A new module; it depends on no record.

        Args:
            seed: What its weights are initialised from; None takes torch's generator as it is. The user's own module is
                copied with its weights instead.

        Returns:
            The module.

        Raises:
            SettingError: If there is no such network or option, or it cannot take records of this shape.
        """
        if self.name == "custom":
            if self.module is None:
                raise SettingError("this bundle holds a network of the user's own: pass the module to load it into.")
            return copy.deepcopy(self.module)
        if self.name not in names():
            raise SettingError(f"there is no network {self.name!r}; there are {', '.join(sorted(_BUILDERS))}.")
        builder = _BUILDERS[self.name]
        known = {name: adapter for name, adapter in adapters(builder).items() if name not in _GIVEN}
        options = {}
        for name, value in self.options.items():
            if name not in known:
                raise SettingError(f"{self.name} has no option {name!r}; it has {', '.join(known) or 'none'}.")
            options[name] = read(self.name, name, value, known[name])
        with nullcontext() if seed is None else seeded(seed):
            return builder(self.input_shape, self.classes, **options)


Activation = Literal["tanh", "relu", "elu", "gelu", "sigmoid", "softplus"]
ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}


def flat(shape: tuple[int, ...], classes: int) -> int:
    """The number of features of a record of any shape."""
    if not shape or min(shape) < 1:
        raise SettingError(f"records of shape {tuple(shape)} have no features to learn from.")
    check_classes(classes)
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
    check_classes(classes)
    return channels, height, width


Start = Literal["glorot", "truncated-normal", "normal", "torch", "zeros"]
"""Initial weights. `glorot`: Glorot uniform and biases 0, as in Keras. `truncated-normal`: normal with a deviation of .1, cut
off at twice that, and biases .1, as in TensorFlow's tutorials of 2016. `normal`: weights and biases standard normal, as in the
TensorFlow examples of the time. `torch`: as torch makes its layers. `zeros`: all 0, from which a linear network learns."""


def started(module: nn.Module, start: Start) -> nn.Module:
    """The module with such initial weights; the papers say nothing of theirs, and results depend on them."""
    for layer in module.modules():
        if start == "torch" or not isinstance(layer, nn.Linear | nn.Conv2d):
            continue
        if start == "truncated-normal":
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
        elif start == "normal":
            nn.init.normal_(layer.weight)
        else:
            nn.init.zeros_(layer.weight) if start == "zeros" else nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None and start == "normal":
            nn.init.normal_(layer.bias)
        elif layer.bias is not None:
            nn.init.constant_(layer.bias, 0.1 if start == "truncated-normal" else 0.0)
    return module


def check_classes(classes: int) -> None:
    """Refuse a network without outputs; one output is that of a regression."""
    if classes < 1:
        raise SettingError(f"a network needs at least 1 output, not {classes}.")


_LEAST_SIDE = 16


def suggest(shape: tuple[int, ...], classes: int, kind: Kind = "vector") -> Network:
    """A network that is a good start for such records: `small-cnn` for images, else `mlp`. Public facts decide.

    Pictures of a few pixels (a side below 16) have too little structure for convolutions to pay for their noise.

    Args:
        shape: One record's shape, without the batch.
        classes: The number of outputs.
        kind: What a record is: `image`, `table` or `vector`.

    Returns:
        The network.

    Examples:
        >>> from noiseproof.networks import suggest
        >>> suggest((1, 28, 28), 10, kind="image").name
        'small-cnn'
        >>> suggest((30,), 2).name
        'mlp'
    """
    if kind == "image" and len(shape) == 3 and min(shape[1:]) >= _LEAST_SIDE:
        return Network("small-cnn", tuple(shape), classes)
    return Network("mlp", tuple(shape), classes)
