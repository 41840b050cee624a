"""Secure randomness: the operating system's entropy, ChaCha20, and noise that floating point cannot betray.

Noise lives on a lattice, the multiples of a power of two.

Formal guarantee
----------------
What leaves is step * (n + k): n is the value over the step, rounded to an integer, and k the integer nearest to a
continuous noise variable of scale s = scale / step, drawn exactly (`noiseproof.privacy.discrete_noise`). As n is an integer,
n + k is also n plus the continuous variable, *then* rounded: post-processing of the continuous Gaussian or Laplace
mechanism with noise `scale` applied to step * n. Every accountant of that mechanism therefore applies as it is, for
(sub-sampled, adaptive) compositions too, and nothing is to be added to epsilon or delta. Three things are to be known.

- *Sensitivity.* Rounding moves each coordinate of the difference of two neighbours by at most one step, so that the
  sensitivity of step * n is at most that of the value plus `step * sqrt(P)` in L2 and `step * P` in L1, P coordinates.
  The step is at most 2^-31 of the scale.
- *Support.* n + k ranges over the same integers with positive probability whatever the value, and the last
  operations (an integer to a float64, times a power of two, perhaps to a float32) see n + k alone. There are no holes
  in the range of floating-point noise to tell neighbours apart by (Mironov 2012).
- *Range.* n is clipped to +-2^61, some 2^29 scales or more; clipping is the same for all and widens no difference.
  The scale, and with it the step, is taken to be public.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from noiseproof import kernels
from noiseproof.errors import SettingError
from noiseproof.privacy import randomness
from noiseproof.privacy.discrete_noise import Distribution, at_scale, gaussian, laplace, sample
from noiseproof.privacy.randomness import KEY_BYTES, Bits, Floats, Randomness, Streams
from noiseproof.tensors import all_finite, seeded_generator

_SCALE_BITS = 32
_LARGEST = 2.0**61
_SAMPLE_BLOCK = 1 << 20
_NOISE_BLOCK = 1 << 15
"""Coordinates of a stream: what their draws take of memory stays in a core's cache."""


class Secure(Randomness):
    """Randomness for releases: unpredictable, and of exactly the stated laws.

    Every call asks the operating system for a new key and expands it with ChaCha20. No key outlives its call, so that
    nothing kept in memory tells of noise drawn before, and a process that was forked or restored from a snapshot does
    not repeat it. Noise is added on a lattice, in the processor's memory whatever the device.

    Formal guarantee
    ----------------
    `add_gaussian` and `add_laplace` are post-processing of the continuous mechanism applied to the value rounded to a
    lattice, so that every accountant applies with the sensitivity raised by `rounding` (`noiseproof.privacy.secure`
    has the argument, `noiseproof.privacy.discrete_noise` the sampler). In particular `add_laplace` is purely
    (L1 sensitivity + rounding) / scale-DP. `poisson_sample` and `choose` have exactly the stated probabilities, those
    of the float64 numbers they are given. Assumptions: ChaCha20's output cannot be told from random bits; the scale is
    public; nobody times single draws. Units and neighbours are those of the sensitivity.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Secure
        >>> rng = Secure()
        >>> rng.add_gaussian(torch.zeros(2), scale=1.0).shape
        torch.Size([2])
        >>> batch = rng.poisson_sample(records=1000, rate=0.05)  # indices of about 50 records
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
        self, law: Distribution, value: torch.Tensor, scale: float | torch.Tensor, out: torch.Tensor | None
    ) -> torch.Tensor:
        randomness.check_kind(value, out)
        scales: float | npt.NDArray[np.float64]
        if isinstance(scale, torch.Tensor) and scale.numel() != 1:
            checked = randomness.check_scales(scale, value.shape)
            scales = checked.cpu().expand(value.shape).reshape(-1).numpy()
        else:
            scales = randomness.check_scale(float(scale))
        key, count = self._entropy(KEY_BYTES), value.numel()
        size = _block_size(count)
        if kernels.compiled is not None and isinstance(scales, float):
            source, result = randomness.on_cpu(value, out)
            laws, blocks = at_scale(law, math.frexp(scales)[0] * 2.0**_SCALE_BITS), randomness.pieces(count, size)
            failed = kernels.add_law(key, laws[0].packed, laws[1].packed, source, result, len(blocks), step(scales))
            randomness.check_finite(failed is not None)
            for block in failed or ():
                add(law, source.numpy()[blocks[block]], scales, Bits(key, block), result.numpy()[blocks[block]])
            return randomness.returned(value, out, result)
        randomness.check_finite(all_finite(value))

        def noisy(old: Floats, where: slice, bits: Bits, new: Floats) -> None:
            add(law, old, scales if isinstance(scales, float) else scales[where], bits, new)

        return randomness.add_in_blocks(value, out, lambda block: Bits(key, block), noisy, size)

    def _sample(self, records: int, rate: float, streams: Streams) -> npt.NDArray[np.int64]:
        """The probability is exactly the float64 `rate`."""
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

        randomness.in_blocks(records, streams, work, size=_SAMPLE_BLOCK)
        return np.concatenate([np.empty(0, dtype=np.int64), *(found[start] for start in sorted(found))])

    @property
    def generator(self) -> torch.Generator:
        """A torch generator for what privacy does not rest on, seeded by the operating system."""
        if self._generator is None:
            self._generator = seeded_generator(1 << 8 * KEY_BYTES | int.from_bytes(self._entropy(KEY_BYTES), "little"))
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
        return step(scale) * (math.sqrt(coordinates) if norm == 2 else coordinates)


def _below(limit: Fraction, bits: Bits) -> bool:
    """Whether a uniform real is below `limit`."""
    while True:
        limit *= 2**64
        word, whole = bits.integer(64), int(limit)
        if word != whole:
            return word < whole
        limit -= whole


def step(scale: float) -> float:
    """The power of two of which noise of this scale is a multiple: between 2^-32 and 2^-31 of the scale."""
    return math.ldexp(1.0, math.frexp(randomness.check_scale(scale))[1] - _SCALE_BITS)


def _block_size(count: int) -> int:
    """How many of so many coordinates share a stream: such that threads have blocks of a size, and caches hold them."""
    return -(-count // (4 * -(-count // (4 * _NOISE_BLOCK)))) if count > _NOISE_BLOCK // 4 else _NOISE_BLOCK


def add(law: Distribution, value: Floats, scale: float | npt.NDArray[np.float64], bits: Bits, out: Floats) -> None:
    """Write `value`, rounded to the lattice, plus noise on it to `out`, for one scale or one a coordinate."""
    mantissa, exponent = np.frexp(scale)
    steps = np.ldexp(1.0, exponent - _SCALE_BITS)
    ratio = mantissa * 2.0**_SCALE_BITS
    noisy = sample(law, ratio, value.size, bits)
    if kernels.add_on_lattice(value, noisy, steps, out):
        return
    # Times a power of two: exact, but for overflow, which is clipped, and underflow, which would round to 0 as well.
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.multiply(value, 1 / steps, dtype=np.float64)
    np.clip(rounded, -_LARGEST, _LARGEST, out=rounded)
    np.rint(rounded, out=rounded)
    noisy += rounded.astype(np.int64)
    np.multiply(noisy, steps, out=rounded)
    with np.errstate(over="ignore", under="ignore"):
        np.copyto(out, rounded, casting="same_kind")
