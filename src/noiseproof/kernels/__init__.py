"""Compiled kernels: chains of small operations made one, for numbers in the processor's memory (float32, if not said otherwise).

Each does what a few lines of torch beside its caller do, and the caller takes those where no kernel was built (there was
no C compiler when the package was installed) or the numbers are of another kind. They share torch's own threads. The
environment variable NOISEPROOF_KERNELS=off leaves them alone.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


_VERSION = 3
"""That of kernels.h: in a checkout the library may have been built from older sources."""


def _load() -> Any:
    if os.environ.get("NOISEPROOF_KERNELS") == "off":
        return None
    try:
        found = import_module("noiseproof.kernels._compiled")
    except ImportError:
        return None
    return found if getattr(found, "VERSION", None) == _VERSION else None


compiled = _load()
"""The compiled functions, or None."""

RECENT = hasattr(compiled, "lstm_forward")
"""Whether persons can be clipped and LSTMs run: a library that was built before has everything else."""

MOST_CLASSES: int = 0 if compiled is None else compiled.MOST_CLASSES
"""How many classes `answers` takes."""


def suit(*tensors: torch.Tensor) -> bool:
    """Whether there are kernels, and these tensors are what they take: float32 on the processor, without gaps."""
    if compiled is None:
        return False
    for tensor in tensors:  # noqa: SIM110 -- asked several times a step, where `all` takes three times as long
        if not (tensor.dtype == torch.float32 and tensor.is_cpu and tensor.is_contiguous()):
            return False
    return True


def add_normals(value: torch.Tensor, key: bytes, call: int, scale: float, out: torch.Tensor) -> bool:
    """`out` becomes `value` plus normals of that scale, from the bits of that key and call; False if a value is not finite."""
    finite: bool = compiled.add_normals(key, call, value.data_ptr(), out.data_ptr(), value.numel(), scale)
    return finite


def add_law(
    key: bytes,
    law: tuple[Any, ...],
    tail: tuple[Any, ...],
    value: torch.Tensor,
    out: torch.Tensor,
    blocks: int,
    step: float,
) -> list[int] | None:
    """`out` becomes `value` on the lattice of that step plus draws of a law (`discrete_noise.AtScale.packed`), by blocks.

    Float32 or float64. The result has the blocks that were left alone, since float64 could not decide a draw; None if a
    value is not finite.
    """
    failed = np.empty(blocks, dtype=np.int64)
    wide = value.dtype == torch.float64
    place = value.data_ptr(), out.data_ptr(), wide, value.numel()
    failures: int = compiled.add_law(key, law, tail, *place, blocks, step, failed.ctypes.data)
    return failed[:failures].tolist() if failures >= 0 else None


def propose_each(
    random: Words,
    scale: Reals,
    ends: tuple[Reals, Reals],
    accept_below: Words,
    mask: int,
    drawn: Integers,
    undecided: Integers,
) -> int:
    """`discrete_noise.sample`'s proposals with a scale a draw: how many the first bits leave undecided, and which.

    Their indices begin `undecided`; `ends` are in units of the scale.
    """
    addresses = (array.ctypes.data for array in (scale, *ends, accept_below))
    outputs = drawn.ctypes.data, undecided.ctypes.data
    found: int = compiled.propose_each(random.ctypes.data, random.size, *addresses, mask, *outputs)
    return found


def add_on_lattice(value: Floats, noise: Integers, steps: float | Reals, out: Floats) -> bool:
    """`out` becomes `value` rounded to multiples of a step (or of one each) plus `noise` of them; False if no kernel suits."""
    wide = value.dtype == np.float64
    suits = value.dtype == out.dtype and (wide or value.dtype == np.float32)
    if compiled is None or not (suits and value.flags.c_contiguous and out.flags.c_contiguous):
        return False
    each = not isinstance(steps, float)
    at = np.ascontiguousarray(steps, dtype=np.float64)
    given = (value.ctypes.data, noise.ctypes.data, noise.size, at.ctypes.data, each, out.ctypes.data)
    compiled.add_on_lattice(*given, wide)
    return True


class Layer:
    """A layer that saw one row a record: errors and activations give its weight's gradients, errors its bias's."""

    __slots__ = ("activations", "errors", "scaled", "sums")

    def __init__(self, errors: torch.Tensor) -> None:
        self.errors = errors
        self.activations: torch.Tensor | None = None
        """None if the weight is not trained."""
        self.scaled: torch.Tensor | None = None
        """Where the clipped errors go, of which the weight's sum is made."""
        self.sums: torch.Tensor | None = None
        """Where the sum of the clipped errors goes, which is the bias's; None if no bias is trained."""

    def addresses(self) -> tuple[int, int, int, int, int, int]:
        """The fields of kernels.h's Layer."""
        errors, activations, scaled, sums = self.errors, self.activations, self.scaled, self.sums
        start, width = (0, 0) if activations is None else (activations.data_ptr(), activations.shape[1])
        scaled_start = 0 if scaled is None else scaled.data_ptr()
        return errors.data_ptr(), errors.shape[1], start, width, scaled_start, 0 if sums is None else sums.data_ptr()


def clip_layers(layers: Collection[Layer], clip: float, share: float, ends: torch.Tensor | None = None) -> bool:
    """Scale every record's errors so that its gradient over all layers has the norm `clip` at most, then by `share`.

    With `ends` (int64) it is a person's gradient that has: the sum of those of the records up to there. False if a gradient is
    not finite, or there are too many layers: then nothing was made.
    """
    if len(layers) > compiled.MOST_LAYERS:
        return False
    records = next(iter(layers)).errors.shape[0]
    weights = torch.empty(records)
    given = [layer.addresses() for layer in layers]
    persons = () if ends is None else (ends.data_ptr(), len(ends))
    positive: bool = compiled.clip_layers(given, records, clip, share, weights.data_ptr(), *persons)
    return positive


def suit_lstm(*tensors: torch.Tensor) -> bool:
    """Whether the steps of an LSTM can be taken by kernels: these tensors suit, and no mode follows torch's operations."""
    return RECENT and not torch._C._len_torch_dispatch_stack() and suit(*tensors)


def lstm_forward(
    gates: torch.Tensor,
    share: torch.Tensor,
    before: torch.Tensor,
    cell: torch.Tensor,
    squashed: torch.Tensor,
    hidden: torch.Tensor,
) -> None:
    """One step but for its matrix product, `share`: `gates` are completed, the last three are written."""
    given = (tensor.data_ptr() for tensor in (gates, share, before, cell, squashed, hidden))
    compiled.lstm_forward(*given, *hidden.shape)


def lstm_backward(
    gates: torch.Tensor,
    before: torch.Tensor,
    squashed: torch.Tensor,
    hidden_error: torch.Tensor,
    cell_error: torch.Tensor,
    errors: torch.Tensor,
) -> None:
    """`errors` at a step's gates; `cell_error` becomes that of the step before."""
    given = (tensor.data_ptr() for tensor in (gates, before, squashed, hidden_error, cell_error, errors))
    compiled.lstm_backward(*given, *squashed.shape)


def answers(logits: torch.Tensor, keenness: float, uniforms: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The answers of Lu et al.'s Algorithm 1 (`NeuronNoise.answers`), for `MOST_CLASSES` classes at most."""
    queries, classes = logits.shape
    result = torch.empty_like(logits)
    compiled.answer(
        logits.data_ptr(), queries, classes, keenness, uniforms.data_ptr(), noise.data_ptr(), result.data_ptr()
    )
    return result
