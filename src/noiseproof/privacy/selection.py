"""Selection: one index a row with probability proportional to exp(logits), exactly.

Formal guarantee
----------------
The law is that of the exponential of the float64 logits as they are, without error: the cumulative weights are
computed in float64, and a row whose uniform falls within their error bound of a boundary is decided again with more
bits and more precision until it is certain. Nothing is to be added to epsilon or delta. (Gumbel noise in float64 would
leave a total variation that is hard to bound, and holes in its range.)
"""

from __future__ import annotations

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import torch

from noiseproof.errors import NoiseproofError
from noiseproof.privacy.randomness import Bits

_ENTRIES = 1 << 20


def choose(logits: torch.Tensor, bits: Bits) -> torch.Tensor:
    """One index a row of the last dimension, by the row's logits; -inf is never chosen."""
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise NoiseproofError("there is nothing to choose from; give at least one logit a row.")
    shape, choices = logits.shape[:-1], logits.shape[-1]
    table = logits.detach().to("cpu", torch.float64).reshape(-1, choices).numpy()
    if table.size and not np.isfinite(table.max(axis=1)).all():  # NaN is the maximum wherever it occurs
        raise NoiseproofError("logits must be numbers below infinity, and each row needs one that is finite.")
    chosen = np.empty(len(table), dtype=np.int64)
    rows = max(1, _ENTRIES // choices)
    for start in range(0, len(table), rows):
        chosen[start : start + rows] = _choose_rows(table[start : start + rows], bits)
    return torch.from_numpy(chosen).reshape(shape).to(logits.device)


def _choose_rows(logits: npt.NDArray[np.float64], bits: Bits) -> npt.NDArray[np.int64]:
    words = bits.words(len(logits))
    with np.errstate(over="ignore"):
        cumulative = np.exp(logits - logits.max(axis=1, keepdims=True)).cumsum(axis=1)
    total = cumulative[:, -1:]
    target = (words >> 11)[:, None] * 2.0**-53 * total
    # A weight w is off by at most w (|log w| 2^-53 + 2^-50), a sum by 2^-53 of the total for each term; total >= 1.
    error = total * ((4 * logits.shape[1] + 32) * 2.0**-53)
    open_ = (np.abs(cumulative - target) <= error).any(axis=1)
    chosen = (cumulative <= target).sum(axis=1)
    for row in np.flatnonzero(open_):
        chosen[row] = _decide(logits[row], int(words[row]), bits)
    return chosen


def _decide(logits: npt.NDArray[np.float64], known: int, bits: Bits) -> int:
    """The index for a uniform that begins with the 64 bits `known`: the first whose cumulative weight is above it."""
    possible = np.flatnonzero(np.isfinite(logits))
    length = 64
    while True:
        length += 128
        known = known << 128 | bits.integer(128)
        with mpmath.workprec(length + 64):
            largest = mpmath.mpf(float(logits.max()))
            exact = [mpmath.exp(mpmath.mpf(float(logits[index])) - largest) for index in possible]
            weights = [int(mpmath.floor(mpmath.ldexp(weight, length))) for weight in exact]
        # Every sum of weights is off by less than 2 a weight, and the uniform by 1 in its last place.
        off = (4 * len(weights) << length) + 2 * sum(weights)
        target = known * sum(weights)
        end = 0
        for order, weight in enumerate(weights):
            begin, end = end, end + (weight << length)
            if (order == 0 or begin + off <= target) and target < end - off:
                return int(possible[order])
