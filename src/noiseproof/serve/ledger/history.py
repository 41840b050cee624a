"""History: reading a ledger back, and checking that nobody has rewritten it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import Connection, select

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger import answers, grants, spending
from noiseproof.serve.ledger.accounts import count_clients, largest_of
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.heads import Checkpoint
from noiseproof.serve.ledger.records import Balance, Chain, Entry, timestamp
from noiseproof.serve.ledger.replay import Position, Replay, Verification, entries_of
from noiseproof.serve.ledger.tables import (
    EVERYONE,
    entries,
    key_was_changed,
    missing_guards,
    models,
    properties,
    strangers,
)
from noiseproof.serve.ledger.tables import grants as grant_table

__all__ = ["Account", "History", "Verification"]

T = TypeVar("T")

GRANTS = "(grants)"
"""What the chain of grants is called among the results of `verify`."""


@dataclass(frozen=True)
class Account:
    """A model's account for people: balances, entries, and the head of its chain, to be noted elsewhere."""

    model: str
    release: str
    everyone: Balance
    clients: dict[str, Balance]
    """Those that spent most."""
    clients_total: int
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

    def accounts(self, most: int | None = None) -> list[Account]:
        """Every model's account, with all clients or the `most` that spent most."""
        found = []
        with self._database.reading() as connection:
            for row in connection.execute(select(models).order_by(models.c.model)).all():
                chain = Chain.from_row(row)
                total = count_clients(connection, chain)
                known = largest_of(connection, chain, most)
                everyone = known.pop(EVERYONE)
                clients = dict(sorted(known.items()))
                found.append(Account(row.model, row.release, everyone, clients, total, row.sequence, row.head))
        return found

    def export(self) -> Iterator[dict[str, Any]]:
        """All entries of all models as they are in the chain, in order, in bounded memory."""
        with self._database.reading() as connection:
            for row in connection.execute(select(models).order_by(models.c.model)).all():
                chain = _whole(Chain.from_row, row)
                previous = chain.origin
                for stored in entries_of(connection, chain.model):
                    entry, hash = _whole(Entry.from_row, stored), stored["hash"]
                    fields = {
                        name: value for name, value in entry._asdict().items() if name not in ("units", "made_at")
                    }
                    amount = chain.amount(entry.units).to_json()
                    made = {"made_at": timestamp(entry.made_at), "previous": previous, "hash": hash}
                    yield {**fields, "client": entry.client or None, **amount, **made}
                    previous = hash

    def newest(self, model: str, most: int) -> list[dict[str, Any]]:
        """The `most` newest spends of a model, newest first."""
        query = select(entries).where(entries.c.model == model, entries.c.kind == "spend")
        with self._database.reading() as connection:
            found = connection.execute(query.order_by(entries.c.sequence.desc()).limit(most)).mappings().all()
        return [{**row, "made_at": timestamp(row["made_at"])} for row in found]

    def verify(
        self, noted: str | None = None, *, anchors: Sequence[Checkpoint] = (), since: Checkpoint | None = None
    ) -> list[Verification]:
        """Replay every history and check it: hashes, order, limits and rights at every moment, and what they lead to.

        A chain of hashes shows edits, not a history cut off at its end together with its balances. Whoever noted a hash
        elsewhere (a receipt has one, `ledger show` prints the last) passes it as `noted`: it must still be in a chain.

        Args:
            noted: A hash that must be in a history.
            anchors: Signed heads that were kept elsewhere: every one must be in the histories.
            since: A signed head with balances to go on from: entries up to there are taken on the signer's word.

        Returns:
            What was found, of every model and of the chain of grants.
        """
        with self._database.reading() as connection:
            checked = _Check(connection, [*anchors, *(() if since is None else (since,))], since)
            results = checked.results
            if checked.grants.problems:
                results = [*results, checked.grants]
            if noted is not None and not _holds(connection, noted):
                missing = "the noted hash is in no history: one was rewritten."
                results = [*results, Verification("(noted hash)", problems=[missing])]
        return results

    def checkpoint(self, since: Checkpoint | None = None) -> Checkpoint:
        """Where every history is and how everybody stands, to be signed; after verifying it.

        Args:
            since: A signed checkpoint to verify from.

        Raises:
            LedgerError: If something is wrong with the ledger.
        """
        with self._database.reading() as connection:
            checked = _Check(connection, [] if since is None else [since], since)
        for result in (*checked.results, checked.grants):
            if not result.holds:
                raise LedgerError(f"nobody should vouch for this ledger: {result.model}: {result.problems[0]}")
        heads = {model: (place.sequence, place.head) for model, place in checked.places.items()}
        standings = {model: place.standings for model, place in checked.places.items()}
        grants_head = checked.grants.entries, checked.grants.head
        return Checkpoint(checked.ledger, time.time_ns() // 1000, grants_head, heads, standings)

    def spending(self, model: str, since: float, buckets: int, client: str | None = None) -> list[tuple[float, int]]:
        """Answers paid for over the last `since` seconds, in equal intervals: (their start, answers).

        They are summed by the minute, or by the hour if more than a day is asked for, whose start counts.
        """
        now = time.time()
        start, width = int((now - since) * 1e6), max(1, int(since * 1e6 / buckets))
        span = "minute" if since <= 86400 else "hour"
        counts: defaultdict[int, int] = defaultdict(int)
        with self._database.reading() as connection:
            found = spending.since(connection, model, EVERYONE if client is None else client, span, start)
        for at, count in found.items():
            counts[min(buckets - 1, max(0, (at - start) // width))] += count
        return [((start + i * width) / 1e6, counts[i]) for i in range(buckets)]


class _Check:
    """Everything that `verify` looks at, in one transaction."""

    def __init__(self, connection: Connection, kept: Sequence[Checkpoint], since: Checkpoint | None) -> None:
        own = dict(map(tuple, connection.execute(select(properties.c.name, properties.c.value))))
        self.ledger = str(own.get("id"))
        granted = grants.replay(connection, {one.grants[0]: one.grants[1] for one in kept if one.grants[0] > 0})
        problems = [*granted.problems, *grants.check_tables(connection, granted)]
        problems += [f"the guard {name} of the history is missing." for name in missing_guards(connection)]
        problems += [
            f"{name} is no part of a ledger, and may change what is written." for name in strangers(connection)
        ]
        problems += answers.planted(connection)
        if key_was_changed(self.ledger, str(own.get("key"))):
            problems.append("the key by which releases are known was changed: their budgets would be sold again.")
        if any(one.ledger != self.ledger for one in kept):
            problems.append("what was noted elsewhere is of another ledger.")
        found = [str(model) for model in connection.execute(select(models.c.model).order_by(models.c.model)).scalars()]
        for name in sorted({model for one in kept for model in one.models} - {*found}):
            problems.append(f"the account {name}, which was noted, is missing.")
        self.grants = Verification(GRANTS, granted.sequence, 0, granted.head, problems)
        self.places: dict[str, Position] = {}
        self.results = []
        for model in found:
            heads = {one.models[model][0]: one.models[model][1] for one in kept if model in one.models}
            self.results.append(self._model(connection, model, granted, heads, since))

    def _model(
        self,
        connection: Connection,
        model: str,
        granted: grants.Granted,
        heads: Mapping[int, str],
        since: Checkpoint | None,
    ) -> Verification:
        row = connection.execute(select(models).where(models.c.model == model)).one()
        try:
            chain = Chain.from_row(row)
            chain.amount((0,) * max(1, len(chain.orders)))
        except (ValueError, TypeError, RecursionError):
            return Verification(model, problems=["the account cannot be read."])
        start = None
        if since is not None and model in since.models:
            start = since.position(model)
            query = select(entries.c.hash).where(entries.c.model == model, entries.c.sequence == start.sequence)
            if connection.execute(query).scalar_one_or_none() != start.head:
                problem = (
                    f"entry {start.sequence} is not the one that was signed: the history was rewritten or cut off."
                )
                return Verification(model, problems=[problem])
        replay = Replay(chain, start)
        result = replay.run(connection, granted, heads)
        if (replay.place.sequence, replay.place.head) != (row.sequence, row.head):
            result.problems.append("the last entries are missing, or the account was changed.")
        replay.check_balances(connection, row.folded)
        self.places[model] = replay.place
        return result


def _holds(connection: Connection, hash: str) -> bool:
    return any(
        connection.execute(select(table.c.sequence).where(table.c.hash == hash).limit(1)).first() is not None
        for table in (entries, grant_table)
    )


def _whole(read: Callable[[Any], T], row: Any) -> T:
    """What is read of a row, or one sentence where it is malformed."""
    try:
        return read(row)
    except (ValueError, TypeError, RecursionError):
        raise LedgerError("a row of the ledger is malformed; `noiseproof ledger verify` says which.") from None
