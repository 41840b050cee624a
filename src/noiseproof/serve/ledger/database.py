"""Database: how SQLite (one file) or PostgreSQL (by URL) is opened so that commits stay, and a lost file is noticed."""

from __future__ import annotations

import math
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine
from sqlalchemy.exc import ArgumentError, InvalidatePoolError, SQLAlchemyError

from noiseproof.errors import LedgerError, MissingPartError, SettingError
from noiseproof.serve.ledger.deadlines import Deadlines
from noiseproof.serve.ledger.statements import TOGETHER
from noiseproof.serve.ledger.tables import draws, migrate

if TYPE_CHECKING:
    from noiseproof.serve.ledger.records import Paid, Refused
    from noiseproof.serve.ledger.sessions import Session

_LOCK_SECONDS = 30
"""Seconds that a transaction waits for another's lock before it gives up."""
_IDLE_SECONDS = 1.0
"""Seconds after which a connection to PostgreSQL is tried before it is used."""
_NEVER = threading.Event()
"""Never set: to wait for a while."""
_FLUSH = "SELECT set_config('synchronous_commit', 'on', true), pg_logical_emit_message(true, 'noiseproof', '')"
"""A transaction of PostgreSQL that writes to its log and nothing else, and returns when the log up to there is on disk."""
_to_disk = getattr(os, "fdatasync", os.fsync)
_CACHE_KIB = 64 << 10
"""What SQLite may keep of a file in memory, so that a ledger of a million entries is as quick as a small one."""


_LOG_PAGES = 4000
"""Pages of SQLite's log that are brought into its file at once (16 MB): whoever commits waits for that, and most pages are
written again and again."""


