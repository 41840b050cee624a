"""Deadlines: a server that never answers must not hold a transaction for ever, and one that is away is waited for a while."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine


class Deadlines:
    """Breaks the connections of an engine whose server has been silent for too long, so that whoever waits hears an error.

    A server's own timeouts need a server that runs, and TCP's keepalives one whose machine is gone; one that is stopped,
    or a network that swallows what is sent, is noticed by neither.
    """

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._seconds = seconds
        self._connections: set[Any] = set()
        self._begun: dict[object, float] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        sa.event.listen(engine, "connect", self._opened)
        sa.event.listen(engine, "close", self._forgotten)

    @contextmanager
    def watching(self) -> Iterator[Callable[[float], None]]:
        """Around whatever waits for the server; what is given can set since when it does."""
        token = object()

        def begin(at: float) -> None:
            with self._lock:
                self._begun[token] = at

        begin(time.monotonic())
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="deadlines", daemon=True)
                self._thread.start()
        try:
            yield begin
        finally:
            with self._lock:
                del self._begun[token]

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _opened(self, connection: Any, _: object) -> None:
        with self._lock:
            self._connections.add(connection)

    def _forgotten(self, connection: Any, _: object) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _watch(self) -> None:
        while not self._closed.wait(self._seconds / 8):
            with self._lock:
                late = any(time.monotonic() - begun > self._seconds for begun in self._begun.values())
                connections = list(self._connections) if late else []
            for connection in connections:
                _break(connection)


class Patience:
    """How long a ledger that is away is waited for: from when it was first missed, so that in a long outage nobody waits."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since = self._missed = -math.inf

    def lasts(self, began: float) -> bool:
        """Whether to try again; for whoever began to wait for the ledger then, and has missed it."""
        if began - self._missed > self._seconds:  # the last time was another
            self._since = began
        self._missed = now = self._clock()
        return now - self._since < self._seconds

    def renew(self) -> None:
        """The ledger is there."""
        self._missed = -math.inf


def _break(connection: Any) -> None:
    """End a connection of psycopg's from another thread: its reader hears the end of the stream."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.pgconn.socket)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
