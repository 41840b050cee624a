"""What a request must pass: a valid API key and a rate; and how a refusal looks (RFC 9457)."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import math
import mmap
import struct
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger import Caller, LedgerAwayError
from noiseproof.serve.ledger.deadlines import Patience
from noiseproof.serve.logs import log_event

MEDIA_TYPE = "application/problem+json"
BEARER = HTTPBearer(auto_error=False, scheme_name="API key", description="A key from `noiseproof keys create`.")
KEY_PROBLEMS = ("unauthorised", "too-many-requests", "ledger-unavailable")
"""What may go wrong wherever a key is needed."""

_TITLES = {
    "bad-request": (400, "The request cannot be read"),
    "unauthorised": (401, "A valid API key is needed"),
    "forbidden": (403, "This key may not do that"),
    "budget-exhausted": (403, "The privacy budget does not cover this"),
    "not-found": (404, "There is no such thing here"),
    "method-not-allowed": (405, "This cannot be done here"),
    "retired": (410, "The model was retired"),
    "too-slow": (408, "The request took too long to arrive"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The body must be JSON, an npy file or an Arrow stream"),
    "unprocessable": (422, "The inputs do not fit the model"),
    "idempotency-mismatch": (422, "The idempotency key belongs to another request"),
    "too-many-requests": (429, "Too many requests"),
    "internal": (500, "Something went wrong here"),
    "overloaded": (503, "Too many requests are waiting"),
    "ledger-unavailable": (503, "The ledger cannot be reached"),
}


class ProblemDetails(BaseModel):
    """An error as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str