class Database:
    """Where ledgers, keys and answers are kept: transactions on a database of the newest version."""

    def __init__(self, url: str, *, create: bool = True, deadline: float | None = None) -> None:
        """`deadline`: seconds that a transaction may wait for PostgreSQL; None, for commands, as long as it takes."""
        self.url = parse_url(url)
        self.seen: dict[str, tuple[int, str]] = {}
        """The last entry of each account that this process has seen, by number and hash: histories only grow."""
        self._deadlines: Deadlines | None = None
        self._flusher = ThreadPoolExecutor(1, "flusher")  # which has no thread until it is given something
        if self.url.get_backend_name() == "sqlite":
            _check_file(self.url, create)
            self._reader, self._writer = _sqlite(self.url), _sqlite(self.url, writes=True)
        else:
            self._reader = self._writer = _postgresql(self.url)
            if deadline is not None:
                self._deadlines = Deadlines(self._reader, deadline)
        try:
            with _plain_errors(), self._watching():
                migrate(self._writer, create=create)
        except BaseException:
            self.close()
            raise

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._reader.dialect.name

    def quote(self, name: str) -> str:
        """A name as it stands in a statement."""
        return self._reader.dialect.identifier_preparer.quote(name)

    @contextmanager
    def writing(self, *, together: bool = False, meanwhile: Callable[[], None] | None = None) -> Iterator[Connection]:
        """A transaction that may write: committed and on disk when the block ends, undone if it raises.

        With `together`, every `Statement` goes to a server without waiting for the answers to those before, until rows
        are read; so do the commit and the flush, with the last of them. (SQLAlchemy's own statements would wait.)
        `meanwhile` is called while what was written is brought to disk, if it is written `together`. It raises nothing, and
        what it does must be of no consequence should the block raise after all.

        On SQLite it holds the one write lock from its first moment, so that nothing it has read can have changed. What
        was committed is brought to disk after the locks are released: others need not wait for the disk, and commits
        of several workers share a flush. Whatever anybody reads and releases after a write of their own is on disk then,
        since flushing a log flushes all that was written to it before.
        """
        maybe_written = False
        try:
            with _plain_errors(), self._watching() as began, self._writer.connect() as connection:
                server = self.dialect == "postgresql"
                with (
                    connection.begin(),
                    _sent_together(connection) if server and together else nullcontext() as session,
                ):
                    yield connection
                    maybe_written = server  # SQLite's commit is made, or fails and is none
                    if session is not None:
                        # The flush's own transaction ends by a statement: the server does not wait for ours to end.
                        for statement in ("COMMIT AND CHAIN", _FLUSH, "COMMIT"):
                            session.execute(statement)
                        session.end()
                        if meanwhile is not None:
                            began(math.inf)  # what takes its time now is not the server
                            meanwhile()
                            began(time.monotonic())
                maybe_written = True
                if not server and together and meanwhile is not None:
                    flushed = self._flusher.submit(_flush, self.url, connection.info)
                    meanwhile()
                    flushed.result()
                elif not server:
                    _flush(self.url, connection.info)
                elif session is None:
                    with _driven(connection) as raw:
                        raw.execute(_FLUSH)
        except LedgerAwayError as error:
            if maybe_written:
                raise LedgerUnsureError(str(error)) from error
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of everything, and keeps no writer waiting."""
        with _plain_errors(), self._watching(), self._reader.connect() as connection:
            if self.dialect == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def looking(self) -> Iterator[Connection]:
        """For one `Statement` that reads: without a transaction around it, which would cost as much as the statement."""
        sqlite = self.dialect == "sqlite"
        with (
            _plain_errors(),
            self._watching(),
            self._reader.connect() as connection,
            nullcontext() if sqlite else _driven(connection),
        ):
            yield connection

    def into_one_file(self) -> None:
        """Bring everything that SQLite keeps beside the file into it, so that the file can be moved."""
        self._reader.dispose()
        with _plain_errors(), self._writer.connect() as connection:
            raw = connection.connection.driver_connection
            assert raw is not None
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            raw.execute("PRAGMA journal_mode = DELETE")
        self._writer.dispose()

    def probe(self) -> None:
        """Commit a write that changes nothing: whether a spend could be committed now."""
        one = sa.select(sa.func.min(draws.c.release)).scalar_subquery()
        with self.writing() as connection:
            connection.execute(sa.update(draws).where(draws.c.release == one).values(data_set=draws.c.data_set))

    def close(self) -> None:
        """Close all connections."""
        self._reader.dispose()
        self._writer.dispose()
        self._flusher.shutdown()
        if self._deadlines is not None:
            self._deadlines.close()

    def _watching(self) -> AbstractContextManager[Callable[[float], None]]:
        return nullcontext(lambda _: None) if self._deadlines is None else self._deadlines.watching()

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
    if create:
        with suppress(FileExistsError):  # SQLite gives its other files the mode of this one
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    elif not file.is_file():
        raise LedgerError(f"there is no ledger {url.database}; `noiseproof ledger init` makes one.")


def _files(url: URL) -> tuple[tuple[int, int], ...]:
    """What tells the files of a ledger apart from others of the same names: the database, and what is not yet in it."""
    found = (os.stat(f"{url.database}{suffix}") for suffix in ("", "-wal"))
    return tuple((one.st_dev, one.st_ino) for one in found)


def _flush(url: URL, info: MutableMapping[Any, Any]) -> None:
    """Bring what was committed to disk, unless its files have no name any more: what was spent there would be forgotten."""
    try:
        with open(f"{url.database}-wal", "rb") as log:
            same = _files(url) == info["files"] and os.fstat(log.fileno()).st_ino == info["files"][1][1]
            if same:
                _to_disk(log.fileno())
    except FileNotFoundError:
        same = False
    except OSError as error:
        raise LedgerError(
            f"the ledger {url.database} cannot be brought to disk ({error.strerror}); nothing was released."
        ) from error
    if not same:
        raise LedgerError(
            f"the ledger {url.database} was removed or replaced while it was in use; nothing was released. Stop the "
            "service, and put the ledger back with `noiseproof ledger restore`."
        )


@contextmanager
def _driven(connection: Connection) -> Iterator[Any]:
    """psycopg's own connection, whose transactions begin and end where statements say so; it is not left like that."""
    import psycopg

    raw: Any = connection.connection.driver_connection
    raw.autocommit = True
    try:
        yield raw
    finally:
        try:
            raw.rollback()  # which sends nothing where no transaction is open
            raw.autocommit = False
        except psycopg.Error:
            raw.close()


@contextmanager
def _sent_together(connection: Connection) -> Iterator[Session]:
    from noiseproof.serve.ledger.sessions import Session

    session = connection.info.get("session")
    if session is None:
        session = connection.info["session"] = Session(connection.connection.driver_connection)  # type: ignore[arg-type]
    connection.info[TOGETHER] = session
    try:
        with session.together():
            session.execute("BEGIN")
            yield session
    finally:
        del connection.info[TOGETHER]


