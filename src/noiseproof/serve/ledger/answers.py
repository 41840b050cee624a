"""Answers: what was answered, kept so that a retry gets the same answer and a repeated input the same noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, delete, insert, select, tuple_, update

from noiseproof.serve.ledger import spending
from noiseproof.serve.ledger.amounts import Amount
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.records import Entry, Receipt, Retry, Spend, seal
from noiseproof.serve.ledger.statements import Insertion, Statement
from noiseproof.serve.ledger.tables import answered, entries, repeats, retries, upsert

Place = tuple[str, str, str | None]
"""A model, a client and, for what may be retried, its key: what a paid request is found by."""

_PLACE = (retries.c.model, retries.c.client, retries.c.retry_key)
_EARLIER = Statement(
    "SELECT r.question, r.nonce, r.answer, EXISTS (SELECT 1 FROM answered a WHERE a.receipt = r.receipt), e.hash, "
    "e.model, e.sequence, e.receipt, e.kind, e.client, e.answers, e.units, e.made_at "
    "FROM retries r JOIN entries e ON e.receipt = r.receipt "
    "WHERE r.model = :model AND r.client = :client AND r.retry_key = :retry_key"
)
_PROMISE = Insertion(retries)
_SEALED = (
    select(
        *_PLACE,
        retries.c.question,
        retries.c.nonce,
        retries.c.receipt,
        entries.c.model,
        entries.c.client,
        entries.c.kind,
    )
    .outerjoin_from(retries, entries, entries.c.receipt == retries.c.receipt)
    .where(retries.c.nonce != "")  # of ledgers before version 9, which are given answers that there are, and no others
)


class PaidBefore(NamedTuple):
    """A request that was paid for under a retry key, as it is kept for retries."""

    retry: Retry
    receipt: Receipt
    answer: str | None = None
    """None where none was released yet."""
    lost: bool = False
    """Whether its answer was released and is not there any more."""

    def covers(self, spend: Spend) -> bool:
        """Whether it is that request, and was answered, or may be for its receipt, whoever wrote it down."""
        if self.retry != spend.retry:
            return False
        if self.answer is not None:
            return True  # what is answered again costs no privacy
        entry = self.receipt.entry
        return (
            not self.lost
            and (entry.kind, entry.model, entry.client) == ("spend", spend.model, spend.client)
            and len(entry.units) == len(spend.cost.units)
            and all(paid >= cost for paid, cost in zip(entry.units, spend.cost.units, strict=True))
            and entry.receipt.endswith(seal(spend.model, spend.client, self.retry))
        )


class Answers:
    """Answers given, in the ledger's database.

    The first answer that is kept wins: whoever computed another in the meantime (a retry that overtook its first try)
    gets that one back and releases nothing else. So one spend never buys two answers. Nor does it for somebody who writes to the
    database, as long as its guards stand: a receipt tells the request that it paid for, and that it was answered is append-only.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, model: str, client: str, retry_key: str, answer: str) -> str:
        """Keep an answer for retries, and return the one to release: committed, and the same for every retry."""
        here = tuple_(*_PLACE) == (model, client, retry_key)
        with self._database.writing() as connection:
            first = update(retries).where(here, retries.c.answer.is_(None)).values(answer=answer)
            won = connection.execute(first).rowcount == 1
            row = connection.execute(select(retries.c.answer, retries.c.receipt).where(here)).one_or_none()
            if won and row is not None:
                # If there was another answer before, which was taken away, the database refuses, and nothing is released.
                connection.execute(insert(answered), {"receipt": row.receipt})
        kept = None if row is None else row.answer
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
            for question, nonce, answer, released, hash, *stored in cursor:
                entry = Entry.of(*stored)
                measure, orders = spend.cost.kind
                right = len(entry.units) == len(spend.cost.units)
                receipt = Receipt(entry, Amount(measure, entry.units if right else spend.cost.units, orders), hash)
                lost = answer is None and bool(released)
                found[place] = PaidBefore(Retry(place[2], question, nonce), receipt, answer, lost)
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
            "nonce": spend.retry.nonce,
        }
        for spend, receipt in paid
        if spend.retry
    ]
    if rows:
        _PROMISE.run(connection, rows)


def planted(connection: Connection) -> Iterator[str]:
    """What is kept for retries and is no request that was paid for by the receipt beside it."""
    for *place, question, nonce, receipt, model, client, kind in connection.execute(_SEALED):
        retry = Retry(place[2], question, nonce)
        if (kind, model, client) != ("spend", *place[:2]) or not str(receipt).endswith(seal(model, client, retry)):
            yield f"a retry of {client or place[1]} was planted: it is not what its receipt paid for."
