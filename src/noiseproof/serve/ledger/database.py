"""Database: SQLite in one file, or PostgreSQL by URL; how each is opened so that what was committed stays."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, OperationalError, SQLAlchemyError

from noiseproof.errors import LedgerError, MissingPartError, SettingError
from noiseproof.serve.ledger import tables

_PATIENCE = 30
"""Seconds that a transaction waits for another's lock before it gives up."""
_NEVER = threading.Event()
"""Never set: to wait for a while."""


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
            with _in_words():
                tables.migrate(self._writer)
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
        with _in_words(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of everything, and keeps no writer waiting."""
        with _in_words(), self._reader.connect() as connection:
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


def _check_file(url: URL, create: bool) -> None:
    assert url.database is not None
    file = Path(url.database).absolute()
    if not file.parent.is_dir():
        raise SettingError(f"the folder of the ledger {url.database} does not exist; make it first.")
    if not create and not file.is_file():
        raise LedgerError(
            f"there is no ledger {url.database}; `noiseproof serve` or `noiseproof keys create` makes one."
        )


def _sqlite(url: URL, *, writes: bool = False) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _PATIENCE})

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say so, below
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL, not NORMAL: a commit must survive a power failure, as its answer is sent right after it.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if writes:
            connection.execute("PRAGMA busy_timeout = 0")  # `_take_lock` waits instead

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if writes:
            _take_lock(connection)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _take_lock(connection: Connection) -> None:
    """Begin with SQLite's write lock, which is held for some ms; SQLite itself sleeps up to 100 between two looks."""
    until = time.monotonic() + _PATIENCE
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
