"""Authentication: whose API key a request has."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from noiseproof.ledger import Caller
from noiseproof.serve.books import Books
from noiseproof.serve.problems import Problem
from noiseproof.serve.rates import Rates

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
