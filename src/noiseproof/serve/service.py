"""Service: its settings, and everything that one worker holds: models, ledger, batcher, keys and rates."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from annotated_types import Ge
from fastapi import Request

from noiseproof.errors import BundleError, LedgerError, SettingError
from noiseproof.privacy import Randomness, Secure
from noiseproof.releases import signing
from noiseproof.releases.release import Release
from noiseproof.releases.signing_keys import read_public_key
from noiseproof.serve.access import Authenticator, Problem, RateLimits, Room
from noiseproof.serve.batcher import Batcher
from noiseproof.serve.health import Health
from noiseproof.serve.ledger import Answers, Caller, Keys, grants, retirement, spending
from noiseproof.serve.ledger.deadlines import Patience
from noiseproof.serve.logs import log_event
from noiseproof.serve.models import LedgerConnection, ServedModel
from noiseproof.serve.monitoring import Metrics
from noiseproof.settings import Count, NonNegative, Positive, check_fields

VARIABLE = "NOISEPROOF_SERVE"
"""The environment variable by which worker processes are given the settings."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_BODIES = 8
"""Bodies of the largest size that a client may have on the way to one worker."""
_SWEEP_SECONDS = 3600.0
"""Seconds between two sweeps of answers that are kept for retries."""
_SUM_SECONDS = 15.0
"""Seconds between two times that new entries are summed up: many at once cost less, and until then whoever asks reads them."""


@dataclass(frozen=True)
class Settings:
    """What a service serves, and its limits. Nothing in it is secret but, perhaps, a password in the ledger's URL.

    Raises:
        SettingError: If a model's name cannot be part of an address, or a limit is out of range.

    Examples:
        >>> settings = Settings(ledger="sqlite:///ledger.db", bundles={"digits": "runs/digits"}, rate=20.0)
        >>> settings.rows
        1024
    """

    ledger: str
    """The ledger's URL: `sqlite:///FILE`, the path of such a file, or `postgresql://USER@HOST/NAME`."""
    bundles: Mapping[str, str] = field(default_factory=dict)
    """The folders of bundles by the names that they are served under."""
    client_answers: Annotated[int, Ge(0)] | None = None
    """How many answers of a model a client may have in all, if its key does not say; None: as many as the model has."""
    memoise: bool = False
    """Whether a client that repeats an input gets the same answer again for nothing."""
    data_sets: Mapping[str, str] = field(default_factory=dict)
    """The data sets that models were made from, by the models' names; "" for all others."""
    rate: Positive = 100.0
    """Requests a second of one client, on this machine; twice as many may come at once."""
    rows: Count = 1024
    """Inputs in one request."""
    body: Count = 8 << 20
    """Bytes of one request."""
    head_seconds: Positive = 10.0
    """How long a request's head may take to arrive, and how long a new connection may say nothing."""
    body_seconds: Positive = 10.0
    """How long a request's body may take to arrive."""
    connections: Count = 4096
    """Connections to one worker."""
    connections_by_address: Count = 256
    """Connections to one worker from one address; all that come through a proxy have the proxy's."""
    wrong_keys: Positive = 5.0
    """Wrong keys a second from one address; twenty times as many may come at once."""
    patience: NonNegative = 10.0
    """Seconds that requests wait for a ledger that has just gone away, before they are told so."""
    waiting: Count = 512
    """Requests that may wait for an answer in one worker; more are told to come back."""
    retry_hours: Positive = 24.0
    """How long an answer is kept for retries with the same idempotency key."""
    key: str | None = None
    """The file of a public key that must have signed every bundle; None: signatures are shown as not checked."""
    shared: str | None = None
    """A file that the workers of one machine share to hold clients to their rate; None: one of each worker's own."""

    def __post_init__(self) -> None:
        for name in self.bundles:
            if not _NAME.fullmatch(name):
                raise SettingError(
                    f"a model's name has 1 to 100 letters, digits or ._- and begins with a letter or digit, unlike {name!r}."
                )
        check_fields("the service", self)

    def load_bundles(self) -> dict[str, Release]:
        """The releases to be served."""
        from noiseproof.releases import bundles

        return {name: bundles.load(folder) for name, folder in self.bundles.items()}

    def signatures(self, releases: Mapping[str, Release] = MappingProxyType({})) -> dict[str, signing.Verdict]:
        """Who vouches for each bundle, as it was when these releases were loaded from them.

        Raises:
            BundleError: If one is not signed with the key that was asked for, or was changed since.
        """
        key = None if self.key is None else read_public_key(self.key)
        found = {name: signing.verify_bundle(folder, key, releases.get(name)) for name, folder in self.bundles.items()}
        for name, signature in found.items():
            if key is not None and not signature.valid:
                raise BundleError(f"{name} is not served: {signature.findings[0]}")
        return found


