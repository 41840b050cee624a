"""The tables of the newest version, as queries see them; `migrations` makes them."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import BigInteger, Column, Connection, Engine, Integer, MetaData, Table, Text, inspect, text

from noiseproof.errors import LedgerError

_metadata = MetaData()

EVERYONE = ""
"""The client of a model's own account: what all clients together may spend, because they may collude."""

models = Table(
    "models",
    _metadata,
    Column("model", Text, primary_key=True),
    Column("release", Text),
    Column("measure", Text),
    Column("orders", Text),
    Column("sequence", BigInteger),
    Column("head", Text),
)

balances = Table(
    "balances",
    _metadata,
    Column("model", Text, primary_key=True),
    Column("client", Text, primary_key=True),
    Column("coordinate", Integer, primary_key=True),
    Column("capacity", BigInteger),
    Column("spent", BigInteger),
)

entries = Table(
    "entries",
    _metadata,
    Column("model", Text, primary_key=True),
    Column("sequence", BigInteger, primary_key=True),
    Column("receipt", Text),
    Column("kind", Text),
    Column("client", Text),
    Column("answers", BigInteger),
    Column("units", Text),
    Column("made_at", BigInteger),
    Column("hash", Text),
)

clients = Table(
    "clients",
    _metadata,
    Column("client", Text, primary_key=True),
    Column("operator", Integer),
    Column("answers", BigInteger),
    Column("made_at", BigInteger),
)

keys = Table(
    "keys",
    _metadata,
    Column("id", Text, primary_key=True),
    Column("client", Text),
    Column("salt", Text),
    Column("hash", Text),
    Column("made_at", BigInteger),
    Column("revoked_at", BigInteger),
)

retries = Table(
    "retries",
    _metadata,
    Column("model", Text, primary_key=True),
    Column("client", Text, primary_key=True),
    Column("retry_key", Text, primary_key=True),
    Column("question", Text),
    Column("receipt", Text),
    Column("answer", Text),
    Column("made_at", BigInteger),
)

repeats = Table(
    "repeats",
    _metadata,
    Column("model", Text, primary_key=True),
    Column("client", Text, primary_key=True),
    Column("question", Text, primary_key=True),
    Column("answer", Text),
)


# Migrations: numbered steps from an empty database to the newest form, each in one transaction.
#
# A step, once published, is never edited; what changes later is a new step. The statements are written in the SQL that
# SQLite and PostgreSQL share, but for the guards of the history.


_LOCK = 0x6E6F697365  # one number that all processes of one PostgreSQL lock while they migrate


def newest() -> int:
    """The version that this noiseproof writes."""
    return len(_STEPS)


def version(engine: Engine) -> int:
    """The version of a database; 0 for an empty one."""
    with engine.connect() as connection:
        return _version(connection)


def migrate(engine: Engine, target: int | None = None) -> None:
    """Bring a database to version `target` (the newest), keeping all that is in it; a newer one is refused."""
    if version(engine) == newest():
        return
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        present = _version(connection)
        if present > newest():
            raise LedgerError(
                f"the ledger has version {present}, this noiseproof knows {newest()}; use the one that made it."
            )
        if present == 0:
            connection.execute(text("CREATE TABLE version (version INTEGER NOT NULL)"))
            connection.execute(text("INSERT INTO version VALUES (0)"))
        for step in _STEPS[present:target]:
            step(connection)
            connection.execute(text("UPDATE version SET version = version + 1"))


def _version(connection: Connection) -> int:
    if not inspect(connection).has_table("version"):
        return 0
    return int(connection.execute(text("SELECT version FROM version")).scalar_one())


def _accounts(connection: Connection) -> None:
    """Budgets and their history."""
    connection.execute(
        text("""
        CREATE TABLE models (
            model TEXT PRIMARY KEY,
            release TEXT NOT NULL,
            measure TEXT NOT NULL,
            orders TEXT NOT NULL,
            sequence BIGINT NOT NULL,
            head TEXT NOT NULL
        )""")
    )
    connection.execute(
        text("""
        CREATE TABLE balances (
            model TEXT NOT NULL REFERENCES models (model),
            client TEXT NOT NULL,
            coordinate INTEGER NOT NULL,
            capacity BIGINT NOT NULL,
            spent BIGINT NOT NULL,
            PRIMARY KEY (model, client, coordinate),
            CONSTRAINT never_overdrawn CHECK (spent >= 0 AND spent <= capacity)
        )""")
    )
    connection.execute(
        text("""
        CREATE TABLE entries (
            model TEXT NOT NULL REFERENCES models (model),
            sequence BIGINT NOT NULL,
            receipt TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL CHECK (kind IN ('limit', 'spend')),
            client TEXT NOT NULL,
            answers BIGINT NOT NULL,
            units TEXT NOT NULL,
            made_at BIGINT NOT NULL,
            hash TEXT NOT NULL,
            PRIMARY KEY (model, sequence)
        )""")
    )
    connection.execute(text("CREATE INDEX entries_by_time ON entries (model, made_at)"))
    for statement in _GUARDS[connection.dialect.name]:
        connection.execute(text(statement))


# History is appended to, never edited: the database itself refuses.
_GUARDS = {
    "sqlite": [
        f"CREATE TRIGGER entries_no_{verb.lower()} BEFORE {verb} ON entries "
        "BEGIN SELECT RAISE(ABORT, 'the history of a ledger is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the history of a ledger is append-only'; END $$",
        "CREATE TRIGGER entries_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON entries "
        "FOR EACH STATEMENT EXECUTE FUNCTION keep_history()",
    ],
}


def _keys(connection: Connection) -> None:
    """Who may ask."""
    connection.execute(
        text("""
        CREATE TABLE clients (
            client TEXT PRIMARY KEY,
            operator INTEGER NOT NULL,
            answers BIGINT,
            made_at BIGINT NOT NULL
        )""")
    )
    connection.execute(
        text("""
        CREATE TABLE keys (
            id TEXT PRIMARY KEY,
            client TEXT NOT NULL REFERENCES clients (client),
            salt TEXT NOT NULL,
            hash TEXT NOT NULL,
            made_at BIGINT NOT NULL,
            revoked_at BIGINT
        )""")
    )


def _answers(connection: Connection) -> None:
    """Answers that were given, for retries and for repeats."""
    connection.execute(
        text("""
        CREATE TABLE retries (
            model TEXT NOT NULL REFERENCES models (model),
            client TEXT NOT NULL,
            retry_key TEXT NOT NULL,
            question TEXT NOT NULL,
            receipt TEXT NOT NULL REFERENCES entries (receipt),
            answer TEXT,
            made_at BIGINT NOT NULL,
            PRIMARY KEY (model, client, retry_key)
        )""")
    )
    connection.execute(text("CREATE INDEX retries_by_time ON retries (made_at)"))
    connection.execute(
        text("""
        CREATE TABLE repeats (
            model TEXT NOT NULL REFERENCES models (model),
            client TEXT NOT NULL,
            question TEXT NOT NULL,
            answer TEXT NOT NULL,
            PRIMARY KEY (model, client, question)
        )""")
    )


_STEPS: tuple[Callable[[Connection], None], ...] = (_accounts, _keys, _answers)