def _sqlite(url: URL, *, writes: bool = False) -> Engine:
    engine = sa.create_engine(url, connect_args={"timeout": _LOCK_SECONDS})

    @sa.event.listens_for(engine, "connect")
    def _connected(connection: Any, _: object) -> None:
        connection.isolation_level = None  # transactions begin where we say so, below
        # What somebody wrote that is no text is still read, and found by whoever verifies.
        connection.text_factory = lambda content: content.decode("utf-8", "surrogateescape")
        connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        # Whoever makes a new file a log's asks for all of it, and SQLite then refuses others at once instead of waiting.
        _when_free(connection, "PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        # NORMAL keeps the file whole through a power failure; that a commit survives it, `_flush` sees to.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        if writes:
            connection.execute("PRAGMA busy_timeout = 0")  # `_when_free` waits instead

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if writes:
            # The write lock is held for a ms; SQLite itself sleeps up to 100 between two looks.
            _when_free(connection.connection.driver_connection, "BEGIN IMMEDIATE")
            if "files" not in connection.info:  # SQLite keeps them as long as this connection lives
                connection.info["files"] = _files(url)
        else:
            connection.exec_driver_sql("BEGIN")

    return engine


def _when_free(raw: Any, statement: str) -> None:
    """Run a statement on SQLite's own connection as soon as nobody's lock is in its way."""
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            raw.execute(statement)
            return
        except sqlite3.OperationalError as error:
            busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > until:
                raise
            # Not `time.sleep`, which waits for a moment instead of for a while: some clocks that jump make it fail.
            _NEVER.wait(random.uniform(0.0002, 0.0006))


def _postgresql(url: URL) -> Engine:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise MissingPartError("a ledger in PostgreSQL needs psycopg: pip install 'noiseproof[serve]'.") from None
    settings = f"-c lock_timeout={_LOCK_SECONDS}s -c statement_timeout={4 * _LOCK_SECONDS}s -c synchronous_commit=off"
    given = url.query.get("options", "")
    arguments = {
        "connect_timeout": 5,
        "prepare_threshold": None,  # a `Session` prepares what is run often, and would lose it when psycopg forgets its own
        "options": f"{given} {settings}",
        "application_name": "noiseproof",
        # A machine that is gone is noticed within some 15 seconds, also while nothing is sent.
        "keepalives_idle": 5,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }
    engine = sa.create_engine(url, connect_args=arguments)
    sa.event.listen(engine, "checkout", _pinged)
    sa.event.listen(engine, "checkin", _returned)
    return engine


def _pinged(connection: Any, record: Any, _: object) -> None:
    """Notice a server that went away when a connection is taken out, unless it was in use a moment ago."""
    import psycopg

    if time.monotonic() - record.info.get("returned", -_IDLE_SECONDS) < _IDLE_SECONDS and not connection.closed:
        return
    try:
        connection.execute("SELECT 1")
        connection.commit()
    except psycopg.Error as error:
        raise InvalidatePoolError from error


def _returned(_: object, record: Any) -> None:
    record.info["returned"] = time.monotonic()


class LedgerAwayError(LedgerError):
    """The database cannot be used now, and nothing was written: whoever can wait may try again."""


class LedgerUnsureError(LedgerError):
    """The database went away while something was committed: it may be in it, or not.

    `outcomes` are those of spends that were on their way.
    """

    outcomes: Sequence[Paid | Refused] = ()


def _database_errors() -> tuple[type[Exception], ...]:
    """SQLAlchemy's errors, and those of drivers that are in use."""
    psycopg = sys.modules.get("psycopg")
    return (SQLAlchemyError, sqlite3.Error, *(() if psycopg is None else (psycopg.Error,)))


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Database errors as a sentence. Their own messages may hold statements and values, so only their kind is told."""
    try:
        yield
    except UnicodeDecodeError:  # of SQLite's own messages, where a damaged file has names that are no text
        raise LedgerError("the ledger is damaged and cannot be read; restore it from a backup.") from None
    except _database_errors() as error:
        kinds = {kind.__name__ for kind in type(error).__mro__}  # which SQLAlchemy and all drivers call the same
        if getattr(getattr(error, "orig", error), "sqlstate", None) == "42501":  # insufficient_privilege
            raise LedgerError(
                "this role of the database may not do that; use the one that owns the ledger (`noiseproof ledger role` "
                "made this one for serving alone)."
            ) from error
        if "IntegrityError" in kinds:
            raise LedgerError("the ledger refused a change that breaks its rules; nothing was written.") from error
        away = kinds & {"OperationalError", "InterfaceError", "TimeoutError"}
        why = _reason(error) if away else type(error).__name__
        raise (LedgerAwayError if away else LedgerError)(
            f"the ledger cannot be used now ({why}); nothing was released, try again later."
        ) from error


_REASONS = {
    "no password supplied": "it wants a password; put one into the file that PGPASSFILE names, mode 0600",
    "password authentication failed": "it refuses the role's password",
    "pg_hba.conf": "it lets nobody in from here by this way; see its pg_hba.conf",
    "could not translate host name": "its host's name is not known",
    "failed to resolve host": "its host's name is not known",
    "Connection refused": "nothing listens at its address",
    "No such file or directory": "nothing listens at its address",
    "does not exist": "there is no such database or role",
    "disk is full": "its disk is full",
    "No space left on device": "its disk is full",
    "readonly database": "it may only be read",
}
"""What an operator can mend, told by words of drivers' messages; the messages themselves may hold statements and values."""


def _reason(error: Exception) -> str:
    said = str(getattr(error, "orig", error))
    return next((reason for words, reason in _REASONS.items() if words in said), type(error).__name__)
