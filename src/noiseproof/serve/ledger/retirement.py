"""Retirement: the names of models that answer no more, noted in the ledger so that every worker and machine knows."""

from __future__ import annotations

import time

from sqlalchemy import select

from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.tables import properties, upsert

_RETIRED = "retired "
"""What the names of properties begin with that note retired models."""


def retire(database: Database, name: str) -> None:
    """Note that what is served under this name answers no more."""
    row = {"name": f"{_RETIRED}{name}", "value": str(time.time_ns() // 1000)}
    with database.writing() as connection:
        connection.execute(upsert(database.dialect, properties), row)


def retired(database: Database) -> frozenset[str]:
    """The names that answer no more."""
    query = select(properties.c.name).where(properties.c.name.startswith(_RETIRED, autoescape=True))
    with database.reading() as connection:
        return frozenset(name.removeprefix(_RETIRED) for name in connection.execute(query).scalars())
