"""Blocks: long vectors worked on piece by piece in threads, with a result that does not depend on the threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.guarantees.chacha import Bits, Streams

BLOCK = 1 << 17
"""Coordinates in a block: enough to drown the cost of a call, few enough for a block to stay in a core's cache."""

Floats = npt.NDArray[np.floating[Any]]


def in_blocks(count: int, streams: Streams, work: Callable[[slice, Bits], None], size: int = BLOCK) -> None:
    """Call `work` once for every block of `count` items, each with a bit stream of its own, on torch's threads."""
    blocks = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    todo = list(enumerate(blocks))

    def take() -> None:
        while True:
            try:
                number, block = todo.pop()  # atomic: this list is the queue
            except IndexError:
                return
            work(block, streams(number))

    threads = min(torch.get_num_threads(), len(blocks))
    if threads <= 1:
        take()
        return
    # A pool for each call costs some 0.1 ms and, unlike a lasting one, survives a fork.
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(take) for _ in range(threads)]:
            future.result()


def add_in_blocks(
    value: torch.Tensor,
    out: torch.Tensor | None,
    streams: Streams,
    noisy: Callable[[Floats, slice, Bits, Floats], None],
) -> torch.Tensor:
    """Call `noisy(block of value, where, bits, block of result)` for every block, and return the result.

    The result is `out`, which may be `value`, or a new tensor. The work happens in the processor's memory, whatever
    the device, and needs no more than the result and a block.
    """
    source = value.detach()
    if source.device.type != "cpu" or source.dtype not in (torch.float32, torch.float64):
        source = source.to("cpu", torch.float64 if source.dtype == torch.float64 else torch.float32)
    source = source.contiguous()
    direct = out is not None and out.is_contiguous() and out.device == source.device and out.dtype == source.dtype
    result = out.detach() if out is not None and direct else torch.empty_like(source)
    old, new = source.view(-1).numpy(), result.view(-1).numpy()

    def work(block: slice, bits: Bits) -> None:
        noisy(old[block], block, bits, new[block])

    in_blocks(value.numel(), streams, work)
    if out is None:
        return result.to(value.device, value.dtype)
    return out if direct else out.copy_(result)


def check_value(value: torch.Tensor, out: torch.Tensor | None = None) -> None:
    """Refuse what noise cannot be added to; the message never contains the value."""
    if not value.is_floating_point():
        raise SettingError(f"noise is added to floating-point tensors, not to {value.dtype}; convert it first.")
    if out is not None and (out.shape, out.dtype, out.device) != (value.shape, value.dtype, value.device):
        raise SettingError("out must have the shape, dtype and device of the value that noise is added to.")
    # A sum is quick and is finite if all of its terms are, unless it overflows.
    value = value.detach()
    if not bool(torch.isfinite(value.sum())) and not bool(torch.isfinite(value).all()):
        raise NoiseproofError("a value to be released is NaN or infinite; check what it was computed from.")
