"""Metrics for Prometheus, summed over the workers of a service; clients are not named in them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from noiseproof.errors import LedgerError
from noiseproof.serve.books import Books
from noiseproof.serve.served import ServedModel

FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable by which prometheus_client's workers hear of the folder that they share."""


class Metrics:
    """Requests, answers and seconds, and what is left of budgets."""

    def __init__(self, books: Books, models: Iterable[ServedModel]) -> None:
        self._registry = CollectorRegistry()
        labels = ["route", "model"]
        self._requests = Counter(
            "noiseproof_requests", "Requests by outcome.", [*labels, "status"], registry=self._registry
        )
        self._answers = Counter("noiseproof_answers", "Answers paid for.", ["model"], registry=self._registry)
        self._seconds = Histogram("noiseproof_request_seconds", "Time to answer.", labels, registry=self._registry)
        self._budgets = _Budgets(books, [model for model in models if model.price is not None])

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
        budgets.register(self._budgets)
        return generate_latest(registry) + generate_latest(budgets)


class _Budgets(Collector):
    """What is left of every model's budget, read off the ledger when asked for."""

    def __init__(self, books: Books, models: list[ServedModel]) -> None:
        self._books = books
        self._models = models

    def collect(self) -> Iterable[Metric]:
        """Read the ledger."""
        left = GaugeMetricFamily("noiseproof_answers_left", "Answers left of a model's budget.", labels=["model"])
        up = 1.0
        try:
            for model in self._models:
                assert model.price is not None
                balance = self._books.ledger.balance(model.name)
                left.add_metric([model.name], model.price.times_within(balance.left) or 0)
        except LedgerError:
            up = 0.0
        yield left
        yield GaugeMetricFamily("noiseproof_ledger_up", "Whether the ledger can be read.", value=up)