def name_data_sets(given: Sequence[str]) -> dict[str, str]:
    """Data sets by model: `NAME` is every model's, `MODEL=NAME` that model's."""
    return {model: name for model, _, name in (text.rpartition("=") for text in given)}


def name_bundles(given: Sequence[str]) -> dict[str, str]:
    """Folders by name: `FOLDER` is served under its own name, `NAME=FOLDER` under that."""
    named: dict[str, str] = {}
    for text in given:
        name, equals, folder = text.partition("=")
        if not equals or "/" in name:
            name, folder = Path(text).resolve().name, text
        if name in named:
            raise SettingError(f"two bundles would be served as {name!r}; write NAME=FOLDER for one of them.")
        named[name] = folder
    return named


class Service:
    """One worker's models and its connection to the ledger."""

    def __init__(self, settings: Settings, releases: Mapping[str, Release], rng: Randomness | None = None) -> None:
        self.settings = settings
        named = settings.data_sets
        signatures = settings.signatures(releases)
        self.models = {
            name: ServedModel(
                name,
                release,
                rows=settings.rows,
                data_set=named.get(name, named.get("")),
                bundle=settings.bundles.get(name),
                signature=signatures.get(name, signing.Verdict(False)),
            )
            for name, release in releases.items()
        }
        for name, model in self.models.items():
            if model.card.randomness == "reproducible":
                raise SettingError(
                    f"{name} is a rehearsal: whoever knows its seed can undo its noise; train it again without --seed."
                )
        self.connection = LedgerConnection(settings.ledger, self.models.values())
        self.metrics = Metrics(self.connection)
        self.rates = RateLimits(settings.rate, burst=2 * settings.rate, file=settings.shared)
        wrong = None if settings.shared is None else f"{settings.shared}-wrong-keys"
        self.wrong_keys = RateLimits(settings.wrong_keys, burst=20 * settings.wrong_keys, file=wrong)
        self.room = Room(_BODIES * settings.body)
        self.authenticator = Authenticator(
            lambda keys: Keys(self.connection.database).check_all(keys),
            self.rates,
            self.wrong_keys,
            patience=Patience(settings.patience),
        )
        self.batcher = Batcher(
            self.connection, rng or Secure(), settings.waiting, self.metrics, Patience(settings.patience)
        )
        self.health = Health(self.connection, self.batcher, look=self._look)
        self.retired: frozenset[str] = frozenset()
        """Names of models that an operator retired, as of a moment ago."""
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)

    def start(self) -> None:
        """Start to answer."""
        for name, model in self.models.items():
            log_event("model served", model=name, verdict=model.verdict, signature=model.signature.status)
        self.batcher.start()
        self._sweeper.start()
        self.health.start()

    def stop(self) -> None:
        """Answer what waits, then close everything."""
        self._stopped.set()
        self.health.stop()
        self.batcher.stop()
        self._sweeper.join()
        self.close()

    def close(self) -> None:
        """Close the ledger and the rate limits of a service that was not started."""
        self.connection.close()
        self.rates.close()
        self.wrong_keys.close()

    def model(self, name: str) -> ServedModel:
        """The model of that name, or a problem."""
        if name not in self.models:
            raise Problem("not-found", "There is no model of this name; GET /v1/models lists those there are.")
        return self.models[name]

    def answering(self, name: str) -> ServedModel:
        """The model of that name, if it answers still, or a problem."""
        model = self.model(name)
        if name in self.retired:
            raise Problem("retired", "This model was retired and answers no more; nothing was spent.")
        return model

    def retire(self, name: str) -> None:
        """Close a model's budget for good, and let it answer no more; other workers hear of it within seconds."""
        model = self.model(name)
        if model.price is not None:
            self.connection.ledger.close(model.account)
        retirement.retire(self.connection.database, name)
        self._look()

    def limit(self, caller: Caller) -> int | None:
        """How many answers of each model a client may have; None: as many as the model has."""
        return self.settings.client_answers if caller.answers is None else caller.answers

    def _look(self) -> None:
        self.connection.ledger.note()
        database = self.connection.database
        self.retired = retirement.retired(database)
        with database.reading() as connection:
            self.authenticator.saw(grants.mark(connection))

    def _sweep(self) -> None:
        due = time.monotonic() + _SWEEP_SECONDS
        more = False
        while not self._stopped.wait(0.1 if more else _SUM_SECONDS):
            try:
                more = spending.sum_up(self.connection.database)
                if time.monotonic() > due:
                    due = time.monotonic() + _SWEEP_SECONDS
                    Answers(self.connection.database).sweep(3600 * self.settings.retry_hours)
            except LedgerError:
                more = False  # the ledger is away; the next time takes what this one left


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service
