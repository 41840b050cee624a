"""Collection: M networks of one architecture as the rows of one matrix, in memory or in a memory-mapped file.

The file is an ordinary safetensors file at all times: `parameters` (M, N) float32 and `done` (M,) bytes, one for each
row that is finished, so that a training that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.parameters.layout import Layout

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
