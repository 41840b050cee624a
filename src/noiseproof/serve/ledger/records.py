"""What is asked of a ledger (`Spend`), what it answers (`Paid`, `Refused`), and what it keeps: entries in a hash chain."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

from sqlalchemy import RowMapping

from noiseproof.serve.ledger.amounts import Amount, Measure

Kind = Literal["limit", "spend"]
"""`limit`: a client's capacity was set to `units`. `spend`: `units` were spent for `answers`."""


@dataclass(frozen=True)
class Chain:
    """Whose history it is: a model, the release that it answers from, and what is counted."""

    model: str
    release: str
    measure: Measure
    orders: tuple[float, ...]

    @classmethod
    def from_row(cls, row: Any) -> Chain:
        """The chain that a row of `models` begins."""
        return cls(row.model, row.release, row.measure, tuple(json.loads(row.orders)))

    @property
    def origin(self) -> str:
        """The hash that the first entry follows."""
        return _digest(asdict(self))

    def amount(self, units: tuple[int, ...]) -> Amount:
        """Units of this chain's measure."""
        return Amount(self.measure, units, self.orders)


@dataclass(frozen=True)
class Entry:
    """One line of history. `made_at` (microseconds since 1970) is what the clock said: order comes from `sequence`."""

    model: str
    sequence: int
    receipt: str
    kind: Kind
    client: str
    answers: int
    units: tuple[int, ...]
    made_at: int

    def hash_after(self, previous: str) -> str:
        """The hash of this entry in a chain whose last hash is `previous`."""
        return _digest({**vars(self), "previous": previous})

    def row(self, hash: str) -> dict[str, Any]:
        """The entry as it is stored."""
        return {**vars(self), "units": json.dumps(self.units), "hash": hash}

    @classmethod
    def from_row(cls, row: RowMapping) -> Entry:
        """The entry that was stored."""
        stored = {field.name: row[field.name] for field in fields(cls)}
        return cls(**{**stored, "units": tuple(json.loads(stored["units"]))})


@dataclass(frozen=True)
class Retry:
    """A request that its sender may repeat: its key, and a digest of what it asks, so that no other comes under it."""

    key: str
    digest: str


@dataclass(frozen=True)
class Spend:
    """A request to pay `cost` for `answers` of a model, by a client.

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
        names = ("model", "client", "sequence", "answers")
        shown = {name: getattr(self.entry, name) for name in names}
        return {"id": self.id, **shown, "made_at": timestamp(self.entry.made_at), "hash": self.hash}


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
    """Nothing was spent: a budget does not cover it, the API key is revoked, or the retry key is another request's."""

    reason: Literal["model", "client", "revoked", "retry"]
    everyone: Balance
    client: Balance

    def sentence(self, spend: Spend) -> str:
        """The refusal as a sentence."""
        if self.reason == "revoked":
            return "the API key was revoked; nothing was spent."
        if self.reason == "retry":
            return "the idempotency key came with another request before; nothing was spent, use a new key."
        whose, balance = ("the model's", self.everyone) if self.reason == "model" else ("your", self.client)
        each = Amount(spend.cost.measure, tuple(u // spend.answers for u in spend.cost.units), spend.cost.orders)
        return (
            f"{spend.answers} answers were asked for and {whose} budget covers {each.times_within(balance.left)} more; "
            "nothing was answered and nothing spent."
        )


def timestamp(made_at: int) -> str:
    """Microseconds since 1970 as people write them."""
    return datetime.fromtimestamp(made_at / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