class Problem(Exception):
    """A request that is refused; `kind` is the last part of the problem's type."""

    def __init__(self, kind: str, detail: str, *, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        status, title = _TITLES[kind]
        type = f"urn:noiseproof:problem:{kind}"
        self.details = ProblemDetails(type=type, title=title, status=status, detail=detail, **more)
        self._headers = headers

    def body(self) -> bytes:
        """The problem as JSON."""
        return to_json(self.details)

    def response(self) -> Response:
        """The problem as it is sent."""
        return Response(self.body(), self.details.status, self._headers, MEDIA_TYPE)


def documented(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """Problems for an operation's OpenAPI document."""
    content = {MEDIA_TYPE: {"schema": ProblemDetails.model_json_schema()}}
    found: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        status, title = _TITLES[kind]
        described = f"{found[status]['description']}; {title}" if status in found else title
        found[status] = {"description": described, "content": content}
    return found


def install(app: FastAPI) -> None:
    """Make every error of an app a problem."""

    @app.exception_handler(Problem)
    async def _problem(_: Request, error: Problem) -> Response:
        return error.response()

    @app.exception_handler(LedgerError)
    async def _ledger(_: Request, error: LedgerError) -> Response:
        detail = "The ledger cannot be used at the moment; nothing was answered."
        return Problem("ledger-unavailable", detail, headers={"Retry-After": "1"}).response()

    @app.exception_handler(RequestValidationError)
    async def _validation(_: Request, error: RequestValidationError) -> Response:
        where = ", ".join(sorted({str(found["loc"][-1]) for found in error.errors() if found["loc"][0] != "body"}))
        return Problem("unprocessable", f"These parameters are not as documented: {where or 'unknown'}.").response()

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        kinds = {404: "not-found", 405: "method-not-allowed"}
        kind = kinds.get(error.status_code, "bad-request" if error.status_code < 500 else "internal")
        headers = dict(error.headers) if error.headers else None
        return Problem(kind, "There is nothing at this address for this method.", headers=headers).response()


_FRESH = 1.0
"""Seconds for which a key that was found good is not looked up again; a spend looks again in its own transaction."""
_SEEN = 6.0
"""Seconds after which a worker that could not look whether rights have changed takes no key for known any more."""
_OLDEST = 600.0
"""Seconds after which a key is looked up again in any case."""
_RETRY_SECONDS = 0.5
"""Seconds until a ledger that is away is asked again."""
_KNOWN = 1 << 17
_AT_ONCE = 64
"""Keys that are looked up together."""
_LONGEST = 200


class Authenticator:
    """Finds the client of an API key; holds clients to their rate, and addresses to a rate of wrong keys.

    Whose key was right a moment ago is not held up by others at the same address who guess.
    """

    def __init__(
        self,
        check: Callable[[Sequence[str]], Sequence[Caller | None]],
        rates: RateLimits,
        wrong: RateLimits,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience | None = None,
    ) -> None:
        self._check_keys = check
        self._asked: list[tuple[str, asyncio.Future[Caller | None]]] = []
        self._asking: asyncio.Task[None] | None = None
        self._rates = rates
        self._wrong = wrong
        self._clock = clock
        self._patience = patience or Patience(0.0)
        # By a digest of the whole key: how long it takes to look there tells nothing about the keys that are in it.
        self._known: OrderedDict[bytes, tuple[float, Caller]] = OrderedDict()
        self._looked = -math.inf
        self._rights: object = None

    def saw(self, rights: object) -> None:
        """What tells the present state of keys and rights from every other: keys are looked up again when it changes."""
        if rights != self._rights:
            self._rights, self._known = rights, OrderedDict()
        self._looked = self._clock()

    async def authenticate(self, request: Request, key: str | None) -> Caller:
        """Who asks, or a problem: no key or a wrong one (401), or too often (429)."""
        address = request.client.host if request.client else "local"
        caller = await self._check(key, address) if key is not None and len(key) <= _LONGEST else None
        if caller is None:
            if key is not None:
                self._wrong.wait(address)  # which counts it
                log_event("wrong key", at_most=1.0, address=address)
            raise Problem(
                "unauthorised",
                "Send `Authorization: Bearer KEY` with a key that `noiseproof keys create` made and nobody revoked.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        assert key is not None
        request.state.client = caller.client
        request.state.secret = caller.secret
        wait = self._rates.wait(caller.client)
        if wait > 0:
            raise _too_often("You ask more often than this service allows; wait as Retry-After says.", wait)
        return caller

    async def _check(self, key: str, address: str) -> Caller | None:
        digest = hashlib.sha256(key.encode()).digest()
        known = self._known
        found = known.get(digest)
        if found is not None and self._is_good(*found):
            return found[1]
        if found is None and (wait := self._wrong.wait(address, count=False)) > 0:
            raise _too_often("Too many wrong keys came from this address; wait as Retry-After says.", wait)
        known.pop(digest, None)
        while True:
            began = self._clock()
            try:
                caller = await self._look_up(key)
                break
            except LedgerAwayError:
                if not self._patience.lasts(began):
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
        self._patience.renew()
        if caller is not None:
            known[digest] = self._clock(), caller  # where nobody looks any more, if rights have changed meanwhile
            if len(known) > _KNOWN:
                known.popitem(last=False)
        return caller

    async def _look_up(self, key: str) -> Caller | None:
        """Whose key it is, by the ledger; together with those that came while it was asked about others."""
        told: asyncio.Future[Caller | None] = asyncio.get_running_loop().create_future()
        self._asked.append((key, told))
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        return await told

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked[:_AT_ONCE], self._asked[_AT_ONCE:]
            found: Sequence[Caller | None] | Exception
            try:
                found = await run_in_threadpool(self._check_keys, [key for key, _ in asked])
            except Exception as error:
                found = error
            for place, (_, told) in enumerate(asked):
                if told.done():  # who waited has gone
                    continue
                if isinstance(found, Exception):
                    told.set_exception(found)
                else:
                    told.set_result(found[place])

    def _is_good(self, checked: float, caller: Caller) -> bool:
        now = self._clock()
        if caller.expires_at is not None and caller.expires_at <= time.time_ns() // 1000:
            return False
        return now - checked < _FRESH or (now - self._looked < _SEEN and now - checked < _OLDEST)


def _too_often(detail: str, wait: float) -> Problem:
    return Problem("too-many-requests", detail, headers={"Retry-After": str(int(wait) + 1)})


_SLOTS = 1 << 16
_SLOT = struct.Struct("d")
_ROUNDING = 1e-9


class RateLimits:
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
        self._file = tempfile.TemporaryFile() if file is None else Path(file).open("a+b")  # noqa: SIM115
        self._file.truncate(_SLOTS * _SLOT.size)  # which leaves the numbers of other workers as they are
        self._numbers = mmap.mmap(self._file.fileno(), _SLOTS * _SLOT.size)

    def wait(self, client: str, *, count: bool = True) -> float:
        """0 if the client may ask now, which is counted unless told otherwise; else the seconds until it may."""
        slot = int.from_bytes(hashlib.blake2b(client.encode(), digest_size=2).digest(), "little") * _SLOT.size
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                now = self._clock()
                due = max(_SLOT.unpack_from(self._numbers, slot)[0], now)
                if due - now > self._tolerance + _ROUNDING:
                    return float(due - now - self._tolerance)
                if count:
                    _SLOT.pack_into(self._numbers, slot, due + self._interval)
                return 0.0
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of the file."""
        self._numbers.close()
        self._file.close()


class Room:
    """Bytes of bodies that each client may have on the way to this worker, so that none fills the memory of all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, client: str, size: int) -> Iterator[None]:
        """Hold room for a body while it is read.

        Raises:
            Problem: If the client has too much on the way; nothing of the body was read.
        """
        if self._taken[client] + size > self._most:
            detail = "Too much of this client is on the way at once; send less at the same time."
            raise Problem("too-many-requests", detail, headers={"Retry-After": "1"})
        self._taken[client] += size
        try:
            yield
        finally:
            self._taken[client] -= size
            if not self._taken[client]:
                del self._taken[client]
