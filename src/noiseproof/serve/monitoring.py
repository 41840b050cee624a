"""Every request's id, line in the log and span; and metrics, which name no clients."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noiseproof.errors import LedgerError
from noiseproof.serve import tracing
from noiseproof.serve.access import Problem
from noiseproof.serve.logs import log_error, log_event
from noiseproof.serve.models import LedgerConnection

_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
]
_QUIET = ("/healthz", "/readyz", "/metrics")
"""Routes that machines ask every few seconds."""
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_STRANGERS = 20.0
"""Lines a second about requests without a valid key."""


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
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        id = given.decode() if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        state = scope.setdefault("state", {})
        status = 0

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", id.encode()), *_HEADERS]
            await send(message)

        with tracing.span(headers.get(b"traceparent")) as span:
            try:
                await self._app(scope, receive, note)
            except Exception as error:
                log_error("request failed", error, id=id)
                if status == 0:
                    problem = Problem("internal", "The request could not be answered; its id is in X-Request-Id.")
                    await problem.response()(scope, receive, note)
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", "-")
            line = {
                "id": id,
                "client": state.get("client"),
                "method": scope["method"],
                "route": route,
                "model": state.get("model"),
                "status": status,
                "answers": state.get("answers", 0),
                "receipt": state.get("receipt"),
                "ms": round(1000 * seconds, 2),
            }
            tracing.describe(span, line)
        self._metrics.observe(route, line["model"] or "-", status, line["answers"], seconds)
        if route not in _QUIET:
            log_event("request", at_most=None if line["client"] else _STRANGERS, **line)


FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client's workers hear of the folder that they share."""
RESTARTS = "restarts"
"""The file in it that says how many workers were replaced."""


class Metrics(Collector):
    """Requests, answers and seconds over all workers; and what is left of budgets, read off the ledger when asked for."""

    def __init__(self, connection: LedgerConnection) -> None:
        self._connection = connection
        self._models = [model for model in connection.models if model.price is not None]
        self._registry = CollectorRegistry()
        labels = ["route", "model"]
        self._requests = Counter(
            "noiseproof_requests", "Requests by outcome.", [*labels, "status"], registry=self._registry
        )
        self._answers = Counter("noiseproof_answers", "Answers paid for.", ["model"], registry=self._registry)
        self._seconds = Histogram("noiseproof_request_seconds", "Time to answer.", labels, registry=self._registry)

        self._refused = Counter(
            "noiseproof_connections_refused", "Connections refused, by reason.", ["why"], registry=self._registry
        )
        self._commits = Histogram(
            "noiseproof_commit_seconds", "Time to commit a batch and to work out its answers.", registry=self._registry
        )
        self._batches = Histogram(
            "noiseproof_batch_requests",
            "Requests that one commit paid for.",
            buckets=[2.0**k for k in range(7)],
            registry=self._registry,
        )
        self._queue = Gauge(
            "noiseproof_requests_waiting",
            "Requests that waited when a batch was paid for.",
            multiprocess_mode="livesum",
            registry=self._registry,
        )
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}

    def observe(self, route: str, model: str, status: int, answers: int, seconds: float) -> None:
        """Count a request."""
        known = self._known.get((route, model, status))
        if known is None:
            known = self._requests.labels(route, model, status), self._seconds.labels(route, model)
            self._known[route, model, status] = known
        known[0].inc()
        known[1].observe(seconds)
        if answers:
            self._answers.labels(model).inc(answers)

    def observe_commit(self, seconds: float, requests: int, waiting: int) -> None:
        """Count a commit, the requests that it paid for, and those that wait for the next."""
        self._commits.observe(seconds)
        self._batches.observe(requests)
        self._queue.set(waiting)

    def observe_refused(self, why: str) -> None:
        """Count a connection that was refused."""
        self._refused.labels(why).inc()

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
        if folder := os.environ.get(FOLDER):
            file = Path(folder) / RESTARTS
            restarts = int(file.read_text()) if file.is_file() else 0
            yield CounterMetricFamily("noiseproof_worker_restarts", "Workers that were replaced.", value=restarts)
        yield GaugeMetricFamily("noiseproof_ledger_up", "Whether the ledger can be read.", value=up)
