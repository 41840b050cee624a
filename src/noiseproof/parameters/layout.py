"""Layout: where each of a network's tensors lies in one flat vector of all its parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from noiseproof.errors import DataError


@dataclass(frozen=True)
class Layout:
    """Names and shapes of a network's tensors, in the order in which they lie in its vector of parameters."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Layout:
        """The layout of such tensors."""
        return cls(tuple((name, tuple(value.shape)) for name, value in tensors.items()))

    @classmethod
    def of_module(cls, module: nn.Module) -> Layout:
        """The layout of a module's parameters."""
        return cls.of(dict(module.named_parameters()))

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Each tensor's place in the vector."""
        places, start = {}, 0
        for name, shape in self.tensors:
            places[name] = slice(start, start + math.prod(shape))
            start += math.prod(shape)
        return places

    @cached_property
    def size(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def layers(self) -> dict[str, slice]:
        """Each layer's place in the vector: tensors in a row whose names differ in their last part only, such as
        `0.weight` and `0.bias`."""
        places: dict[str, slice] = {}
        last = None
        for name, place in self.slices.items():
            layer = name.rpartition(".")[0] or name
            if layer == last:
                places[layer] = slice(places[layer].start, place.stop)
            else:
                # A name may come back after another layer's; it is then a layer of its own.
                places[layer if layer not in places else name] = place
            last = layer if layer in places and places[layer].stop == place.stop else None
        return places

    def flatten(self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor | None = None) -> torch.Tensor:
        """One network's tensors as a vector (of float32, or in `out`)."""
        vector = torch.empty(self.size) if out is None else out
        for (name, shape), place in zip(self.tensors, self.slices.values(), strict=True):
            if name not in tensors or tuple(tensors[name].shape) != shape:
                raise DataError(f"a network has no tensor {name!r} of shape {shape}; all must have one architecture.")
            vector[place] = tensors[name].detach().reshape(-1).to(vector)
        return vector

    def unflatten(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors of a vector, or of a stack of vectors (k, parameters), as copies."""
        return {
            name: vector[..., self.slices[name]].reshape(*vector.shape[:-1], *shape).clone()
            for name, shape in self.tensors
        }

    def module(self, template: nn.Module, vector: torch.Tensor) -> nn.Module:
        """`template` with the vector's values for parameters, in place."""
        with torch.no_grad():
            values = self.unflatten(vector)
            for name, parameter in template.named_parameters():
                parameter.copy_(values[name])
        return template
