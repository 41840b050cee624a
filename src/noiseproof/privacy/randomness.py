"""Randomness: `Reproducible` for research, `Secure` for what leaves the house. One interface for both."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from noiseproof.errors import SettingError


class Randomness(ABC):
    """Where every random number of a release comes from.

    Noise is *added to a value* rather than drawn, because safe noise must round the value to its lattice first.
    Values that are NaN or infinite and scales that are not greater than 0 are refused.
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

    @abstractmethod
    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """Independent float64 uniforms in [0, 1), multiples of 2^-53."""

    @abstractmethod
    def poisson_sample(self, records: int, rate: float) -> torch.Tensor:
        """The indices of a Poisson sample, in order: each of `records` is in it with probability `rate`."""

    @abstractmethod
    def choose(self, logits: torch.Tensor) -> torch.Tensor:
        """One index a row, drawn with probability proportional to exp(logits), over the last dimension."""

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


def check_sample(records: int, rate: float) -> None:
    """Refuse a Poisson sample that cannot be."""
    if records < 0:
        raise SettingError(f"a sample needs 0 records or more to be taken from, not {records}.")
    if not 0 <= rate <= 1:
        raise SettingError(f"the sampling rate must lie in [0, 1], not {rate}.")


# ChaCha20 as a source of random bits: fast, and any part of the stream can be had without the parts before it.


KEY_BYTES = 32

Streams = Callable[[int], "Bits"]
"""The independent bit streams of one call, by number, so that threads can share the work and the result not depend."""

_ZEROS = memoryview(bytes(1 << 20))


class Bits:
    """The bit stream of one ChaCha20 key and nonce (RFC 8439; the nonce has 96 bits). Streams never overlap."""

    def __init__(self, key: bytes, nonce: int = 0) -> None:
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
