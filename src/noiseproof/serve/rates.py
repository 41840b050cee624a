"""Rates: how often each client may ask, counted together by all workers of a machine."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

_SLOTS = 1 << 16
_SLOT = struct.Struct("d")
_ROUNDING = 1e-9


class Rates:
    """A steady rate with a burst, for each client (the generic cell rate algorithm, one number a client).

    The numbers lie in a file that workers map into memory, under a lock that the system lets go of when a worker dies. The
    clock is the monotonic one, which is the same for all processes and never jumps. Clients share 65,536 numbers by a
    digest of their names: two of a number share a rate, which is the worst that can happen.
    """

    def __init__(
        self, rate: float, burst: float, file: str | Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._interval = 1 / rate
        self._tolerance = burst / rate
        self._clock = clock
        self._threads = threading.Lock()
        self._file = tempfile.TemporaryFile() if file is None else Path(file).open("r+b")  # noqa: SIM115
        if file is None:
            self._file.truncate(_SLOTS * _SLOT.size)
        self._numbers = mmap.mmap(self._file.fileno(), _SLOTS * _SLOT.size)

    @staticmethod
    def create(file: str | Path) -> None:
        """Make the file that workers share."""
        with Path(file).open("wb") as made:
            made.truncate(_SLOTS * _SLOT.size)

    def wait(self, client: str) -> float:
        """0 if the client may ask now, which is then counted; else the seconds until it may."""
        slot = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=2).digest(), "little") * _SLOT.size
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                now = self._clock()
                due = max(_SLOT.unpack_from(self._numbers, slot)[0], now)
                if due - now > self._tolerance + _ROUNDING:
                    return float(due - now - self._tolerance)
                _SLOT.pack_into(self._numbers, slot, due + self._interval)
                return 0.0
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the file."""
        self._numbers.close()
        self._file.close()
