"""What all parts ask of tensors: whether they are finite, which device to compute on, and seeded draws."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
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


STATE_WORDS = 624
"""Of torch's generator of the processor, a Mersenne twister; a seed would fill them from 32 bits."""


def generator_state() -> tuple[torch.Tensor, npt.NDArray[np.uint64]]:
    """A state of torch's generator of the processor, and a view of its 624 words (of 32 bits), to be filled."""
    state = torch.Generator().get_state()
    return state, state.numpy()[24 : 24 + 8 * STATE_WORDS].view(np.uint64)


def seeded_generator(seed: int) -> torch.Generator:
    """A torch generator of the processor from a seed of any length.

    Of a seed torch itself takes 32 bits, which can all be tried. Those of 64 bits and more, as secure runs have them, fill
    the generator's whole state by a hash instead; shorter ones, for research, are torch's.

    Args:
        seed: 0 or more.

    Returns:
        The generator; the same seed gives the same one.
    """
    if seed < 1 << 63:
        return torch.Generator().manual_seed(seed)
    state, words = generator_state()
    hashed = hashlib.shake_256(seed.to_bytes(seed.bit_length() // 8 + 1, "little")).digest(4 * STATE_WORDS)
    words[:] = np.frombuffer(hashed, dtype=np.uint32)
    generator = torch.Generator()
    generator.set_state(state)
    return generator


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Draws of torch's own generators follow `seed` while it lasts, and are as they were afterwards.

    Args:
        seed: Of any length (see `seeded_generator`); it must drive nothing that privacy rests on.
        device: The device whose generator is meant too, where it is a CUDA device.
    """
    cuda = device is not None and device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        generator = seeded_generator(seed)
        torch.default_generator.set_state(generator.get_state())
        if cuda:
            torch.cuda.manual_seed(seed if seed < 1 << 63 else int(torch.randint(2**62, (1,), generator=generator)))
        yield
