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


_VERSION = 7
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


def suit_kind(tensor: torch.Tensor) -> bool:
    """Whether there are kernels, and the tensor is of their kind, if perhaps with gaps."""
    return compiled is not None and tensor.dtype == torch.float32 and tensor.is_cpu


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

    __slots__ = ("activations", "errors", "products", "sums")

    def __init__(self, errors: torch.Tensor) -> None:
        self.errors = errors
        self.activations: torch.Tensor | None = None
        """None if the weight is not trained."""
        self.products: torch.Tensor | None = None
        """Where the sum of the weight's clipped gradients goes."""
        self.sums: torch.Tensor | None = None
        """Where the sum of the clipped errors goes, which is the bias's; None if no bias is trained."""

    def addresses(self) -> tuple[int, int, int, int, int, int]:
        """The fields of kernels.h's Layer."""
        errors, activations, products, sums = self.errors, self.activations, self.products, self.sums
        start, width, product = 0, 0, 0
        if activations is not None and products is not None:
            start, width, product = activations.data_ptr(), activations.shape[1], products.data_ptr()
        return errors.data_ptr(), errors.shape[1], start, width, product, 0 if sums is None else sums.data_ptr()


def clip_layers(layers: Collection[Layer], clip: float, share: float, ends: torch.Tensor | None = None) -> bool:
    """Sum up every record's gradient, scaled so that its norm over all layers is `clip` at most, and then by `share`.

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


def sum_rows(rows: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> None:
    """rows[places] becomes weights @ rows, in one pass over the rows; `weights` has four rows, and `places` as many at most."""
    count, size = rows.shape
    compiled.sum_rows(rows.data_ptr(), count, size, weights.data_ptr(), places.data_ptr(), len(places))


def merge_rows(
    values: torch.Tensor, owners: torch.Tensor, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Values (N, D) of owners and rows (N,), those of one owner and row added up; None if the owners are not in order."""
    owners, rows = owners.long().contiguous(), rows.long().contiguous()
    merged, new_owners, new_rows = torch.empty_like(values), torch.empty_like(owners), torch.empty_like(rows)
    given = *(part.data_ptr() for part in (values, owners, rows)), *values.shape
    found: int = compiled.merge_rows(*given, merged.data_ptr(), new_owners.data_ptr(), new_rows.data_ptr())
    return None if found < 0 else (merged[:found], new_owners[:found], new_rows[:found])


def squared_lengths(values: torch.Tensor, owners: torch.Tensor, records: int) -> torch.Tensor:
    """For each owner the sum of squares of their rows of values, (records,), in float64."""
    total = torch.zeros(records, dtype=torch.float64)
    compiled.add_squares(values.data_ptr(), owners.data_ptr(), *values.shape, total.data_ptr())
    return total


def add_rows(
    values: torch.Tensor,
    rows: torch.Tensor,
    weights: torch.Tensor,
    out: torch.Tensor,
    places: torch.Tensor | None = None,
) -> None:
    """`out`[rows] += weights times values[places] (all values if not given), for rows that may come several times."""
    from_places = 0 if places is None else places.data_ptr()
    size = len(rows), values.shape[1]
    compiled.add_rows(values.data_ptr(), from_places, rows.data_ptr(), *size, weights.data_ptr(), out.data_ptr())


def sum_channels(errors: torch.Tensor, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sums of errors (B, C, ...) over all dimensions but two, and of their products with inputs: (B, C), in float64."""
    records, channels = errors.shape[:2]
    sums, products = torch.empty(2, records, channels, dtype=torch.float64).unbind()
    count = records * channels
    given = errors.data_ptr(), inputs.data_ptr(), count, errors.numel() // max(1, count)
    compiled.sum_channels(*given, sums.data_ptr(), products.data_ptr())
    return sums, products


def sum_products(errors: torch.Tensor, activations: torch.Tensor, weights: torch.Tensor, out: torch.Tensor) -> bool:
    """`out` becomes the sum of the outer products of two matrices' rows, each times its weight; False if there is no memory."""
    sizes = errors.data_ptr(), errors.shape[1], activations.data_ptr(), activations.shape[1], len(errors)
    done: bool = compiled.sum_products(*sizes, weights.data_ptr(), out.data_ptr())
    return done


def multiply_rows(vectors: torch.Tensor) -> torch.Tensor:
    """The inner products (B, T, T) of each record's vectors (B, T, D), of which each lies without gaps."""
    records, count, width = vectors.shape
    out = torch.empty(records, count, count)
    between, stride, _ = vectors.stride()
    compiled.multiply_rows(vectors.data_ptr(), records, between, count, stride, width, out.data_ptr())
    return out


def suit_lstm(*tensors: torch.Tensor) -> bool:
    """Whether the steps of an LSTM can be taken by kernels: these tensors suit, and no mode follows torch's operations."""
    return not torch._C._len_torch_dispatch_stack() and suit(*tensors)


def _padded(matrix: torch.Tensor) -> torch.Tensor:
    """The matrix without gaps, with columns of zeros up to the next number of them that kernels take."""
    columns = matrix.shape[1]
    wide = matrix.new_zeros(matrix.shape[0], -(-columns // compiled.PADDING) * compiled.PADDING)
    wide[:, :columns] = matrix
    return wide


def lstm_forward(
    gates: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, squashed: torch.Tensor
) -> bool:
    """All steps (steps, records, ...): `gates` are completed, the last three written; False, and nothing done, without memory."""
    across = _padded(weight.T)
    states = hidden.data_ptr(), cell.data_ptr(), squashed.data_ptr()
    done: bool = compiled.lstm_forward(gates.data_ptr(), across.data_ptr(), across.shape[1], *states, *squashed.shape)
    return done


def lstm_backward(
    saved: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    weight: torch.Tensor,
    errors: torch.Tensor,
    hidden_error: torch.Tensor,
    cell_error: torch.Tensor,
    at_gates: torch.Tensor,
) -> bool:
    """All steps backwards: `at_gates` is written, the errors at the last states become those at the first.

    Args:
        saved: The gates, the cell's states and their tangents, as `lstm_forward` left them.
        weight: The hidden state's.
        errors: Those at the outputs, wherever steps and records lie.
        hidden_error: That at the last hidden state, from later layers and its output.
        cell_error: That at the cell's last state.
        at_gates: Where the errors at gates go.

    Returns:
        False, and nothing done, if there is no memory.
    """
    wide = _padded(weight)
    given = *(tensor.data_ptr() for tensor in saved), wide.data_ptr(), wide.shape[1]
    states = (tensor.data_ptr() for tensor in (hidden_error, cell_error, at_gates))
    if errors.stride(2) != 1:
        errors = errors.contiguous()
    done: bool = compiled.lstm_backward(*given, errors.data_ptr(), *errors.stride()[:2], *states, *saved[2].shape)
    return done


def answers(logits: torch.Tensor, keenness: float, uniforms: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The answers of Lu et al.'s Algorithm 1 (`NeuronNoise.answers`), for `MOST_CLASSES` classes at most."""
    queries, classes = logits.shape
    result = torch.empty_like(logits)
    compiled.answer(
        logits.data_ptr(), queries, classes, keenness, uniforms.data_ptr(), noise.data_ptr(), result.data_ptr()
    )
    return result
