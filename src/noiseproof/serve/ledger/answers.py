"""Answers: what was answered, kept so that a retry gets the same answer and a repeated question the same noise."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.tables import repeats, retries

_FILL = (
    update(retries)
    .where(
        retries.c.model == bindparam("m"),
        retries.c.client == bindparam("c"),
        retries.c.retry_key == bindparam("k"),
        retries.c.answer.is_(None),
    )
    .values(answer=bindparam("a"))
)


@dataclass(frozen=True)
class RetryAnswer:
    """An answer to be kept for retries of the request that was paid for under `key`."""

    model: str
    client: str
    key: str
    answer: str


class Answers:
    """Answers given, in the ledger's database.

    The first answer that is kept wins: whoever computed another in the meantime (a retry that overtook its first try)
    gets that one back and releases nothing else. So one spend never buys two answers.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, answers: Sequence[RetryAnswer]) -> list[str]:
        """Keep answers for retries, and return those to release: committed, and the same for every retry."""
        wanted = [(answer.model, answer.client, answer.key) for answer in answers]
        with self._database.writing() as connection:
            connection.execute(_FILL, [{"m": a.model, "c": a.client, "k": a.key, "a": a.answer} for a in answers])
            columns = (retries.c.model, retries.c.client, retries.c.retry_key)
            rows = connection.execute(select(*columns, retries.c.answer).where(tuple_(*columns).in_(wanted))).all()
        kept = {tuple(row[:3]): row[3] for row in rows}
        # Swept away in between: it was not released before, so this one may be.
        return [kept.get(key, answer.answer) for key, answer in zip(wanted, answers, strict=True)]

    def known(self, model: str, client: str, questions: Collection[str]) -> dict[str, str]:
        """Those of the questions that this client has had an answer to from this model, and the answer."""
        with self._database.reading() as connection:
            rows = connection.execute(
                select(repeats.c.question, repeats.c.answer).where(
                    repeats.c.model == model, repeats.c.client == client, repeats.c.question.in_(questions)
                )
            ).all()
        return {row.question: row.answer for row in rows}

    def remember(self, model: str, client: str, answers: Mapping[str, str]) -> dict[str, str]:
        """Keep the answers to questions, and return those to release: the first that was kept for each."""
        make = postgresql.insert if self._database.dialect == "postgresql" else sqlite.insert
        rows = [{"model": model, "client": client, "question": q, "answer": a} for q, a in answers.items()]
        with self._database.writing() as connection:
            connection.execute(make(repeats).on_conflict_do_nothing(), rows)
        return self.known(model, client, answers)

    def sweep(self, older_than: float) -> None:
        """Forget retries older than so many seconds; one that comes later still is a new request, to be paid for."""
        limit = time.time_ns() // 1000 - int(older_than * 1e6)
        with self._database.writing() as connection:
            connection.execute(delete(retries).where(retries.c.made_at < limit))
