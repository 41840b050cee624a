"""Question: one request, checked and ready to be paid for; and what becomes of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from noiseproof.ledger import Caller, Refused, Retry, Spend
from noiseproof.serve.served import ServedModel


@dataclass(eq=False)
class Question:
    """What is asked of which model, for whom."""

    model: ServedModel
    caller: Caller
    features: torch.Tensor
    secret: bytes
    """What digests of inputs are keyed with; it comes from the API key, so that the database alone tells no inputs."""
    limit: int | None = None
    """How many answers the client may have of this model in all."""
    retry_key: str | None = None
    memoise: bool = False
    known: dict[str, str] = field(default_factory=dict)
    """Answers that this client had to the same inputs before, by digest."""

    def __post_init__(self) -> None:
        rows = self.features.flatten(1).numpy()
        self.digests = [_digest(row.tobytes(), self.secret) for row in rows] if self.memoise else []
        self.fresh = list(range(len(rows)))
        """The rows that must be paid for and answered anew."""

    def recall(self, known: Mapping[str, str]) -> None:
        """Take over answers given before; a row that comes twice is answered once."""
        self.known = dict(known)
        first: dict[str, int] = {}
        for row, digest in enumerate(self.digests):
            if digest not in self.known:
                first.setdefault(digest, row)
        self.fresh = list(first.values())

    @property
    def spend(self) -> Spend:
        """What it costs."""
        assert self.model.price is not None
        price, rows = self.model.price, len(self.fresh)
        limit = None if self.limit is None else price * self.limit
        retry = None if self.retry_key is None else Retry(self.retry_key, self._question())
        return Spend(self.model.name, self.caller.client, price * rows, rows, limit, self.caller.key, retry)

    def _question(self) -> str:
        # Whether repeats are free belongs to the question: a receipt for the fresh rows alone must not buy all.
        content = f"{self.memoise} {tuple(self.features.shape)} ".encode() + self.features.numpy().tobytes()
        return _digest(content, self.secret)


@dataclass(frozen=True)
class Reply:
    """The document to send; `answers` were paid for by the receipt of that id."""

    document: bytes
    answers: int = 0
    receipt: str | None = None
    replayed: bool = False


Outcome = Reply | Refused


def _digest(content: bytes, secret: bytes) -> str:
    return hashlib.blake2b(content, key=secret, digest_size=24).hexdigest()
