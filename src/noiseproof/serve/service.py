"""Service: everything that one worker holds: models, books, the batcher, and who stands at the door."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from noiseproof.errors import LedgerError, SettingError
from noiseproof.privacy import Randomness, Secure
from noiseproof.releases.release import Release
from noiseproof.serve.access import Doorman, Rates
from noiseproof.serve.batcher import Batcher
from noiseproof.serve.books import Books
from noiseproof.serve.ledger import Caller
from noiseproof.serve.models import ServedModel
from noiseproof.serve.monitoring import Metrics
from noiseproof.serve.problems import Problem
from noiseproof.serve.settings import Settings

_SWEEP = 3600.0
"""Seconds between two sweeps of answers that are kept for retries."""


class Service:
    """One worker's models and books."""

    def __init__(self, settings: Settings, releases: Mapping[str, Release], rng: Randomness | None = None) -> None:
        self.settings = settings
        self.models = {name: ServedModel(name, release, rows=settings.rows) for name, release in releases.items()}
        for name, model in self.models.items():
            if model.release.card.randomness == "reproducible" and not settings.allow_seeded:
                raise SettingError(
                    f"{name} was made with seeded randomness, and its card says not to release it; make it again with "
                    "--secure, or serve it for research with --allow-seeded."
                )
        self.books = Books(settings.ledger, self.models.values())
        self.metrics = Metrics(self.books, self.models.values())
        self.rates = Rates(settings.rate, burst=2 * settings.rate, file=settings.shared)
        self.doorman = Doorman(self.books, self.rates)
        self.batcher = Batcher(self.books, rng or Secure(), settings.waiting)
        self._ended = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)

    def start(self) -> None:
        """Start to answer."""
        self.batcher.start()
        self._sweeper.start()

    def stop(self) -> None:
        """Answer what waits, then let go of everything."""
        self._ended.set()
        self.batcher.stop()
        self._sweeper.join()
        self.books.close()
        self.rates.close()

    def model(self, name: str) -> ServedModel:
        """The model of that name, or a problem."""
        if name not in self.models:
            raise Problem("not-found", "There is no model of this name; GET /v1/models lists those there are.")
        return self.models[name]

    def limit(self, caller: Caller) -> int | None:
        """How many answers of each model a client may have; None: as many as the model has."""
        return self.settings.client_answers if caller.answers is None else caller.answers

    def _sweep(self) -> None:
        while not self._ended.wait(_SWEEP):
            try:
                self.books.answers.sweep(3600 * self.settings.retry_hours)
            except LedgerError:
                continue  # the ledger is away; the next sweep takes what this one left
