"""Secure randomness: the operating system's entropy, ChaCha20, and noise that floating point cannot betray."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees import lattice
from noiseproof.guarantees.blocks import Floats, add_in_blocks, check_value, in_blocks
from noiseproof.guarantees.chacha import KEY_BYTES, Bits, Streams
from noiseproof.guarantees.randomness import Randomness, check_sample
from noiseproof.guarantees.selection import choose
from noiseproof.guarantees.strips import Law, gaussian, laplace

_SAMPLE_BLOCK = 1 << 20
_NOISE_BLOCK = 1 << 19
"""Larger than others': what a block's few doubtful draws cost is the same for any size, and threads wait for each other in it."""


class Secure(Randomness):
    """Randomness for what leaves the house: unpredictable, and of exactly the stated laws.

    Every call asks the operating system for a new key and expands it with ChaCha20. No key outlives its call, so that
    nothing kept in memory tells of noise drawn before, and a process that was forked or restored from a snapshot does
    not repeat it. Noise is added on a lattice, in the processor's memory whatever the device.

    Formal guarantee
    ----------------
    `add_gaussian` and `add_laplace` are post-processing of the continuous mechanism applied to the value rounded to a
    lattice, so that every accountant applies with the sensitivity raised by `rounding` (`noiseproof.guarantees.lattice`
    has the argument, `noiseproof.guarantees.strips` the sampler). In particular `add_laplace` is purely
    (L1 sensitivity + rounding) / scale-DP. `poisson_sample` and `choose` have exactly the stated probabilities, those
    of the float64 numbers they are given. Assumptions: ChaCha20's output cannot be told from random bits; the scale is
    public; nobody times single draws. Units and neighbours are those of the sensitivity.
    """

    kind = "secure"
    assumptions = (
        "ChaCha20 under a key from the operating system cannot be told from random bits",
        "nobody measures how long single draws take",
    )

    def __init__(self) -> None:
        self._entropy: Callable[[int], bytes] = os.urandom
        self._generator: torch.Generator | None = None

    @classmethod
    def _for_test(cls, key: bytes) -> Secure:
        """Randomness that repeats itself, for tests of its law: `key` has 32 bytes and takes the system's place."""
        if len(key) != KEY_BYTES:
            raise SettingError(f"a test's key has {KEY_BYTES} bytes, not {len(key)}.")
        secure, bits = cls(), Bits(key)
        secure._entropy = lambda count: bits.words(-(-count // 8)).tobytes()[:count]
        return secure

    def _streams(self) -> Streams:
        key = self._entropy(KEY_BYTES)
        return lambda block: Bits(key, block)

    def add_gaussian(self, value: torch.Tensor, scale: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """`value`, rounded to the lattice, plus Normal(0, scale^2), rounded to the lattice, on every coordinate."""
        return self._add(gaussian(), value, scale, out)

    def add_laplace(
        self, value: torch.Tensor, scale: float | torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`value`, rounded to the lattice, plus Laplace(scale), rounded to the lattice; a lattice for each scale."""
        return self._add(laplace(), value, scale, out)

    def _add(
        self, law: Law, value: torch.Tensor, scale: float | torch.Tensor, out: torch.Tensor | None
    ) -> torch.Tensor:
        check_value(value, out)
        each: npt.NDArray[np.float64] | None = None
        one = 1.0
        if isinstance(scale, torch.Tensor) and scale.numel() != 1:
            each = lattice.check_scales(scale, value.shape).cpu().expand(value.shape).reshape(-1).numpy()
        else:
            one = lattice.check_scale(float(scale))

        def noisy(old: Floats, where: slice, bits: Bits, new: Floats) -> None:
            lattice.add(law, old, one if each is None else each[where], bits, new)

        return add_in_blocks(value, out, self._streams(), noisy, _NOISE_BLOCK)

    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """Independent float64 uniforms in [0, 1), multiples of 2^-53."""
        return torch.from_numpy(self._streams()(0).uniform(shape))

    def poisson_sample(self, records: int, rate: float) -> torch.Tensor:
        """The indices of a Poisson sample, in order; the probability is exactly the float64 `rate`."""
        check_sample(records, rate)
        if rate in (0, 1):
            return torch.arange(records if rate == 1 else 0)
        # A record is in if a uniform's first 16 bits are below the rate's; if they are the same, the rest decides.
        first = int(Fraction(rate) * 2**16)
        rest = Fraction(rate) * 2**16 - first
        found: dict[int, npt.NDArray[np.int64]] = {}

        def work(block: slice, bits: Bits) -> None:
            digits = np.empty(block.stop - block.start, dtype=np.uint16)
            bits.fill(digits)
            # Those at the rate itself are few, and looked at one by one.
            within = np.flatnonzero(digits <= first)
            keep = digits[within] < first
            for tie in np.flatnonzero(~keep):
                keep[tie] = _below(rest, bits)
            found[block.start] = within[keep] + block.start

        in_blocks(records, self._streams(), work, size=_SAMPLE_BLOCK)
        parts = [found[start] for start in sorted(found)]
        return torch.from_numpy(np.concatenate(parts) if parts else np.empty(0, dtype=np.int64))

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """One index a row, drawn with probability proportional to exp(logits), over the last dimension."""
        return choose(logits, self._streams()(0))

    @property
    def generator(self) -> torch.Generator:
        """A torch generator for what privacy does not rest on, seeded by the operating system."""
        if self._generator is None:
            self._generator = torch.Generator().manual_seed(int.from_bytes(self._entropy(8), "little") >> 1)
        return self._generator

    def spawn(self, key: int) -> Secure:
        """An independent child; `key` does not make it repeatable."""
        return type(self)() if self._entropy is os.urandom else self._for_test(self._entropy(KEY_BYTES))

    def state(self) -> dict[str, Any]:
        """Nothing: every call draws from a new key."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Nothing is put back: what was drawn once is never drawn again."""

    def rounding(self, scale: float, coordinates: int, norm: Literal[1, 2] = 2) -> float:
        """How much sensitivity (L2, or L1) rounding to the lattice adds: a step a coordinate, 2^-31 scales at most."""
        return lattice.step(scale) * (math.sqrt(coordinates) if norm == 2 else coordinates)


def _below(limit: Fraction, bits: Bits) -> bool:
    """Whether a uniform real is below `limit`."""
    while True:
        limit *= 2**64
        word, whole = bits.integer(64), int(limit)
        if word != whole:
            return word < whole
        limit -= whole
