"""Listeners: workers that share a port leave each other their part of its connections, and have a processor each.

Clients keep their connections. Whichever worker is awake first would take all that wait, and the others none for as long as they
last: of 32 connections one of two workers was seen to have 31.
"""

from __future__ import annotations

import asyncio
import fcntl
import mmap
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from noiseproof.serve.connections import GuardedProtocol
from noiseproof.serve.logs import log_event

FILE = "NOISEPROOF_CONNECTIONS"
"""The environment variable that names the file in which workers say how many connections they have."""
WORKERS = "NOISEPROOF_WORKERS"
"""The environment variable that says how many workers there are."""

_WORKERS = 256
_COUNT = struct.Struct("q")
_AT_ONCE = 16
_LOOK_SECONDS = 0.001
_LEFT_SECONDS = 0.02
"""Seconds for which a connection is left to a worker that has fewer; then whoever is there takes it."""
_FULL_SECONDS = 1.0
"""Seconds until connections are taken again after the system had no room for one."""


class Counts:
    """How many connections this worker has and how many the others, in a file that all of them map into memory.

    A place in it is a worker's as long as it lives: it holds a lock on it, which the system lets go of when it dies.
    """

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file).open("a+b")  # noqa: SIM115
        self._file.truncate(_WORKERS * _COUNT.size)  # which leaves the counts of other workers as they are
        self._counts = mmap.mmap(self._file.fileno(), _WORKERS * _COUNT.size)
        self._place = next(place for place in range(0, len(self._counts), _COUNT.size) if self._claim(place))
        self.number = self._place // _COUNT.size
        """This worker's: no two that live have the same."""
        self.say(0)

    def _claim(self, place: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, _COUNT.size, place)
        except OSError:
            return False
        return True

    def say(self, connections: int) -> None:
        """Say how many connections this worker has."""
        # One more, so that a place that nobody ever had is told from a worker without connections.
        _COUNT.pack_into(self._counts, self._place, connections + 1)

    @property
    def least(self) -> int:
        """How many the worker has that has fewest."""
        return int(min(count for (count,) in _COUNT.iter_unpack(self._counts) if count)) - 1

    def close(self) -> None:
        """Give the place up."""
        self._counts.close()
        self._file.close()


class FairLoop(uvloop.Loop):
    """uvloop's event loop, whose server takes no more than its part where other workers listen on its socket too."""

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **options: Any
    ) -> Any:
        """A server; uvloop's, where it has its socket alone."""
        if sock is None or FILE not in os.environ:
            return await super().create_server(protocol_factory, host, port, sock=sock, **options)
        counts = Counts(os.environ[FILE])
        stay(counts.number, int(os.environ.get(WORKERS, 0)))
        return FairServer(self, protocol_factory, sock, counts, **options)


def stay(number: int, workers: int) -> None:
    """Keep this worker on a processor of its own, if there are enough workers to use all of them.

    Its threads take turns, and so do it and its database: moved between processors whenever one wakes another, they were a
    tenth slower. With fewer workers than processors a forward pass may have another one than the requests that come meanwhile.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if not processors or workers < len(processors):
        return
    with suppress(OSError):  # it cannot be seen which threads there are
        for thread in os.listdir("/proc/self/task"):
            with suppress(OSError):  # it has ended, or the system forbids it
                os.sched_setaffinity(int(thread), {processors[number % len(processors)]})


class FairServer:
    """Leaves a connection to workers that have fewer, unless none of them takes it in time: one may hang, or have died.

    A worker may have a quarter more than another, so that nobody waits for the count while very many connect at once.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        protocol: Callable[[], GuardedProtocol],
        listening: socket.socket,
        counts: Counts,
        *,
        ssl: ssl.SSLContext | None = None,
        backlog: int = 100,
    ) -> None:
        self._loop, self._protocol, self._listening, self._ssl = loop, protocol, listening, ssl
        self._counts = counts
        self._taken: set[socket.socket] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left: float | None = None
        """Since when a connection has been left to others."""
        self._patience = _LEFT_SECONDS
        self._serving = True
        listening.setblocking(False)
        listening.listen(backlog)
        self._paused: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        """Take no more connections."""
        if self._serving:
            self._serving = False
            self._pause(None)

    async def wait_closed(self) -> None:
        """Nothing is left to wait for: connections that were taken are their protocols'."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that serves it."""
        return self._loop

    def is_serving(self) -> bool:
        """Whether it takes connections."""
        return self._serving

    def _listen(self) -> None:
        self._paused = None
        self._loop.add_reader(self._listening.fileno(), self._look)

    def _pause(self, seconds: float | None) -> None:
        self._loop.remove_reader(self._listening.fileno())
        if self._paused is not None:
            self._paused.cancel()
        self._paused = None if seconds is None else self._loop.call_later(seconds, self._listen)

    def _look(self) -> None:
        """Somebody waits: take the connection, or leave it for a moment."""
        for _ in range(_AT_ONCE):
            least, now = self._counts.least, time.monotonic()
            if len(self._taken) > least + least // 4:
                self._left = self._left or now
                if now - self._left < self._patience:
                    self._pause(_LOOK_SECONDS)
                    return
                self._patience /= 2  # where nobody takes what is left to them, it is soon left no more
            else:
                self._patience = _LEFT_SECONDS
            self._left = None
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                log_event("no room for a connection", at_most=1.0, error=error.strerror)
                self._pause(_FULL_SECONDS)
                return
            self._taken.add(connection)
            self._counts.say(len(self._taken))
            task = self._loop.create_task(self._take(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _take(self, connection: socket.socket) -> None:
        def protocol() -> GuardedProtocol:
            made = self._protocol()
            made.ended = lambda: self._forget(connection)
            return made

        connection.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(protocol, connection, ssl=self._ssl)
        except OSError:  # who has gone, or speaks no TLS
            connection.close()
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        self._taken.discard(connection)
        self._counts.say(len(self._taken))
