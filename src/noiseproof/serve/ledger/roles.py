"""Roles: what a service may do in a PostgreSQL database: spend, and nothing that grants, un-revokes or rewrites."""

from __future__ import annotations

from sqlalchemy import text

from noiseproof.errors import LedgerError, SettingError
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.tables import metadata

_INSERTED = "models, names, weights, draws, draw_units, grants, entries, balances, retries, answered, repeats, spending, retired"
_UPDATED = {
    "models": "sequence, head, folded",
    "balances": "capacity, spent",
    "draws": "data_set",
    "retries": "answer",
    "spending": "answers",
}
_DELETED = "retries, spending"


def grant_role(database: Database, role: str) -> list[str]:
    """Let a role of PostgreSQL serve from a ledger: read it, open accounts and spend.

    It cannot make, change or revive keys, rights and limits of data sets, nor change the history or its guards. (It writes
    balances, since spends change them; `History.verify` finds one that no entry explains.)

    Args:
        database: The ledger, opened by the role that owns its tables.
        role: A role that exists.

    Returns:
        The statements that were carried out.

    Raises:
        SettingError: If the ledger is a file, whose mode says who may do what.
        LedgerError: If there is no such role, or this one may not grant.
    """
    if database.dialect != "postgresql":
        raise SettingError("a ledger in a file has no roles; its mode (0600) says who may use it.")
    quote = database.quote
    tables = ", ".join(quote(name) for name in metadata.tables)
    name = quote(role)
    with database.writing() as connection:
        known = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :role"), {"role": role}).first()
        if known is None:
            raise LedgerError(f"PostgreSQL has no role {role!r}; make it with CREATE ROLE, then come back.")
        schema = quote(str(connection.execute(text("SELECT current_schema()")).scalar_one()))
        statements = [
            f"REVOKE ALL ON {tables} FROM {name}",
            f"GRANT USAGE ON SCHEMA {schema} TO {name}",
            f"GRANT SELECT ON {tables} TO {name}",
            f"GRANT INSERT ON {_INSERTED} TO {name}",
            *(f"GRANT UPDATE ({columns}) ON {table} TO {name}" for table, columns in _UPDATED.items()),
            f"GRANT DELETE ON {_DELETED} TO {name}",
        ]
        for statement in statements:
            connection.execute(text(statement))
    return statements
