"""Connections: uvicorn's, with a deadline for a request's head, and limits on how many there are and from one address."""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from noiseproof.serve.access import MEDIA_TYPE, Problem
from noiseproof.serve.logs import log_event

if TYPE_CHECKING:
    from noiseproof.serve.service import Service

_HEAD_BYTES = 32 << 10
"""Bytes of a request's head; more are refused."""
_TOO_LARGE = Problem("too-large", "The request's head is too large.")
_EXCHANGE_SECONDS = 120.0
"""Seconds from a request's head to the end of its answer; the ledger's own deadlines are shorter."""


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Whoever sends half a request is not waited for; whoever has too many connections gets no more.

    Its limits are the settings of the service that the app's lifespan state names.
    """

    _addresses: ClassVar[Counter[str]] = Counter()
    """How many connections of this worker come from each address."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        service: Service = self.app_state["service"]
        self._settings, self._metrics = service.settings, service.metrics
        self._deadline: TimerHandle | None = None
        self._head = 0  # bytes since the last exchange
        self._read = 0  # bytes of the address and the headers of this request
        self._in_exchange = False
        self._begun = False  # whether a head has begun that is not complete
        self._address: str | None = None
        self.ended: Callable[[], None] = lambda: None
        """Called when the connection is lost."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, if there are not too many."""
        super().connection_made(transport)
        self._address = address = self.client[0] if self.client else "local"
        self._addresses[address] += 1
        if self._addresses[address] > self._settings.connections_by_address:
            self._refuse(Problem("too-many-requests", "Too many connections come from this address."))
        elif len(self.connections) > self._settings.connections:
            self._refuse(Problem("overloaded", "There are too many connections.", headers={"Retry-After": "1"}))
        else:
            self._within(self._settings.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        super().connection_lost(exc)
        self.ended()
        self._within(None)
        if self._address is not None:
            self._addresses[self._address] -= 1
            if self._addresses[self._address] <= 0:
                del self._addresses[self._address]
            self._address = None

    def data_received(self, data: bytes) -> None:
        """Read on, and hold what is still no whole head to its size and its time."""
        if self.transport.is_closing():
            return
        if not self._in_exchange:
            if self._deadline is None:
                self._within(self._settings.head_seconds)
            self._head += len(data)
        super().data_received(data)
        if not self._in_exchange and self._head > _HEAD_BYTES and not self.transport.is_closing():
            self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        """A head begins."""
        self._begun, self._read = True, 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """The address, or a part of it."""
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head; those behind a body, which may have no end, nobody reads."""
        if self._begun:
            self._count(name + value)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is there: now the exchange has its own deadline."""
        self._in_exchange, self._begun, self._head = True, False, 0
        self._within(_EXCHANGE_SECONDS)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """An exchange is over; the next goes on, or its head must arrive, or uvicorn's timer for idle connections runs."""
        self._in_exchange = bool(self.pipeline)
        begun = self._settings.head_seconds if self._begun else None
        self._within(_EXCHANGE_SECONDS if self._in_exchange else begun)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or too much of it."""
        self._refuse(
            _TOO_LARGE
            if self._read > _HEAD_BYTES
            else Problem("bad-request", "This is no request that can be read here.")
        )

    def _count(self, part: bytes) -> None:
        """Count what a head holds: one that comes in a single piece is complete before its bytes are counted."""
        self._read += len(part)
        if self._read > _HEAD_BYTES:
            raise ValueError("the head is too large")  # which ends the parser

    def _within(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        if self._in_exchange:
            self.transport.abort()  # who does not read an answer reads no refusal either
        else:
            self._refuse(Problem("too-slow", "The request did not arrive in time."))

    def _refuse(self, problem: Problem) -> None:
        kind = problem.details.type.rpartition(":")[2]
        self._metrics.observe_refused(kind)
        log_event("connection refused", at_most=1.0, why=kind, address=self._address)
        self._within(None)
        body = problem.body()
        head = f"HTTP/1.1 {problem.details.status} {kind}\r\ncontent-type: {MEDIA_TYPE}\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        self.transport.close()
        # Who does not read the refusal is not waited for either.
        self.loop.call_later(1.0, self.transport.abort)
