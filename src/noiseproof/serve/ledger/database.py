"""Database: the ledger's tables, and how SQLite (one file) or PostgreSQL (by URL) is opened so that commits stay."""

from __future__ import annotations

import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, Column, Connection, Engine, ForeignKey, Index, Table, Text, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, SQLAlchemyError

from noiseproof.errors import LedgerError, MissingPartError, SettingError

VERSION = 5
"""The version of the tables that this noiseproof reads and writes."""

EVERYONE = ""
"""The client of a model's own account: what all clients together may spend, because they may collude."""

_LOCK_SECONDS = 30
"""Seconds that a transaction waits for another's lock before it gives up."""
_NEVER = threading.Event()
"""Never set: to wait for a while."""

_metadata = sa.MetaData()


def _key(name: str, kind: type[Text | sa.Integer | sa.BigInteger] = Text, references: str | None = None) -> Column[Any]:
    foreign = () if references is None else (ForeignKey(references),)
    return Column(name, kind, *foreign, primary_key=True, autoincrement=False)


def _column(kind: type[Any], name: str, *more: Any, nullable: bool = False, **options: Any) -> Column[Any]:
    return Column(name, kind, *more, nullable=nullable, **options)


def _table(name: str, *columns: Any) -> Table:
    return Table(name, _metadata, *columns)


_text, _number, _real = (partial(_column, kind) for kind in (Text, sa.BigInteger, sa.Double))
models = _table(
    "models", _key("model"), _text("release"), _text("measure"), _text("orders"), _number("sequence"), _text("head")
)
balances = _table(
    "balances",
    _key("model", references="models.model"),
    _key("client"),
    _key("coordinate", sa.Integer),
    _number("capacity"),
    _number("spent"),
    sa.CheckConstraint("spent >= 0 AND spent <= capacity", name="never_overdrawn"),
)
entries = _table(
    "entries",
    _key("model", references="models.model"),
    _key("sequence", sa.BigInteger),
    _text("receipt", unique=True),
    _text("kind", sa.CheckConstraint("kind IN ('limit', 'spend')")),
    _text("client"),
    _number("answers"),
    _text("units"),
    _number("made_at"),
    _text("hash"),
    Index("entries_by_time", "model", "made_at"),
)
clients = _table(
    "clients", _key("client"), _column(sa.Integer, "operator"), _number("answers", nullable=True), _number("made_at")
)
keys = _table(
    "keys",
    _key("id"),
    _text("client", ForeignKey("clients.client")),
    _text("salt"),
    _text("hash"),
    _number("made_at"),
    _number("revoked_at", nullable=True),
)
retries = _table(
    "retries",
    _key("model", references="models.model"),
    _key("client"),
    _key("retry_key"),
    _text("question"),
    _text("receipt", ForeignKey("entries.receipt")),
    _text("answer", nullable=True),
    _number("made_at"),
    Index("retries_by_time", "made_at"),
)
repeats = _table("repeats", _key("model", references="models.model"), _key("client"), _key("question"), _text("answer"))
names = _table("names", _key("name"), _text("model", ForeignKey("models.model")))
data_sets = _table("data_sets", _key("data_set"), _real("epsilon"), _real("delta"))
draws = _table(
    "draws", _key("release"), _text("data_set"), _real("epsilon", nullable=True), _real("delta"), _text("neighbours")
)
draw_units = _table("draw_units", _key("release"), _text("unit"))
"""Whose promise each of the draws is; a record's, where nothing is said."""
properties = _table("properties", _key("name"), _text("value"))
_version = _table("version", _column(sa.Integer, "version"))

# History is appended to, never edited: the database itself refuses.
_GUARDS = {
    "sqlite": [
        f"CREATE TRIGGER IF NOT EXISTS entries_no_{verb.lower()} BEFORE {verb} ON entries "
        "BEGIN SELECT RAISE(ABORT, 'the history of a ledger is append-only'); END"
        for verb in ("UPDATE", "DELETE")
    ],
    "postgresql": [
        "CREATE OR REPLACE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the history of a ledger is append-only'; END $$",
        "CREATE OR REPLACE TRIGGER entries_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON entries "
        "FOR EACH STATEMENT EXECUTE FUNCTION keep_history()",
    ],
}


def version(database: Engine | Connection) -> int:
    """The version of a database's tables; 0 for an empty one."""
    if not sa.inspect(database).has_table("version"):
        return 0
    with database.connect() if isinstance(database, Engine) else nullcontext(database) as connection:
        return int(connection.execute(select(_version.c.version)).scalar_one())


