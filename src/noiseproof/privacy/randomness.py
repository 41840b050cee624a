"""Randomness: where every random number of a release comes from, and what its two kinds share.

`Reproducible` is for research, `Secure` for releases. Both expand keys with ChaCha20, work on long vectors
block by block in threads with a result that does not depend on the threads, and choose by logits exactly.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Literal

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.tensors import all_finite

Floats = npt.NDArray[np.floating[Any]]

Streams = Callable[[int], "Bits"]
"""The independent bit streams of one call, by number, so that threads can share the work and the result not depend."""

KEY_BYTES = 32

BLOCK = 1 << 17
"""Coordinates in a block at most: enough to drown the cost of waking a thread, few enough to stay in a core's cache."""

_ZEROS = memoryview(bytes(1 << 20))
_ENTRIES = 1 << 20
_EXPONENTS = 900


class Randomness(ABC):
    """Where every random number of a release comes from.

    Noise is *added to a value* rather than drawn, because safe noise must round the value to its lattice first.
    Values that are NaN or infinite and scales that are not greater than 0 are refused.

    Examples:
        Code that takes any of them works with both: `Secure` for releases, `Reproducible` for research.

        >>> import torch
        >>> from noiseproof.privacy import Randomness, Reproducible, Secure
        >>> def noisy_sum(values: torch.Tensor, rng: Randomness) -> torch.Tensor:
        ...     return rng.add_gaussian(values.sum(), scale=2.0)
        >>> released = noisy_sum(torch.ones(10), Secure())
        >>> noisy_sum(torch.ones(10), Reproducible(0)) == noisy_sum(torch.ones(10), Reproducible(0))
        tensor(True)
    """

    kind: ClassVar[Literal["reproducible", "secure"]]
    assumptions: ClassVar[tuple[str, ...]]
    """What a proof stands on that uses this randomness, for the card."""

    @abstractmethod
    def add_gaussian(self, value: torch.Tensor, scale: float, *, out: torch.Tensor | None = None) -> torch.Tensor:
        """`value` plus independent Normal(0, scale^2) on every coordinate, of `value`'s dtype and device.

        The result is written to `out` where it is given; it may be `value` itself.
        """

    @abstractmethod
    def add_laplace(
        self, value: torch.Tensor, scale: float | torch.Tensor, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`value` plus independent Laplace(scale) on every coordinate; `scale` may be a tensor that broadcasts."""

    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """Independent float64 uniforms in [0, 1), multiples of 2^-53."""
        return torch.from_numpy(self._streams()(0).uniform(shape))

    def poisson_sample(self, records: int, rate: float) -> torch.Tensor:
        """The indices of a Poisson sample, in order: each of `records` is in it with probability `rate`."""
        if records < 0:
            raise SettingError(f"a sample needs 0 records or more to be taken from, not {records}.")
        if not 0 <= rate <= 1:
            raise SettingError(f"the sampling rate must lie in [0, 1], not {rate}.")
        streams = self._streams()
        if rate in (0, 1):
            return torch.arange(records if rate == 1 else 0)
        return torch.from_numpy(self._sample(records, rate, streams))

    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """One index a row, drawn with probability proportional to exp(logits), over the last dimension."""
        return choose(logits, self._streams()(0))

    @property
    @abstractmethod
    def generator(self) -> torch.Generator:
        """A torch generator for what privacy does not rest on: initial weights, dropout, the order of public work."""

    @abstractmethod
    def spawn(self, key: int) -> Randomness:
        """An independent child; the same `key` of a reproducible parent gives the same child."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """How far it has come, as JSON values, for `restore`; nothing where every draw is new anyway."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on drawing from where `state` was taken; the seed is not part of a state."""

    @abstractmethod
    def rounding(self, scale: float, coordinates: int, norm: Literal[1, 2] = 2) -> float:
        """How much sensitivity (L2, or L1) rounding to the noise's lattice adds to a vector of `coordinates`."""

    @abstractmethod
    def _streams(self) -> Streams:
        """The bit streams of the next call."""

    @abstractmethod
    def _sample(self, records: int, rate: float, streams: Streams) -> npt.NDArray[np.int64]:
        """A Poisson sample of a rate strictly between 0 and 1."""


class Bits:
    """The bit stream of one ChaCha20 key and nonce (RFC 8439; the nonce has 96 bits). Streams never overlap."""

    def __init__(self, key: bytes, nonce: int = 0) -> None:
        self._key, self._nonce, self._asides = key, nonce, 0
        counter_and_nonce = bytes(4) + nonce.to_bytes(12, "little")
        self._stream = Cipher(algorithms.ChaCha20(key, counter_and_nonce), mode=None).encryptor()

    def fill(self, array: npt.NDArray[Any]) -> None:
        """Overwrite a contiguous array of integers with random bits."""
        if not array.flags.c_contiguous:
            raise ValueError("only a contiguous array can be filled in place")
        target = array.reshape(-1).view(np.uint8)
        for start in range(0, target.size, len(_ZEROS)):
            part = target[start : start + len(_ZEROS)]
            # The key stream is what zeros are encrypted to; the cipher works without the interpreter's lock.
            self._stream.update_into(_ZEROS[: part.size], part.data)

    def aside(self) -> Bits:
        """Another stream of the same key, from which nothing is taken away here; of a nonce below 2^64."""
        self._asides += 1
        return Bits(self._key, self._asides << 64 | self._nonce)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` independent uniform 64-bit words."""
        array = np.empty(count, dtype=np.uint64)
        self.fill(array)
        return array

    def integer(self, bits: int) -> int:
        """One uniform integer of that many bits (a multiple of 64)."""
        return int.from_bytes(self.words(bits // 64).tobytes(), "little")

    def uniform(self, shape: Sequence[int]) -> npt.NDArray[np.float64]:
        """Independent multiples of 2^-53, uniform in [0, 1)."""
        words = self.words(math.prod(shape))
        np.right_shift(words, 11, out=words)
        return np.multiply(words, 2.0**-53).reshape(tuple(shape))


def choose(logits: torch.Tensor, bits: Bits) -> torch.Tensor:
    """One index a row of the last dimension, with probability proportional to exp(logits); -inf is never chosen.

    Formal guarantee
    ----------------
    The law is that of the exponential of the float64 logits as they are, without error: the cumulative weights are
    computed in float64, and a row whose uniform falls within their error bound of a boundary is decided again with more
    bits and more precision until it is certain. Nothing is to be added to epsilon or delta. (Gumbel noise in float64
    would leave a total variation that is hard to bound, and holes in its range.)
    """
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
    undecided = (np.abs(cumulative - target) <= error).any(axis=1)
    chosen = (cumulative <= target).sum(axis=1)
    for row in np.flatnonzero(undecided):
        chosen[row] = _choose_exactly(logits[row], int(words[row]), bits)
    return chosen


def _choose_exactly(logits: npt.NDArray[np.float64], known: int, bits: Bits) -> int:
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


def pieces(count: int, size: int) -> list[slice]:
    """So many items in blocks of at most that size, and alike in size, so that threads end together."""
    number = max(1, -(-count // size))
    return [slice(*ends) for ends in pairwise(count * piece // number for piece in range(number + 1))]


def in_blocks(count: int, streams: Streams, work: Callable[[slice, Bits], None], size: int = BLOCK) -> None:
    """Call `work` once for every block of `count` items, each with a bit stream of its own, on torch's threads."""
    blocks = pieces(count, size)
    todo = [(number, block) for number, block in enumerate(blocks) if block.stop > block.start]

    def take() -> None:
        while True:
            try:
                number, block = todo.pop()  # atomic: this list is the queue
            except IndexError:
                return
            work(block, streams(number))

    helpers = [_pool().submit(take) for _ in range(min(torch.get_num_threads(), len(blocks)) - 1)]
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
    source, result = on_cpu(value, out)
    old, new = source.numpy(), result.numpy()
    in_blocks(value.numel(), streams, lambda block, bits: noisy(old[block], block, bits, new[block]), size)
    return returned(value, out, result)


def on_cpu(value: torch.Tensor, out: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """`value` and where its noisy twin goes, as vectors in the processor's memory: `out` itself where that can be."""
    source = value.detach()
    if source.device.type != "cpu" or source.dtype not in (torch.float32, torch.float64):
        source = source.to("cpu", torch.float64 if source.dtype == torch.float64 else torch.float32)
    source = source.contiguous().view(-1)
    direct = out is not None and out.is_contiguous() and out.device == source.device and out.dtype == source.dtype
    return source, out.detach().view(-1) if out is not None and direct else torch.empty_like(source)


def returned(value: torch.Tensor, out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
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
