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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from noiseproof.errors import DataError, NoiseproofError, SettingError

_ROWS = 1 << 24
"""Numbers that are looked at together."""


@dataclass(frozen=True, eq=False)
class Collection:
    """The parameters of M networks, a row each; `rows[:, j]` is the paper's slice theta[j].

    Formal guarantee
    ----------------
    None: the networks were trained without noise and stay on the trusted side.
    """

    rows: torch.Tensor = field(repr=False)
    layout: Layout = field(repr=False)
    done: torch.Tensor | None = field(default=None, repr=False)
    """For a file: which rows are finished, as bytes. None: all."""

    def __post_init__(self) -> None:
        if self.rows.ndim != 2 or self.rows.shape[1] != self.layout.size:
            raise DataError(
                f"a collection of networks of {self.layout.size} parameters is a matrix with as many columns."
            )

    @classmethod
    def of(cls, networks: Sequence[Mapping[str, torch.Tensor]], names: Sequence[str] | None = None) -> Collection:
        """Networks by their tensors, checked (`check`); `names` are what errors call them."""
        if not networks:
            raise DataError("there is no network; publishing needs at least 2.")
        layout = Layout.of(networks[0])
        rows = torch.empty(len(networks), layout.size)
        labels = _labels(len(networks), names)
        for row, network, label in zip(rows, networks, labels, strict=True):
            if dict(Layout.of(network).tensors) != dict(layout.tensors):
                raise DataError(
                    f"{label} does not have the tensors of {labels[0]} ({_difference(layout, Layout.of(network))}); "
                    "all networks must have one architecture."
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
        differs = False
        for row, label in zip(self.rows, labels, strict=True):
            for part in row.split(_ROWS):
                if not bool(torch.isfinite(part).all()):
                    raise DataError(
                        f"{label} has weights that are NaN or infinite; leave it out or train it again with a smaller "
                        "learning rate."
                    )
            differs = differs or not torch.equal(row, self.rows[0])
        if not differs:
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
    def create(cls, path: Path, models: int, layout: Layout, belongs: Mapping[str, Any]) -> Collection:
        """A new file of unfinished rows, memory-mapped and writable; `belongs` says what it is a collection of."""
        size = 4 * models * layout.size
        header = {
            "__metadata__": {"layout": json.dumps(layout.tensors), "belongs": json.dumps(belongs, sort_keys=True)},
            "parameters": {"dtype": "F32", "shape": [models, layout.size], "data_offsets": [0, size]},
            "done": {"dtype": "U8", "shape": [models], "data_offsets": [size, size + models]},
        }
        text = json.dumps(header).encode()
        text += b" " * (-(8 + len(text)) % 8)  # numbers begin at a multiple of eight, as safetensors wants it
        path.parent.mkdir(parents=True, exist_ok=True)
        staging = path.with_name(f".{path.name}.new")
        with staging.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + size + models)
        staging.replace(path)
        return cls.open(path, writable=True)

    @classmethod
    def open(cls, path: Path, *, writable: bool = False, belongs: Mapping[str, Any] | None = None) -> Collection:
        """A collection's file, memory-mapped; refused where it is not one, or belongs to something else."""
        try:
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                header = json.loads(file.read(length)) if length < 1 << 28 else {}
            layout = Layout(tuple((name, tuple(shape)) for name, shape in json.loads(header["__metadata__"]["layout"])))
            models, parameters = header["parameters"]["shape"]
            begin, size = 8 + length, 4 * models * parameters
            if header["parameters"]["dtype"] != "F32" or path.stat().st_size != begin + size + models:
                raise ValueError("truncated")
            theirs = header["__metadata__"]["belongs"]
        except (OSError, struct.error, ValueError, KeyError, TypeError):
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


def _difference(one: Layout, other: Layout) -> str:
    ours, theirs = dict(one.tensors), dict(other.tensors)
    name = next(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
    return f"{name} is {_shape(theirs.get(name))} rather than {_shape(ours.get(name))}"


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "x".join(map(str, shape)) or "a number"


# Layout: where each of a network's tensors lies in one flat vector of all its parameters.


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


# Alignment: do the networks' hidden units stand at the same places, or are they permuted?


_COMPARED = 10
"""Networks that are compared with the first one."""
LIMIT = 0.1
"""From this share of disagreeing units on, networks look permuted."""


@dataclass(frozen=True)
class Disagreement:
    """The share of units of a network that are more like another unit of the first network than like their own."""

    share: float
    network: int
    """Which network, counted from 0, disagrees most."""

    @property
    def permuted(self) -> bool:
        """Whether a parameter's place seems to mean different things in different networks."""
        return self.share > LIMIT


def disagreement(collection: Collection) -> Disagreement:
    """The worst disagreement of the first networks with the very first, over all layers together.

    Units are compared by the cosine of their incoming weights. Networks from one initialisation agree nearly everywhere;
    of independent ones most units disagree.

    Formal guarantee
    ----------------
    None: it is measured on the networks, for the eyes of their owner.
    """
    kernels = [(name, shape) for name, shape in collection.layout.tensors if len(shape) >= 2 and shape[0] > 1]
    worst = Disagreement(0.0, 0)
    for network in range(1, min(len(collection), _COMPARED + 1)):
        wrong = units = 0
        for name, shape in kernels:
            place = collection.layout.slices[name]
            first, other = (
                torch.nn.functional.normalize(collection.rows[row, place].reshape(shape[0], -1).float(), dim=1)
                for row in (0, network)
            )
            alike = first @ other.T
            own = alike.diagonal()
            # Equal units (such as two of zeros) agree: only another one that is strictly more alike counts.
            wrong += int((alike.amax(1) > own + 1e-6).sum())
            units += shape[0]
        if units and wrong / units > worst.share:
            worst = Disagreement(wrong / units, network)
    return worst
