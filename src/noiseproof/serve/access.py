"""Authentication: whose API key a request has."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import struct
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from noiseproof.serve.books import Books
from noiseproof.serve.ledger import Caller
from noiseproof.serve.problems import Problem

_FRESH = 1.0
"""Seconds for which a key that was found good is not looked up again; a spend looks again in its own transaction."""
_KNOWN = 4096
_LONGEST = 200


class Doorman:
    """Checks keys, and how often their clients come."""

    def __init__(self, books: Books, rates: Rates, clock: Callable[[], float] = time.monotonic) -> None:
        self._books = books
        self._rates = rates
        self._clock = clock
        # By a digest of the whole key: how long it takes to look there tells nothing about the keys that are in it.
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()

    async def let_in(self, request: Request, key: str | None) -> Caller:
        """Who asks, or a problem: no key or a wrong one (401), or too often (429)."""
        caller = await self._check(key) if key is not None and len(key) <= _LONGEST else None
        if caller is None:
            raise Problem(
                "unauthorised",
                "Send `Authorization: Bearer KEY` with a key that `noiseproof keys create` made and nobody revoked.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        assert key is not None
        request.state.client = caller.client
        request.state.secret = hashlib.sha256(b"digests of inputs " + key.encode()).digest()
        wait = self._rates.wait(caller.client)
        if wait > 0:
            raise Problem(
                "too-many-requests",
                "You ask more often than this service allows; wait as Retry-After says.",
                headers={"Retry-After": str(int(wait) + 1)},
            )
        return caller

    async def _check(self, key: str) -> Caller | None:
        digest = hashlib.sha256(key.encode()).digest()
        found = self._known.get(digest)
        if found is not None and self._clock() < found[0]:
            return found[1]
        self._known.pop(digest, None)
        caller = await run_in_threadpool(self._look_up, key)
        if caller is not None:
            self._known[digest] = self._clock() + _FRESH, caller
            if len(self._known) > _KNOWN:
                self._known.popitem(last=False)
        return caller

    def _look_up(self, key: str) -> Caller | None:
        return self._books.keys.check(key)


# Rates: how often each client may ask, counted together by all workers of a machine.


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
