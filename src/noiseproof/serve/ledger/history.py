"""History: reading a ledger back, and checking that nobody has rewritten it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, func, select, text

from noiseproof.serve.ledger.database import EVERYONE, Database, entries, models
from noiseproof.serve.ledger.ledger import balances_of
from noiseproof.serve.ledger.records import Balance, Chain, Entry, timestamp

_AT_ONCE = 1000


@dataclass
class Verification:
    """What checking one model's history found; `problems` is empty where all is well."""

    model: str
    entries: int = 0
    answers: int = 0
    head: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether the history is whole, unchanged, never overdrawn, and what the balances say."""
        return not self.problems


@dataclass(frozen=True)
class Account:
    """A model's account for people: balances, entries, and the head of its chain, to be noted elsewhere."""

    model: str
    release: str
    everyone: Balance
    clients: dict[str, Balance]
    entries: int
    head: str

    def to_json(self) -> dict[str, Any]:
        """The account with its amounts in exact decimals."""
        limit, spent = self.everyone.capacity.to_json(), self.everyone.spent.to_json()
        clients = {client: balance.spent.to_json() for client, balance in self.clients.items()}
        shown = {name: value for name, value in vars(self).items() if name != "everyone"}
        return {**shown, "limit": limit, "spent": spent, "clients": clients}


class History:
    """A ledger's past: accounts, entries in order, spending over time, and `verify`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def accounts(self) -> list[Account]:
        """Every model's account."""
        found = []
        with self._database.reading() as connection:
            for row, chain, balances in _accounts(connection):
                everyone = balances.pop(EVERYONE)
                clients = dict(sorted(balances.items()))
                found.append(Account(chain.model, chain.release, everyone, clients, row.sequence, row.head))
        return found

    def export(self) -> Iterator[dict[str, Any]]:
        """All entries of all models as they are in the chain, in order, in bounded memory."""
        with self._database.reading() as connection:
            for _, chain, _ in _accounts(connection):
                previous = chain.origin
                for entry, hash in _entries(connection, chain.model):
                    fields = {name: value for name, value in vars(entry).items() if name not in ("units", "made_at")}
                    amount = chain.amount(entry.units).to_json()
                    made = {"made_at": timestamp(entry.made_at), "previous": previous, "hash": hash}
                    yield {**fields, "client": entry.client or None, **amount, **made}
                    previous = hash

    def verify(self, noted: str | None = None) -> list[Verification]:
        """Replay every history and check it: hashes, order, limits at every moment, and the balances they lead to.

        A chain of hashes shows edits, not a history cut off at its end together with its balances. Whoever noted a hash
        elsewhere (a receipt has one, `ledger show` prints the last) passes it as `noted`: it must still be in a chain.
        """
        results, seen = [], False
        with self._database.reading() as connection:
            for row, chain, balances in _accounts(connection):
                result = Verification(row.model)
                replay = _Replay(chain)
                for entry, hash in _entries(connection, row.model):
                    replay.add(entry, hash, result)
                    seen = seen or hash == noted
                result.head = replay.head
                if (replay.sequence, replay.head) != (row.sequence, row.head):
                    result.problems.append("the last entries are missing, or the account was changed.")
                if replay.balances != balances:
                    result.problems.append("the balances are not what the history adds up to.")
                results.append(result)
        if noted is not None and not seen:
            missing = "the noted hash is in no history: one was rewritten."
            results.append(Verification("(noted hash)", problems=[missing]))
        return results

    def spending(self, model: str, since: float, buckets: int, client: str | None = None) -> list[tuple[float, int]]:
        """Answers paid for over the last `since` seconds, in equal intervals: (their start, answers)."""
        now = time.time()
        start, width = int((now - since) * 1e6), max(1, int(since * 1e6 / buckets))
        bucket = ((entries.c.made_at - start) // width).label("bucket")
        query = select(bucket, func.sum(entries.c.answers)).where(
            entries.c.model == model, entries.c.kind == "spend", entries.c.made_at >= start
        )
        if client is not None:
            query = query.where(entries.c.client == client)
        with self._database.reading() as connection:
            counts = {int(row[0]): int(row[1]) for row in connection.execute(query.group_by(text("bucket")))}
        return [((start + i * width) / 1e6, counts.get(i, 0)) for i in range(buckets)]


class _Replay:
    """A model's account as its history makes it, entry by entry."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.sequence, self.head = 0, chain.origin
        self.balances: dict[str, Balance] = {}

    def add(self, entry: Entry, hash: str, result: Verification) -> None:
        self.sequence += 1
        if entry.sequence != self.sequence:
            result.problems.append(f"entry {self.sequence} is missing.")
            self.sequence = entry.sequence
        self.head = entry.hash_after(self.head)
        if self.head != hash:
            result.problems.append(f"entry {entry.sequence} was changed, or the one before it.")
            self.head = hash  # one changed entry is one problem, not all that follow
        result.entries += 1
        amount = self.chain.amount(entry.units)
        zero = amount * 0
        if entry.kind == "limit":
            before = self.balances.get(entry.client, Balance(amount, zero))
            if entry.client == EVERYONE and not amount.fits(before.capacity):
                result.problems.append(f"entry {entry.sequence} raised the model's budget.")
            self.balances[entry.client] = Balance(amount, before.spent)
            return
        result.answers += entry.answers
        for client in (EVERYONE, entry.client):
            before = self.balances.get(client, Balance(zero, zero))
            after = Balance(before.capacity, before.spent + amount)
            if not after.spent.fits(after.capacity):
                result.problems.append(f"entry {entry.sequence} spent more than was left.")
            self.balances[client] = after


def _accounts(connection: Connection) -> Iterator[tuple[Row[Any], Chain, dict[str, Balance]]]:
    for row in connection.execute(select(models).order_by(models.c.model)).all():
        chain = Chain.from_row(row)
        yield row, chain, balances_of(connection, [chain])[chain.model]


def _entries(connection: Connection, model: str) -> Iterator[tuple[Entry, str]]:
    query = select(entries).where(entries.c.model == model).order_by(entries.c.sequence)
    for row in connection.execution_options(yield_per=_AT_ONCE).execute(query).mappings():
        yield Entry.from_row(row), row["hash"]
