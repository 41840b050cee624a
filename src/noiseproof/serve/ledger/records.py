"""What is asked of a ledger (`Spend`), what it answers (`Paid`, `Refused`), and what it keeps: entries in a hash chain."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

from sqlalchemy import RowMapping

from noiseproof.privacy.budget import Neighbours
from noiseproof.serve.ledger.amounts import Amount, Measure

Kind = Literal["limit", "spend"]
"""`limit`: a client's capacity was set to `units`. `spend`: `units` were spent for `answers`."""

Period = Literal["day", "week", "month"]
"""What a client's number of answers may be for. Privacy does not grow back: each period's answers cost the model's budget."""
PERIODS: tuple[str, ...] = get_args(Period)


def period_start(period: str, made_at: int) -> int:
    """When the calendar's period began (UTC) in which a moment lies; both in microseconds since 1970."""
    moment = datetime.fromtimestamp(made_at / 1e6, UTC)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "week":
        day -= timedelta(days=day.weekday())
    elif period == "month":
        day = day.replace(day=1)
    return int(day.timestamp()) * 1_000_000


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
        return cls.of(row.model, row.release, row.measure, row.orders)

    @classmethod
    @functools.lru_cache(maxsize=1024)
    def of(cls, model: str, release: str, measure: Measure, orders: str) -> Chain:
        """The chain of an account, whose orders are kept as JSON."""
        return cls(model, release, measure, tuple(json.loads(orders)))

    @property
    def origin(self) -> str:
        """The hash that the first entry follows."""
        return digest(asdict(self))

    def amount(self, units: tuple[int, ...]) -> Amount:
        """Units of this chain's measure."""
        return Amount(self.measure, units, self.orders)

    def known(self, units: tuple[int, ...]) -> Amount:
        """Units of this chain's measure that the database lets nobody set below 0."""
        return self.nothing.of(units)

    @functools.cached_property
    def nothing(self) -> Amount:
        """Nothing of this chain's measure."""
        return self.amount((0,) * max(1, len(self.orders)))


class Entry(NamedTuple):
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
        about = self.sequence, self.receipt, self.kind, self.client, self.answers, self.units, self.made_at
        return entry_hash(quoted(self.model), *about, previous)

    def row(self, hash: str) -> dict[str, Any]:
        """The entry as it is stored."""
        return {**self._asdict(), "units": str([*self.units]), "hash": hash}

    @classmethod
    def from_row(cls, row: RowMapping) -> Entry:
        """The entry that was stored."""
        return cls.of(*(row[name] for name in cls._fields))

    @classmethod
    def of(cls, *stored: Any) -> Entry:
        """The entry of these fields, whose units are kept as JSON."""
        model, sequence, receipt, kind, client, answers, units, made_at = stored
        return cls(model, sequence, receipt, kind, client, answers, tuple(json.loads(units)), made_at)


@dataclass(frozen=True)
class Retry:
    """A request that its sender may repeat: its key, and a digest of what it asks, so that no other comes under it."""

    key: str
    digest: str
    nonce: str = field(default_factory=lambda: os.urandom(16).hex(), compare=False)
    """What hides the digest in the receipt, which is kept longer than the digest."""


class Spend(NamedTuple):
    """A request to pay `cost` for `answers` of a model, by a client.

    `limit` is what the client may spend on this model in all (None: what the model may), unless the ledger itself has a
    right of the client's: that goes first. With `key` the spend is refused if that API key was revoked or has expired, in
    the same transaction. With `retry`, a spend that was made before is not made again. With `tried`, neither is one of that
    receipt, of which nobody knows whether it was committed.
    """

    model: str
    client: str
    cost: Amount
    answers: int = 1
    limit: Amount | None = None
    key: str | None = None
    retry: Retry | None = None
    tried: Receipt | None = None

    @property
    def seal(self) -> str | None:
        """What the receipt of a request that may be repeated ends in, so that it is no other's."""
        return None if self.retry is None else seal(self.model, self.client, self.retry)


class Balance(NamedTuple):
    """What an account may spend and what it has spent."""

    capacity: Amount
    spent: Amount

    @property
    def left(self) -> Amount:
        """What may still be spent."""
        return self.capacity - self.spent


class Receipt(NamedTuple):
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


