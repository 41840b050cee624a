"""What all parts ask of tensors: whether they are finite, which device to compute on, and seeded draws."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_CHUNK = 1 << 22
"""Numbers looked at one by one at a time: a mask of all of them would take as much memory as many records do."""


def all_finite(numbers: torch.Tensor) -> bool:
    """Whether none of the numbers is NaN or infinite."""
    numbers = numbers.detach()
    # A sum of squares, or of anything, is quick and is finite if all of its terms are, unless it overflows.
    if numbers.is_contiguous() and numbers.dtype in (torch.float32, torch.float64):
        flat = numbers.view(-1)
        quick = torch.dot(flat, flat)
    else:
        quick = numbers.sum()
    if math.isfinite(quick.item()):
        return True
    rows = numbers if numbers.dim() else numbers[None]
    return all(bool(part.isfinite().all()) for part in rows.split(max(1, _CHUNK * len(rows) // max(1, rows.numel()))))


def default_device() -> torch.device:
    """The device to train on: a CUDA device where there is one, else the processor."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Draws of torch's own generators follow `seed` while it lasts, and are as they were afterwards.

    Args:
        seed: Public: it must drive nothing that privacy rests on.
        device: The device whose generator is meant too, where it is a CUDA device.
    """
    with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
