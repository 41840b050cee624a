"""What a forward pass in a loop of the user's own draws from torch's generator: dropout masks, noise on inputs."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from noiseproof.privacy import Randomness
from noiseproof.privacy.randomness import Bits
from noiseproof.tensors import STATE_WORDS, generator_state

_OWN_KEY = 0xD21
"""The child of a run's randomness that the key comes from: whatever else the run draws, it stays the same."""

_FIRST = 3
"""Batches at which it is looked for certain whether something is drawn."""


class Masks:
    """Torch's generator set afresh for every batch, from a key of 256 bits of the run's randomness, and put back after.

    Torch's own seed may be known (it is a constant unless somebody sets it), and whoever knows it knows which number every
    record gets, given who else is in the batch. Nothing is set for networks that draw nothing.

    Formal guarantee
    ----------------
    None by itself. Masks of a batch are independent of everything that is released but the losses they go into, so a step
    is a mixture, over masks that neighbouring batches share but for one record's, of mechanisms of the same sensitivity.
    On CUDA the key is shortened to torch's seed of 64 bits.

    Args:
        rng: The run's randomness.
        rank: Which of several processes this is.
    """

    def __init__(self, rng: Randomness, rank: int = 0) -> None:
        words = (rng.spawn(_OWN_KEY + rank).uniform((8,)) * 2**32).numpy().astype(np.uint32)
        self._key = words.tobytes()
        self._seed = np.empty(STATE_WORDS, dtype=np.uint32)
        self._state, self._state_words = generator_state()
        self._drawn = False
        """Whether anything was seen to be drawn."""
        self._before: tuple[torch.Tensor, list[torch.Tensor]] | None = None
        self._batches = 0

    def begin(self, step: int, *, look: bool) -> None:
        """A batch's losses are computed next; `look` asks whether they draw anything, which is remembered."""
        self.end()
        self._batches += 1
        if not (look or self._drawn or self._batches <= _FIRST):
            return
        cuda = torch.cuda.is_initialized()
        self._before = torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else []
        Bits(self._key, self._batches << 32 | step).fill(self._seed)
        self._state_words[:] = self._seed
        torch.default_generator.set_state(self._state)
        if cuda:
            torch.cuda.manual_seed_all(int(self._seed[:2].view(np.int64)[0]))

    def end(self) -> None:
        """The losses are there: torch's generator goes on as if nothing had been drawn."""
        if self._before is None:
            return
        (before, others), self._before = self._before, None
        if not self._drawn:
            cuda = bool(others) and torch.cuda.default_generators[torch.cuda.current_device()].get_offset() > 0
            self._drawn = cuda or not torch.equal(torch.get_rng_state(), self._state)
        torch.set_rng_state(before)
        if others:
            torch.cuda.set_rng_state_all(others)


def random_states() -> tuple[Any, ...]:
    """The states of all generators that others may draw from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    version, words, *more = random.getstate()
    packed = version, np.array(words, np.uint32).tobytes(), *more  # 625 of Python's numbers take ten times as much
    return torch.get_rng_state(), packed, np.random.get_state(), cuda  # noqa: NPY002


def set_random_states(states: tuple[Any, ...]) -> None:
    """Put them back."""
    torch.set_rng_state(states[0])
    version, packed, *more = states[1]
    random.setstate((version, tuple(np.frombuffer(packed, np.uint32).tolist()), *more))
    np.random.set_state(states[2])  # noqa: NPY002
    if states[3]:
        torch.cuda.set_rng_state_all(states[3])


def told(states: tuple[Any, ...]) -> tuple[Any, ...]:
    """Such states in a form that can be compared."""
    others: Any = states[2]
    cuda = [state.numpy().tobytes() for state in states[3]]
    return states[0].numpy().tobytes(), states[1], others[1].tobytes(), others[2:], cuda
