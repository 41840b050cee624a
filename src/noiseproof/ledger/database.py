"""Database: SQLite in one file, or PostgreSQL by URL; how each is opened so that what was committed stays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError

from noiseproof.errors import LedgerError, MissingPartError, SettingError
from noiseproof.ledger import migrations

_PATIENCE = 30
"""Seconds that a transaction waits for another's lock before it gives up."""


class Database:
    """Where ledgers, keys and answers are kept: transactions on an engine of the newest version."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        self.url = parse_url(url)
        file = self.url.database if self.url.get_backend_name() == "sqlite" else None
        if file is not None and not create and not Path(file).is_file():
            raise LedgerError(f"there is no ledger {file}; `noiseproof serve` or `noiseproof keys create` makes one.")
        self._engine = _sqlite(self.url) if self.url.get_backend_name() == "sqlite" else _postgresql(self.url)
        try:
            with _in_words():
                migrations.migrate(self._engine)
        except BaseException:
            self.close()
            raise

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engine.dialect.name

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that may write: committed and on disk when the block ends, undone if it raises.

        On SQLite it holds the one write lock from its first moment, so that nothing it has read can have changed.
        """
        with _in_words(), self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of everything, and keeps no writer waiting."""
        with _in_words(), self._engine.connect() as connection:
            if self.dialect == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_url(url: str) -> URL:
    """The database meant by a URL, or by the path of a file for SQLite."""
    if "://" not in url:
        return URL.create("sqlite", database=url)
    try:
        parsed = make_url(url)
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


def _sqlite(url: URL) -> Engine:
    assert url.database is not None
    if not Path(url.database).absolute().parent.is_dir():
        raise SettingError(f"the folder of the ledger {url.database} does not exist; make it first.")
    engine = create_engine(url, connect_args={"timeout": _PATIENCE})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say so, below
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL, not NORMAL: a commit must survive a power failure, as its answer is sent right after it.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgresql(url: URL) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise MissingPartError("a ledger in PostgreSQL needs psycopg: pip install 'noiseproof[serve]'.") from None
    settings = f"-c lock_timeout={_PATIENCE}s -c statement_timeout={4 * _PATIENCE}s -c synchronous_commit=on"
    given = url.query.get("options", "")
    arguments = {"connect_timeout": 5, "options": f"{given} {settings}", "application_name": "noiseproof"}
    # A server that went away is noticed when a connection is taken out, not in the middle of a spend.
    return create_engine(url, connect_args=arguments, pool_pre_ping=True)


@contextmanager
def _in_words() -> Iterator[None]:
    """Database errors as a sentence. Their own messages may hold statements and values, so only their kind is told."""
    try:
        yield
    except IntegrityError as error:
        raise LedgerError("the ledger refused a change that breaks its rules; nothing was written.") from error
    except SQLAlchemyError as error:
        raise LedgerError(
            f"the ledger cannot be used now ({type(error).__name__}); nothing was released, try again later."
        ) from error
