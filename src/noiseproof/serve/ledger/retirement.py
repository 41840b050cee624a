"""Retirement: the names of models that answer no more, noted in the ledger so that every worker and machine knows."""

from __future__ import annotations

import time

from sqlalchemy import select

from noiseproof.serve.ledger import grants
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.tables import lock
from noiseproof.serve.ledger.tables import retired as retired_table


def retire(database: Database, name: str) -> None:
    """Note that what is served under this name answers no more."""
    with database.writing() as connection:
        lock(connection, "open")
        grants.put(connection, retired_table, {"name": name, "made_at": time.time_ns() // 1000})


def retired(database: Database) -> frozenset[str]:
    """The names that answer no more."""
    with database.reading() as connection:
        return frozenset(connection.execute(select(retired_table.c.name)).scalars())
