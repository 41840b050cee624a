"""Logs: one line of JSON a request, without inputs, answers or keys in it."""

from __future__ import annotations

import json
import logging
import secrets
import sys
import time
import traceback

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noiseproof.serve.metrics import Metrics
from noiseproof.serve.problems import Problem

_LOGGER = logging.getLogger("noiseproof.serve")

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def configure() -> None:
    """Write the service's lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False


def line(event: str, **fields: object) -> None:
    """Write one line."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _LOGGER.info("%s", json.dumps({"time": now, "event": event, **fields}))


def tell(event: str, error: BaseException) -> None:
    """Note an error by its kind and place. Its message may hold values of records or requests, and is not written."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-4:]]
    line(event, error=type(error).__name__, at=places)


class RequestLog:
    """The outermost layer of the app: an id and a line for every request, and a problem for whatever went wrong in it."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and note what became of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        id = secrets.token_hex(8)
        state = scope.setdefault("state", {})
        status = 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = id
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            tell("request failed", error)
            if status == 0:
                problem = Problem("internal", "The request could not be answered; its id is in X-Request-Id.")
                await problem.response()(scope, receive, note)
        seconds = time.perf_counter() - began
        route = getattr(scope.get("route"), "path", "-")
        answers = state.get("answers", 0)
        self._metrics.observe(route, state.get("model", "-"), status, answers, seconds)
        if route not in ("/healthz", "/readyz", "/metrics"):
            line(
                "request",
                id=id,
                client=state.get("client"),
                method=scope["method"],
                route=route,
                model=state.get("model"),
                status=status,
                answers=answers,
                receipt=state.get("receipt"),
                ms=round(1000 * seconds, 2),
            )
