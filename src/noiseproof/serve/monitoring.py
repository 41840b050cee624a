"""Logs (one line of JSON a request, without inputs, answers or keys in it) and metrics (which name no clients)."""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import time
import traceback
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noiseproof.errors import LedgerError
from noiseproof.serve.access import Problem
from noiseproof.serve.models import LedgerConnection, ServedModel

_LOGGER = logging.getLogger("noiseproof.serve")
_UVICORN = logging.getLogger("uvicorn.error")

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


def configure(uvicorn: int = logging.WARNING) -> None:
    """Write the service's lines to stderr, and uvicorn's from that level on among them."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    for logger, used, level in ((_LOGGER, handler, logging.INFO), (_UVICORN, _Relay(), uvicorn)):
        logger.handlers = [used]
        logger.setLevel(level)
        logger.propagate = False


class _Relay(logging.Handler):
    """Makes uvicorn's messages lines of the service's; tracebacks may hold values of requests and are left out."""

    def emit(self, record: logging.LogRecord) -> None:
        log_event(record.getMessage())


def log_event(event: str, **fields: object) -> None:
    """Write one line."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _LOGGER.info("%s", json.dumps({"time": now, "event": event, **fields}))


def log_error(event: str, error: BaseException) -> None:
    """Log an error by its kind and place; its message may hold values of records or requests and is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in frames[-4:]]
    log_event(event, error=type(error).__name__, at=places)


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
            log_error("request failed", error)
            if status == 0:
                problem = Problem("internal", "The request could not be answered; its id is in X-Request-Id.")
                await problem.response()(scope, receive, note)
        seconds = time.perf_counter() - began
        route = getattr(scope.get("route"), "path", "-")
        answers = state.get("answers", 0)
        self._metrics.observe(route, state.get("model", "-"), status, answers, seconds)
        if route not in ("/healthz", "/readyz", "/metrics"):
            log_event(
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


FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client's workers hear of the folder that they share."""


class Metrics(Collector):
    """Requests, answers and seconds over all workers; and what is left of budgets, read off the ledger when asked for."""

    def __init__(self, connection: LedgerConnection, models: Iterable[ServedModel]) -> None:
        self._connection = connection
        self._models = [model for model in models if model.price is not None]
        self._registry = CollectorRegistry()
        labels = ["route", "model"]
        self._requests = Counter(
            "noiseproof_requests", "Requests by outcome.", [*labels, "status"], registry=self._registry
        )
        self._answers = Counter("noiseproof_answers", "Answers paid for.", ["model"], registry=self._registry)
        self._seconds = Histogram("noiseproof_request_seconds", "Time to answer.", labels, registry=self._registry)

    def observe(self, route: str, model: str, status: int, answers: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(route, model, status).inc()
        self._seconds.labels(route, model).observe(seconds)
        if answers:
            self._answers.labels(model).inc(answers)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        registry = self._registry
        if os.environ.get(FOLDER):
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        budgets = CollectorRegistry()
        budgets.register(self)
        return generate_latest(registry) + generate_latest(budgets)

    def collect(self) -> Iterable[Metric]:
        """The budgets."""
        left = GaugeMetricFamily("noiseproof_answers_left", "Answers left of a model's budget.", labels=["model"])
        up = 1.0
        try:
            for model in self._models:
                left.add_metric([model.name], model.answers_left(self._connection.ledger.balance(model.account)))
        except LedgerError:
            up = 0.0
        yield left
        yield GaugeMetricFamily("noiseproof_ledger_up", "Whether the ledger can be read.", value=up)
