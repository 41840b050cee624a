"""Collection: M networks of one architecture as the rows of one matrix, in memory or in a memory-mapped file.

The file is an ordinary safetensors file at all times: `parameters` (M, N) float32 and `done` (M,) bytes, one for each
row that is finished, so that a training that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize

from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.files import whole_file
from noiseproof.tensors import all_finite

_ROWS = 1 << 24
"""Numbers that are looked at together."""


@dataclass(frozen=True, eq=False)
class Collection:
    """The parameters of M networks, a row each; `rows[:, j]` is the paper's slice theta[j].

    Formal guarantee
    ----------------
    None: the networks were trained without noise and stay on the trusted side.

    Examples:
        >>> import torch
        >>> from noiseproof.methods.parameters import Collection
        >>> collection = Collection.of([torch.nn.Linear(4, 2).state_dict() for _ in range(3)])
        >>> len(collection), collection.parameters
        (3, 10)
        >>> collection.mean().shape
        torch.Size([10])
    """

    rows: torch.Tensor = field(repr=False)
    """The parameters, (M, N) of float32."""
    layout: ParameterLayout = field(repr=False)
    """Which tensor of the network each column belongs to."""
    done: torch.Tensor | None = field(default=None, repr=False)
    """For a file: which rows are finished, as bytes. None: all."""

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.shape[1] != self.layout.size:
            raise DataError(
                f"a collection of networks of {self.layout.size} parameters is a matrix with as many columns."
            )

    @classmethod
    def of(cls, networks: Sequence[Mapping[str, torch.Tensor]], names: Sequence[str] | None = None) -> Collection:
        """A collection of trained networks.

        Args:
            networks: Each network's tensors by name, such as its `state_dict()`; all must have the same names and shapes.
            names: What errors call the networks; by default they are numbered.

        Returns:
            The collection, in memory.

        Raises:
            DataError: If the networks differ in architecture, or nothing can be published from them (`check`).
        """
        if not networks:
            raise DataError("there is no network; publishing needs at least 2.")
        layout, labels = ParameterLayout.of(networks[0]), _labels(len(networks), names)
        shapes = dict(layout.tensors)
        rows = torch.empty(len(networks), layout.size)
        for row, network, label in zip(rows, networks, labels, strict=True):
            theirs = dict(ParameterLayout.of(network).tensors)
            if theirs != shapes:
                name = next(name for name in {**shapes, **theirs} if shapes.get(name) != theirs.get(name))
                raise DataError(
                    f"{label} does not have the tensors of {labels[0]} ({name} is {_shape(theirs.get(name))} rather than "
                    f"{_shape(shapes.get(name))}); all networks must have one architecture."
                )
            layout.flatten(network, out=row)
        return cls(rows, layout).check(names)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def parameters(self) -> int:
        """The number of parameters of each network."""
        return self.layout.size

    def check(self, names: Sequence[str] | None = None) -> Collection:
        """This collection, if it can be published from: finished, 2 networks and more, finite, not all equal."""
        labels = _labels(len(self), names)
        if len(self) < 2:
            raise DataError("one network alone has no distribution to draw from; publishing needs at least 2.")
        if self.done is not None and not bool(self.done.all()):
            raise DataError("the collection is not finished; take its training up again first.")
        for row, label in zip(self.rows, labels, strict=True):
            if not all_finite(row):
                raise DataError(
                    f"{label} has weights that are NaN or infinite; leave it out or train it again with a smaller "
                    "learning rate."
                )
        if all(torch.equal(row, self.rows[0]) for row in self.rows):
            raise DataError(
                "the networks are all equal, so that there is no spread to draw from; train them with other orders of "
                "batches."
            )
        return self

    def mean(self) -> torch.Tensor:
        """The mean network, (N,): the paper's averaged model. Summed in float64, a part at a time."""
        part = max(1, _ROWS // len(self))
        return torch.cat([block.double().mean(0).float() for block in self.rows.split(part, dim=1)])

    @classmethod
    def create(cls, path: Path, models: int, layout: ParameterLayout, belongs: Mapping[str, Any]) -> Collection:
        """A new file of unfinished rows.

        Args:
            path: Where to write it.
            models: How many networks it is to hold.
            layout: That of their parameters.
            belongs: What it is a collection of, for `open` to compare.

        Returns:
            The collection, memory-mapped and writable.
        """
        size = 4 * models * layout.size
        header = {
            "__metadata__": {"layout": json.dumps(layout.tensors), "belongs": json.dumps(belongs, sort_keys=True)},
            "parameters": {"dtype": "F32", "shape": [models, layout.size], "data_offsets": [0, size]},
            "done": {"dtype": "U8", "shape": [models], "data_offsets": [size, size + models]},
        }
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 8)  # numbers begin at a multiple of eight, as safetensors wants it
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + size + models)
        return cls.open(path, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False, belongs: Mapping[str, Any] | None = None) -> Collection:
        """A collection's file.

        Args:
            path: Where it is.
            writable: Whether what is written to the rows goes to the file.
            belongs: What it must be a collection of, as `create` was told; None takes any.

        Returns:
            The collection, memory-mapped.

        Raises:
            NoiseproofError: If the file is not a whole collection.
            SettingError: If it belongs to something else.
        """
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length)) if length < 1 << 28 else {}
            layout = ParameterLayout(
                tuple((name, tuple(shape)) for name, shape in json.loads(header["__metadata__"]["layout"]))
            )
            models, parameters = header["parameters"]["shape"]
            begin, size = 8 + length, 4 * models * parameters
            if header["parameters"]["dtype"] != "F32" or path.stat().st_size != begin + size + models:
                raise ValueError("truncated")
            theirs = header["__metadata__"]["belongs"]
        except (OSError, struct.error, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise NoiseproofError(f"{path} is not a whole collection of networks; delete it and train again.") from None
        if belongs is not None and theirs != json.dumps(belongs, sort_keys=True):
            raise SettingError(
                f"{path} is a collection from other records or settings; choose another file, or delete it."
            )
        # "c" keeps what a reader writes to itself; torch has no read-only tensors.
        bytes_ = np.memmap(path, dtype=np.uint8, mode="r+" if writable else "c")
        rows = torch.from_numpy(bytes_[begin : begin + size].view(np.float32).reshape(models, parameters))
        return cls(rows, layout, torch.from_numpy(bytes_[begin + size :]))

    def save(self, path: Path) -> Path:
        """Write a collection that is in memory to a file that `open` reads."""
        kept = Collection.create(path, len(self), self.layout, {})
        kept.rows.copy_(self.rows)
        assert kept.done is not None
        kept.done.fill_(1)
        return path


def _labels(count: int, names: Sequence[str] | None) -> list[str]:
    return list(names) if names is not None else [f"network {index + 1}" for index in range(count)]


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "x".join(map(str, shape)) or "a number"


@dataclass(frozen=True)
class ParameterLayout:
    """Names and shapes of a network's tensors, in the order in which they lie in one flat vector of its parameters."""

    tensors: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, network: nn.Module | Mapping[str, torch.Tensor]) -> ParameterLayout:
        """The layout of a module's parameters, or of tensors by name."""
        return cls(tuple((name, tuple(value.shape)) for name, value in _tensors(network).items()))

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each tensor lies in the vector."""
        ends = accumulate((math.prod(shape) for _, shape in self.tensors), initial=0)
        return {name: slice(*ends) for (name, _), ends in zip(self.tensors, pairwise(ends), strict=True)}

    @cached_property
    def size(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def layers(self) -> dict[str, slice]:
        """Where each layer lies in the vector: tensors in a row whose names differ in their last part only, such as
        `0.weight` and `0.bias`."""
        layers: dict[str, slice] = {}
        for layer, group in groupby(self.slices, lambda name: name.rpartition(".")[0] or name):
            names = list(group)
            # A name may come back after another layer's; it is then a layer of its own.
            layers[names[0] if layer in layers else layer] = slice(
                self.slices[names[0]].start, self.slices[names[-1]].stop
            )
        return layers

    def flatten(self, network: nn.Module | Mapping[str, torch.Tensor], out: torch.Tensor | None = None) -> torch.Tensor:
        """One network's tensors as a vector (of float32, or in `out`)."""
        vector, tensors = torch.empty(self.size) if out is None else out, _tensors(network)
        for name, shape in self.tensors:
            if name not in tensors or tuple(tensors[name].shape) != shape:
                raise DataError(f"a network has no tensor {name!r} of shape {shape}; all must have one architecture.")
            vector[self.slices[name]] = tensors[name].detach().reshape(-1).to(vector)
        return vector

    def unflatten(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors of a vector, or of a stack of vectors (k, parameters), as copies."""
        return {
            name: vector[..., self.slices[name]].reshape(*vector.shape[:-1], *shape).clone()
            for name, shape in self.tensors
        }

    def load(self, module: nn.Module, vector: torch.Tensor) -> nn.Module:
        """`module` with the vector's values for parameters, in place."""
        with torch.no_grad():
            values = self.unflatten(vector)
            for name, parameter in module.named_parameters():
                parameter.copy_(values[name])
        return module


def _tensors(network: nn.Module | Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    return dict(network.named_parameters()) if isinstance(network, nn.Module) else network


_COMPARED = 10
"""Networks that are compared with the first one."""


def disagreement(collection: Collection) -> tuple[float, int]:
    """The largest share of a network's units that are more like another unit of the first network than like their own.

    Units are compared by the cosine of their incoming weights, over all layers together. Networks from one
    initialisation agree nearly everywhere; of independent ones most units disagree.

    Returns:
        The share, and which of the first ten networks, counted from 0, it is that disagrees most.

    Formal guarantee
    ----------------
    None: it is measured on the networks, for the eyes of their owner.
    """
    kernels = [(name, shape) for name, shape in collection.layout.tensors if len(shape) >= 2 and shape[0] > 1]
    units = sum(shape[0] for _, shape in kernels)
    worst = (0.0, 0)
    for network in range(1, min(len(collection), _COMPARED + 1)):
        wrong = 0
        for name, shape in kernels:
            first, other = (
                normalize(collection.rows[row, collection.layout.slices[name]].reshape(shape[0], -1).float(), dim=1)
                for row in (0, network)
            )
            alike = first @ other.T
            # Equal units (such as two of zeros) agree: only another one that is strictly more alike counts.
            wrong += int((alike.amax(1) > alike.diagonal() + 1e-6).sum())
        if units and wrong / units > worst[0]:
            worst = (wrong / units, network)
    return worst
