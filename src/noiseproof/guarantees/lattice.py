"""Lattice: the multiples of a power of two that safe noise lives on, and adding noise to values on it.

Formal guarantee
----------------
What leaves is step * (n + k): n is the value over the step, rounded to an integer, and k the integer nearest to a
continuous noise variable of scale s = scale / step, drawn exactly (`noiseproof.guarantees.strips`). As n is an integer,
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

import numpy as np
import numpy.typing as npt
import torch

from noiseproof import kernels
from noiseproof.errors import SettingError
from noiseproof.guarantees.blocks import Floats
from noiseproof.guarantees.chacha import Bits
from noiseproof.guarantees.strips import Law, draw

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
