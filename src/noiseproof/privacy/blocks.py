"""Blocks: long vectors worked on piece by piece in threads, with a result that does not depend on the threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.privacy.randomness import Bits, Streams
from noiseproof.tensors import all_finite

BLOCK = 1 << 17
"""Coordinates in a block at most: enough to drown the cost of waking a thread, few enough to stay in a core's cache."""

Floats = npt.NDArray[np.floating[Any]]


def in_blocks(count: int, streams: Streams, work: Callable[[slice, Bits], None], size: int = BLOCK) -> None:
    """Call `work` once for every block of `count` items, each with a bit stream of its own, on torch's threads."""
    pieces = max(1, -(-count // size))
    ends = [count * piece // pieces for piece in range(pieces + 1)]  # alike in size, so that threads end together
    todo = [(number, slice(start, end)) for number, (start, end) in enumerate(pairwise(ends)) if end > start]

    def take() -> None:
        while True:
            try:
                number, block = todo.pop()  # atomic: this list is the queue
            except IndexError:
                return
            work(block, streams(number))

    helpers = [_pool().submit(take) for _ in range(min(torch.get_num_threads(), pieces) - 1)]
    try:
        take()
    finally:
        for helper in helpers:
            helper.result()


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that wait for work, since starting them takes as long as some work does."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="noise")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def add_in_blocks(
    value: torch.Tensor,
    out: torch.Tensor | None,
    streams: Streams,
    noisy: Callable[[Floats, slice, Bits, Floats], None],
    size: int = BLOCK,
) -> torch.Tensor:
    """Call `noisy(block of value, where, bits, block of result)` for every block, and return the result.

    The result is `out`, which may be `value`, or a new tensor. The work happens in the processor's memory, whatever
    the device, and needs no more than the result and a block.
    """
    source, result = opened(value, out)
    old, new = source.numpy(), result.numpy()

    def work(block: slice, bits: Bits) -> None:
        noisy(old[block], block, bits, new[block])

    in_blocks(value.numel(), streams, work, size)
    return closed(value, out, result)


def in_torch(
    source: torch.Tensor,
    result: torch.Tensor,
    streams: Streams,
    noisy: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
) -> None:
    """As `add_in_blocks`, from one opened vector to another, for noise that torch makes of whole numbers.

    `noisy(block of source, as many random integers of its width, block of result)` is called for one block after another.
    Other threads would only be in torch's way: its own go on spinning for a while after each operation.
    """
    width = torch.int32 if source.dtype == torch.float32 else torch.int64
    for number, (old, new) in enumerate(zip(source.split(BLOCK), result.split(BLOCK), strict=True)):
        whole = torch.empty(old.shape, dtype=width)
        streams(number).fill(whole.numpy())
        noisy(old, whole, new)


def opened(value: torch.Tensor, out: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """`value` and where its noisy twin goes, as vectors in the processor's memory: `out` itself where that can be."""
    source = value.detach()
    if source.device.type != "cpu" or source.dtype not in (torch.float32, torch.float64):
        source = source.to("cpu", torch.float64 if source.dtype == torch.float64 else torch.float32)
    source = source.contiguous().view(-1)
    direct = out is not None and out.is_contiguous() and out.device == source.device and out.dtype == source.dtype
    return source, out.detach().view(-1) if out is not None and direct else torch.empty_like(source)


def closed(value: torch.Tensor, out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    """The result as the caller wants it."""
    if out is None:
        return result.view(value.shape).to(value.device, value.dtype)
    return out if result.data_ptr() == out.data_ptr() else out.copy_(result.view(value.shape))


def check_value(value: torch.Tensor, out: torch.Tensor | None = None) -> None:
    """Refuse what noise cannot be added to; the message never contains the value."""
    check_kind(value, out)
    check_finite(all_finite(value))


def check_kind(value: torch.Tensor, out: torch.Tensor | None) -> None:
    """Refuse values that are no floating-point numbers, and an `out` of another kind."""
    if not value.is_floating_point():
        raise SettingError(f"noise is added to floating-point tensors, not to {value.dtype}; convert it first.")
    if out is None or out is value:
        return
    if (out.shape, out.dtype, out.device) != (value.shape, value.dtype, value.device):
        raise SettingError("out must have the shape, dtype and device of the value that noise is added to.")


def check_finite(finite: bool) -> None:
    """Refuse values of which some are not finite."""
    if not finite:
        raise NoiseproofError("a value to be released is NaN or infinite; check what it was computed from.")