class Paid(NamedTuple):
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
    period: Period | None = None
    """What the client's budget is for, if not for good."""

    def sentence(self, spend: Spend) -> str:
        """The refusal as a sentence."""
        if self.reason == "revoked":
            return "the API key was revoked or has expired; nothing was spent."
        if self.reason == "retry":
            return (
                "the idempotency key came with another request before, or its answer is lost; nothing was spent, use a "
                "new key."
            )
        whose, balance = ("the model's budget", self.everyone)
        if self.reason == "client":
            whose, balance = "your budget" if self.period is None else f"your budget of this {self.period}", self.client
        each = Amount(spend.cost.measure, tuple(u // spend.answers for u in spend.cost.units), spend.cost.orders)
        return (
            f"{spend.answers} answers were asked for and {whose} covers {each.times_within(balance.left)} more; "
            "nothing was answered and nothing spent."
        )


@dataclass(frozen=True)
class Promise:
    """What a release promises: an epsilon (None: none is proven) at a delta, for which neighbours, for a record or a person."""

    epsilon: float | None
    delta: float
    neighbours: Neighbours
    unit: str = "record"

    def exchanged(self) -> tuple[float, float]:
        """The promise for records that are exchanged."""
        epsilon = math.inf if self.epsilon is None else self.epsilon
        if self.neighbours == "replace-one":
            return epsilon, self.delta
        return 2 * epsilon, self.delta and min(1.0, (1 + math.exp(min(epsilon, 700.0))) * self.delta)


@dataclass(frozen=True)
class DataSetBalance:
    """What all releases of a data set promise together, and what they may."""

    data_set: str
    promises: list[Promise]
    limit: tuple[float, float] | None

    @property
    def unit(self) -> str | None:
        """Whose promise the sum is; None where releases are for different units, whose epsilons do not add up."""
        units = {promise.unit for promise in self.promises} or {"record"}
        return units.pop() if len(units) == 1 else None

    @property
    def neighbours(self) -> Neighbours:
        """For which neighbours the sum is stated."""
        exchanged = any(promise.neighbours == "replace-one" for promise in self.promises)
        return "replace-one" if exchanged else "add-or-remove"

    @property
    def total(self) -> tuple[float, float]:
        """The sums of epsilons and of deltas; an infinite epsilon where a release proves none, or units differ."""
        if self.unit is None:
            return math.inf, math.fsum(promise.delta for promise in self.promises)
        if self.neighbours == "replace-one":
            pairs = [promise.exchanged() for promise in self.promises]
        else:
            pairs = [(math.inf if one.epsilon is None else one.epsilon, one.delta) for one in self.promises]
        return math.fsum(pair[0] for pair in pairs), math.fsum(pair[1] for pair in pairs)

    @property
    def overdrawn(self) -> bool:
        """Whether there is a limit and it does not cover the sum."""
        slack = 1 + 1e-9  # of sums in floating point
        return self.limit is not None and any(a > b * slack for a, b in zip(self.total, self.limit, strict=True))

    def sentence(self) -> str:
        """What people must know who see one of its releases' cards."""
        epsilon, delta = self.total
        bound = "nothing that is proven"
        if math.isfinite(epsilon):
            bound = f"epsilon {epsilon:.3g} at delta {delta:.3g} for one {self.unit}"
        elif self.unit is None:
            bound = (
                "nothing that adds up, since some are for one record and others for one person, and nothing is proven"
            )
        limit = "" if self.limit is None else f", of a budget of epsilon {self.limit[0]:g} at delta {self.limit[1]:g}"
        return f"{len(self.promises)} releases of the data set {self.data_set} promise {bound} together{limit}."

    def to_json(self) -> dict[str, Any]:
        """The data set as it is shown; null for an epsilon that is not proven."""
        epsilon, delta = self.total
        return {
            "name": self.data_set,
            "releases": len(self.promises),
            "unit": self.unit,
            "neighbours": self.neighbours,
            "epsilon": epsilon if math.isfinite(epsilon) else None,
            "delta": delta,
            "limit": None if self.limit is None else dict(zip(("epsilon", "delta"), self.limit, strict=True)),
            "warning": self.sentence() if len(self.promises) > 1 else None,
        }


def timestamp(made_at: int) -> str:
    """Microseconds since 1970 as people write them."""
    seconds, rest = divmod(made_at, 1_000_000)
    return f"{_second(seconds)}.{rest // 1000:03d}Z"


@functools.lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def digest(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a document's canonical JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seal(model: str, client: str, retry: Retry) -> str:
    """A digest of a request that may be repeated: whose it is, its key, what it asks, and a nonce."""
    content = json.dumps([model, client, retry.key, retry.digest, retry.nonce], default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


quoted = json.encoder.encode_basestring_ascii
"""A text as `json.dumps` has it."""


def entry_hash(
    model: str,
    sequence: int,
    receipt: str,
    kind: str,
    client: str,
    answers: int,
    units: tuple[int, ...],
    made_at: int,
    previous: str,
) -> str:
    """The hash of an entry: `digest` of its fields and the hash before it, written out, since a history has millions.

    The model's name comes `quoted`.
    """
    amounts = str(units[0]) if len(units) == 1 else ",".join(map(str, units))
    text = (
        f'{{"answers":{answers},"client":{quoted(client)},"kind":"{kind}","made_at":{made_at},"model":{model},'
        f'"previous":"{previous}","receipt":{quoted(receipt)},"sequence":{sequence},"units":[{amounts}]}}'
    )
    # What somebody wrote to the database that is no text is hashed too, and found to be another entry.
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
