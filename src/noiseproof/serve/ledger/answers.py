"""Answers: what was answered, kept so that a retry gets the same answer and a repeated input the same noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from sqlalchemy import Connection, delete, select, tuple_, update

from noiseproof.serve.ledger import spending
from noiseproof.serve.ledger.amounts import Amount
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.records import Entry, Receipt, Spend
from noiseproof.serve.ledger.statements import Insertion, Statement
from noiseproof.serve.ledger.tables import repeats, retries, upsert

Place = tuple[str, str, str | None]
"""A model, a client and, for what may be retried, its key: what a paid request is found by."""
PaidBefore = tuple[str, Receipt, str | None]
"""The digest of a request that was paid for, its receipt, and its answer if there is one yet."""

_PLACE = (retries.c.model, retries.c.client, retries.c.retry_key)
_EARLIER = Statement(
    "SELECT r.question, r.answer, e.hash, e.model, e.sequence, e.receipt, e.kind, e.client, e.answers, e.units, e.made_at "
    "FROM retries r JOIN entries e ON e.receipt = r.receipt "
    "WHERE r.model = :model AND r.client = :client AND r.retry_key = :retry_key"
)
_PROMISE = Insertion(retries)


class Answers:
    """Answers given, in the ledger's database.

    The first answer that is kept wins: whoever computed another in the meantime (a retry that overtook its first try)
    gets that one back and releases nothing else. So one spend never buys two answers.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, model: str, client: str, retry_key: str, answer: str) -> str:
        """Keep an answer for retries, and return the one to release: committed, and the same for every retry."""
        here = tuple_(*_PLACE) == (model, client, retry_key)
        with self._database.writing() as connection:
            connection.execute(update(retries).where(here, retries.c.answer.is_(None)).values(answer=answer))
            kept = connection.execute(select(retries.c.answer).where(here)).scalar_one_or_none()
        # None if it was swept away in between: it was not released before, so this one may be.
        return answer if kept is None else str(kept)

    def known(self, model: str, client: str, digests: Collection[str]) -> dict[str, str]:
        """Those of the inputs that this client has had an answer to from this model, and the answer."""
        query = select(repeats.c.question, repeats.c.answer).where(
            repeats.c.model == model, repeats.c.client == client, repeats.c.question.in_(digests)
        )
        with self._database.reading() as connection:
            return {row.question: row.answer for row in connection.execute(query)}

    def remember(self, model: str, client: str, answers: Mapping[str, str]) -> dict[str, str]:
        """Keep the answers to inputs, and return those to release: the first that was kept for each."""
        rows = [{"model": model, "client": client, "question": q, "answer": a} for q, a in answers.items()]
        with self._database.writing() as connection:
            connection.execute(upsert(self._database.dialect, repeats), rows)
        return self.known(model, client, answers)

    def sweep(self, older_than: float) -> None:
        """Forget retries older than so many seconds; one that comes later still is a new request, to be paid for."""
        limit = time.time_ns() // 1000 - int(older_than * 1e6)
        with self._database.writing() as connection:
            connection.execute(delete(retries).where(retries.c.made_at < limit))
            spending.forget(connection)


def paid_before(connection: Connection, spends: Sequence[Spend]) -> Callable[[], dict[Place, PaidBefore]]:
    """Ask for what was paid for under the retry keys of spends before."""
    places = {(spend.model, spend.client, spend.retry.key): spend for spend in spends if spend.retry}
    rows = [
        (place, spend, _EARLIER.run(connection, model=place[0], client=place[1], retry_key=place[2]))
        for place, spend in places.items()
    ]

    def read() -> dict[Place, PaidBefore]:
        found: dict[Place, PaidBefore] = {}
        for place, spend, cursor in rows:
            for question, answer, hash, *stored in cursor:
                entry = Entry.of(*stored)
                measure, orders = spend.cost.kind
                found[place] = question, Receipt(entry, Amount(measure, entry.units, orders), hash), answer
        return found

    return read


def promise(connection: Connection, paid: Sequence[tuple[Spend, Receipt]]) -> None:
    """Note that the retries of these requests are paid for."""
    rows = [
        {
            "model": spend.model,
            "client": spend.client,
            "retry_key": spend.retry.key,
            "question": spend.retry.digest,
            "receipt": receipt.id,
            "made_at": receipt.entry.made_at,
        }
        for spend, receipt in paid
        if spend.retry
    ]
    if rows:
        _PROMISE.run(connection, rows)
