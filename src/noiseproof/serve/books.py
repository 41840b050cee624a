"""Books: a service's ledger, keys and answers, opened when they are first needed and again after they were lost."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from noiseproof.serve.ledger import Answers, Database, History, Keys, Ledger
from noiseproof.serve.models import ServedModel


class Books:
    """The ledger's database as one worker uses it, with an account for every model that costs something.

    A worker starts even while the database is away: until it is back, whatever needs it says so.
    """

    def __init__(self, url: str, models: Iterable[ServedModel]) -> None:
        self._url = url
        self._models = [model for model in models if model.price is not None]
        self._fingerprints = {model.name: model.fingerprint() for model in self._models}
        self._lock = threading.Lock()
        self._opened: Database | None = None

    @property
    def database(self) -> Database:
        """The open database; raises `LedgerError` while it is away."""
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._open()
        return self._opened

    @property
    def ledger(self) -> Ledger:
        """The accounts."""
        return Ledger(self.database)

    @property
    def keys(self) -> Keys:
        """Who may ask."""
        return Keys(self.database)

    @property
    def answers(self) -> Answers:
        """What was answered."""
        return Answers(self.database)

    @property
    def history(self) -> History:
        """The accounts' past."""
        return History(self.database)

    def close(self) -> None:
        """Close the database if it is open."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def _open(self) -> Database:
        database = Database(self._url)
        try:
            ledger = Ledger(database)
            for model in self._models:
                assert model.capacity is not None
                ledger.open(model.name, release=self._fingerprints[model.name], capacity=model.capacity)
        except BaseException:
            database.close()
            raise
        return database
