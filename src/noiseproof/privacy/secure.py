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

from noiseproof import kernels
from noiseproof.errors import SettingError
from noiseproof.privacy.blocks import Floats, add_in_blocks, check_value, in_blocks
from noiseproof.privacy.randomness import KEY_BYTES, Bits, Randomness, Streams, check_sample
from noiseproof.privacy.selection import choose
from noiseproof.privacy.strips import Law, draw, gaussian, laplace

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
    lattice, so that every accountant applies with the sensitivity raised by `rounding` (`noiseproof.privacy.secure`
    has the argument, `noiseproof.privacy.strips` the sampler). In particular `add_laplace` is purely
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
            each = check_scales(scale, value.shape).cpu().expand(value.shape).reshape(-1).numpy()
        else:
            one = check_scale(float(scale))

        def noisy(old: Floats, where: slice, bits: Bits, new: Floats) -> None:
            add(law, old, one if each is None else each[where], bits, new)

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
        return step(scale) * (math.sqrt(coordinates) if norm == 2 else coordinates)


def _below(limit: Fraction, bits: Bits) -> bool:
    """Whether a uniform real is below `limit`."""
    while True:
        limit *= 2**64
        word, whole = bits.integer(64), int(limit)
        if word != whole:
            return word < whole
        limit -= whole


# Lattice: the multiples of a power of two that safe noise lives on, and adding noise to values on it.
#
# Formal guarantee
# ----------------
# What leaves is step * (n + k): n is the value over the step, rounded to an integer, and k the integer nearest to a
# continuous noise variable of scale s = scale / step, drawn exactly (`noiseproof.privacy.strips`). As n is an integer,
# n + k is also n plus the continuous variable, *then* rounded: post-processing of the continuous Gaussian or Laplace
# mechanism with noise `scale` applied to step * n. Every accountant of that mechanism therefore applies as it is, for
# (sub-sampled, adaptive) compositions too, and nothing is to be added to epsilon or delta. Three things are to be known.
#
# - *Sensitivity.* Rounding moves each coordinate of the difference of two neighbours by at most one step, so that the
#   sensitivity of step * n is at most that of the value plus `step * sqrt(P)` in L2 and `step * P` in L1, P coordinates.
#   The step is at most 2^-31 of the scale.
# - *Support.* n + k ranges over the same integers with positive probability whatever the value, and the last
#   operations (an integer to a float64, times a power of two, perhaps to a float32) see n + k alone. There are no holes
#   in the range of floating-point noise to tell neighbours apart by (Mironov 2012).
# - *Range.* n is clipped to +-2^61, some 2^29 scales or more; clipping is the same for all and widens no difference.
#   The scale, and with it the step, is taken to be public.


_SCALE_BITS = 32
_LARGEST = 2.0**61
_EXPONENTS = 900


def step(scale: float) -> float:
    """The power of two of which noise of this scale is a multiple: between 2^-32 and 2^-31 of the scale."""
    return math.ldexp(1.0, math.frexp(check_scale(scale))[1] - _SCALE_BITS)


def check_scale(scale: float) -> float:
    """The scale, if noise can have it; else a `SettingError`."""
    if not 2.0**-_EXPONENTS < scale < 2.0**_EXPONENTS:
        raise SettingError(f"the scale of noise must be greater than 0 (and from 2^-900 to 2^900), not {scale}.")
    return float(scale)


def check_scales(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A tensor of scales, if they are ones for a value of that shape; else a `SettingError`."""
    try:
        torch.broadcast_to(scale, shape)
    except RuntimeError:
        raise SettingError(
            f"scales of shape {tuple(scale.shape)} do not fit a value of shape {tuple(shape)}; give one, or one a "
            "coordinate."
        ) from None
    scale = scale.detach().double()
    if scale.numel() and not bool(((scale > 2.0**-_EXPONENTS) & (scale < 2.0**_EXPONENTS)).all()):
        raise SettingError("the scales of noise must all be greater than 0 (and from 2^-900 to 2^900).")
    return scale


def add(law: Law, value: Floats, scale: float | npt.NDArray[np.float64], bits: Bits, out: Floats) -> None:
    """Write `value`, rounded to the lattice, plus noise on it to `out`, for one scale or one a coordinate."""
    steps: float | npt.NDArray[np.float64]
    ratio: float | npt.NDArray[np.float64]
    if isinstance(scale, float):
        steps = step(scale)
        ratio = scale / steps
    else:
        mantissa, exponent = np.frexp(scale)
        steps = np.ldexp(1.0, exponent - _SCALE_BITS)
        ratio = mantissa * 2.0**_SCALE_BITS
    noisy = draw(law, ratio, value.size, bits)
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
