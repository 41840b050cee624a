"""Settings of a service: what it serves, where its ledger is, and its limits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from noiseproof.errors import SettingError

VARIABLE = "NOISEPROOF_SERVE"
"""The environment variable by which worker processes hear of the settings."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True)
class Settings:
    """What a service serves, and its limits. Nothing in it is secret but, perhaps, a password in the ledger's URL."""

    ledger: str
    bundles: Mapping[str, str] = field(default_factory=dict)
    """The folders of bundles by the names that they are served under."""
    client_answers: int | None = None
    """How many answers of a model a client may have in all, if nothing else is said of the client; None: the model's."""
    memoise: bool = False
    """Whether a client that repeats a question gets the same answer again for nothing."""
    allow_seeded: bool = False
    """Whether releases that were made with seeded randomness, whose cards say not to release them, are served."""
    rate: float = 100.0
    """Requests a second of one client, on this machine; twice as many may come at once."""
    rows: int = 1024
    """Inputs in one request."""
    body: int = 8 << 20
    """Bytes of one request."""
    body_seconds: float = 10.0
    """How long a request's body may take to arrive."""
    waiting: int = 512
    """Requests that may wait for an answer in one worker; more are told to come back."""
    retry_hours: float = 24.0
    """How long an answer is kept for retries with the same idempotency key."""
    shared: str | None = None
    """A file that the workers of one machine share to hold clients to their rate; None: one of each worker's own."""

    def __post_init__(self) -> None:
        for name in self.bundles:
            if not _NAME.fullmatch(name):
                raise SettingError(
                    f"a model's name has 1 to 100 letters, digits or ._- and no sign first, unlike {name!r}."
                )
        positive = {"rate": self.rate, "rows": self.rows, "body": self.body, "waiting": self.waiting}
        for name, value in {**positive, "body_seconds": self.body_seconds, "retry_hours": self.retry_hours}.items():
            if not (math.isfinite(value) and value > 0):
                raise SettingError(f"the service's {name} must be a finite number greater than 0, not {value}.")
        if self.client_answers is not None and self.client_answers < 0:
            raise SettingError(f"a client's number of answers must be 0 or more, not {self.client_answers}.")

    def to_json(self) -> str:
        """The settings for a worker's environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that a worker was given."""
        return cls(**json.loads(text))


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
