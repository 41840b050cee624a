"""Spend: what is asked of a ledger; and what it says: paid, with a receipt, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from noiseproof.serve.ledger.amounts import Amount
from noiseproof.serve.ledger.entries import Entry


@dataclass(frozen=True)
class Retry:
    """A request that its sender may repeat: its key, and a digest of what it asks, so that no other comes under it."""

    key: str
    question: str


@dataclass(frozen=True)
class Spend:
    """A wish to pay `cost` for `answers` of a model, by a client.

    `limit` is what the client may spend on this model in all (None: what the model may). With `key` the spend is
    refused if that API key was revoked, in the same transaction. With `retry`, a spend that was made before is not made
    again.
    """

    model: str
    client: str
    cost: Amount
    answers: int = 1
    limit: Amount | None = None
    key: str | None = None
    retry: Retry | None = None


@dataclass(frozen=True)
class Balance:
    """What an account may spend and what it has spent."""

    capacity: Amount
    spent: Amount

    @property
    def left(self) -> Amount:
        """What may still be spent."""
        return self.capacity - self.spent


@dataclass(frozen=True)
class Receipt:
    """Proof of a committed spend: its entry, and the entry's hash in the chain."""

    entry: Entry
    amount: Amount
    hash: str

    @property
    def id(self) -> str:
        """The receipt's id."""
        return self.entry.receipt

    def to_json(self) -> dict[str, Any]:
        """The receipt as its holder gets it."""
        return {
            "id": self.id,
            "model": self.entry.model,
            "client": self.entry.client,
            "sequence": self.entry.sequence,
            "answers": self.entry.answers,
            "made_at": timestamp(self.entry.made_at),
            "hash": self.hash,
        }


@dataclass(frozen=True)
class Paid:
    """The spend is committed. `answer` is what was answered under the same retry key before, if anything was."""

    receipt: Receipt
    everyone: Balance
    client: Balance
    repeated: bool = False
    answer: str | None = None


@dataclass(frozen=True)
class Refused:
    """Nothing was spent."""

    reason: Literal["model", "client", "revoked", "retry"]
    """Whose budget does not cover it; or the key is revoked, or the retry key came with another question."""
    everyone: Balance
    client: Balance


def timestamp(made_at: int) -> str:
    """Microseconds since 1970 as people write them."""
    return datetime.fromtimestamp(made_at / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