def migrate(engine: Engine, *, create: bool = True) -> None:
    """Bring a database to this version, keeping all that is in it; a newer one is refused.

    Every version so far has only added tables, so a step up creates those that are missing. All of it happens in one
    transaction. An empty database becomes a ledger only with `create`.
    """
    present = version(engine)
    if present == VERSION:
        return
    if present == 0 and not create:
        raise LedgerError("there is no ledger in that database; `noiseproof ledger init` makes one.")
    with engine.begin() as connection:
        lock(connection, "migrate")
        found = version(connection)
        if found > VERSION:
            raise LedgerError(
                f"the ledger has version {found}, this noiseproof knows {VERSION}; use the one that made it."
            )
        _metadata.create_all(connection)
        for statement in _GUARDS[connection.dialect.name]:
            connection.execute(text(statement))
        # Accounts of versions 1 to 3 have one name each, their own.
        connection.execute(
            text("INSERT INTO names SELECT model, model FROM models WHERE model NOT IN (SELECT name FROM names)")
        )
        fresh = [{"name": name, "value": secrets.token_hex(size)} for name, size in (("id", 8), ("key", 32))]
        connection.execute(upsert(connection.dialect.name, properties), fresh)
        connection.execute(_version.delete())
        connection.execute(_version.insert().values(version=VERSION))


def lock(connection: Connection, purpose: str) -> None:
    """Hold one lock for a purpose until the transaction ends (on SQLite, a writing transaction has the only one)."""
    if connection.dialect.name == "postgresql":
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtext(:purpose))"), {"purpose": f"noiseproof {purpose}"}
        )


def upsert(dialect: str, table: Table, *changed: str) -> Any:
    """An insertion that changes these columns of rows that are there already, and nothing else of them."""
    inserted = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    if not changed:
        return inserted.on_conflict_do_nothing()
    values = {name: inserted.excluded[name] for name in changed}
    return inserted.on_conflict_do_update(index_elements=table.primary_key.columns, set_=values)


class Database:
    """Where ledgers, keys and answers are kept: transactions on a database of the newest version."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = parse_url(url)
        if self.url.get_backend_name() == "sqlite":
            _check_file(self.url, create)
            self._reader, self._writer = _sqlite(self.url), _sqlite(self.url, writes=True)
        else:
            self._reader = self._writer = _postgresql(self.url)
        try:
            with _plain_errors():
                migrate(self._writer, create=create)
        except BaseException:
            self.close()
            raise

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._reader.dialect.name

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that may write: committed and on disk when the block ends, undone if it raises.

        On SQLite it holds the one write lock from its first moment, so that nothing it has read can have changed.
        """
        with _plain_errors(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of everything, and keeps no writer waiting."""
        with _plain_errors(), self._reader.connect() as connection:
            if self.dialect == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._reader.dispose()
        self._writer.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_url(url: str) -> URL:
    """The database meant by a URL, or by the path of a file for SQLite."""
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        raise SettingError(
            "a ledger's URL is sqlite:///FILE or postgresql://USER@HOST/NAME; this one cannot be read."
        ) from None
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise SettingError(f"a ledger is kept in sqlite or postgresql, not in {backend}.")
    if not parsed.database or parsed.database == ":memory:":
        raise SettingError("a ledger must outlive the process; name a file: sqlite:///FILE.")
    return parsed


def _check_file(url: URL, create: bool) -> None:
    assert url.database is not None
    file = Path(url.database).absolute()
    if not file.parent.is_dir():
        raise SettingError(f"the folder of the ledger {url.database} does not exist; make it first.")
    if not create and not file.is_file():
        raise LedgerError(f"there is no ledger {url.database}; `noiseproof ledger init` makes one.")


def _sqlite(url: URL, *, writes: bool = False) -> Engine:
    engine = sa.create_engine(url, connect_args={"timeout": _LOCK_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say so, below
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL, not NORMAL: a commit must survive a power failure, as its answer is sent right after it.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if writes:
            connection.execute("PRAGMA busy_timeout = 0")  # `_take_lock` waits instead

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if writes:
            _take_lock(connection)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _take_lock(connection: Connection) -> None:
    """Begin with SQLite's write lock, which is held for some ms; SQLite itself sleeps up to 100 between two looks."""
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            busy = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > until:
                raise
            # Not `time.sleep`, which waits for a moment instead of for a while: some clocks that jump make it fail.
            _NEVER.wait(random.uniform(0.0005, 0.0015))


def _postgresql(url: URL) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise MissingPartError("a ledger in PostgreSQL needs psycopg: pip install 'noiseproof[serve]'.") from None
    settings = f"-c lock_timeout={_LOCK_SECONDS}s -c statement_timeout={4 * _LOCK_SECONDS}s -c synchronous_commit=on"
    given = url.query.get("options", "")
    arguments = {"connect_timeout": 5, "options": f"{given} {settings}", "application_name": "noiseproof"}
    # A server that went away is noticed when a connection is taken out, not in the middle of a spend.
    return sa.create_engine(url, connect_args=arguments, pool_pre_ping=True)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Database errors as a sentence. Their own messages may hold statements and values, so only their kind is told."""
    try:
        yield
    except IntegrityError as error:
        raise LedgerError("the ledger refused a change that breaks its rules; nothing was written.") from error
    except SQLAlchemyError as error:
        raise LedgerError(
            f"the ledger cannot be used now ({type(error).__name__}); nothing was released, try again later."
        ) from error
