"""Logs: lines of JSON on stderr, without inputs, answers or keys; what strangers cause is written at most so often."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

_LOGGER = logging.getLogger("noiseproof.serve")
_OTHERS = ("uvicorn.error", "asyncio", "psycopg")


def configure(uvicorn: int = logging.WARNING) -> None:
    """Write the service's lines to stderr, and uvicorn's and asyncio's from that level on among them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOGGER.handlers, _LOGGER.level, _LOGGER.propagate = [handler], logging.INFO, False
    for name in _OTHERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [Relay()], False
        logger.setLevel(uvicorn)


class Relay(logging.Handler):
    """Makes others' messages lines of the service's; tracebacks may hold values of requests and are left out.

    A message is told apart by its template: what a stranger causes a thousand times a second is one line a second.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write a message."""
        limit = 1.0 if record.levelno >= logging.WARNING else None
        log_event(record.getMessage(), at_most=limit, about=f"{record.name}: {str(record.msg)[:100]}")


@dataclass
class _Muted:
    until: float
    left_out: int = 0


_muted: dict[str, _Muted] = {}
_lock = threading.Lock()


def log_event(event: str, *, at_most: float | None = None, about: str | None = None, **fields: object) -> None:
    """Write one line.

    Args:
        event: What happened.
        at_most: Lines a second of this event, where strangers can cause it; the next line says how many were left out.
        about: What is counted as the same event, if not its name.
        fields: What else is to be known.
    """
    if at_most is not None:
        with _lock:
            now = time.perf_counter()
            muted = _muted.setdefault(about or event, _Muted(now))
            if now < muted.until:
                muted.left_out += 1
                return
            if muted.left_out:
                fields["left_out"] = muted.left_out
            _muted[about or event] = _Muted(now + 1 / at_most)
    _write(event, fields)


def _write(event: str, fields: Mapping[str, object]) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _LOGGER.info("%s", orjson.dumps({"time": stamp, "event": event, **fields}).decode())


def log_error(event: str, error: BaseException, *, id: str | None = None) -> None:
    """Log an error by its kind and place; its message may hold values of records or requests and is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-4:]]
    fields: dict[str, object] = {"error": type(error).__name__, "at": places}
    _write(event, fields if id is None else {**fields, "id": id})
