"""ChaCha20 as a source of random bits: fast, and any part of the stream can be had without the parts before it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

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
