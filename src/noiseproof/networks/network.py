"""Network: a recipe from which the same module can be built again, here or from a bundle."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from noiseproof.errors import SettingError

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
