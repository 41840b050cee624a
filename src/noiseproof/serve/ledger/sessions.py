"""Sessions: statements that a PostgreSQL server is sent in one piece, and has parsed before.

psycopg's pipelines send every statement by itself. Each wakes the server, and this process again, which takes both of them longer
than the statements of a spend.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import fetch_many, send
from psycopg.pq import ExecStatus

_GOOD = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.PIPELINE_SYNC)
_NUMBERS = itertools.count()
_NO_VALUES: Mapping[str, Any] = {}


class Session:
    """One connection to a server, and the statements that were prepared in it. psycopg itself must prepare none."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection, self._server = connection, connection.pgconn
        self._encoding = connection.info.encoding
        self._loader = Transformer(connection)
        self._prepared: dict[str, bytes] = {}
        self._expected: deque[Rows | None] = deque()
        """What the results to come are for, in their order."""
        self._sent = True

    @contextmanager
    def together(self) -> Iterator[Session]:
        """Around a transaction's statements, the first and the last of which are the caller's: none is waited for until its
        rows are looked at. What went wrong with any is raised, and the transaction undone."""
        self._server.enter_pipeline_mode()
        try:
            yield self
            self._finish()
        except BaseException:
            self._give_up()
            raise

    def execute(self, text: str, values: Mapping[str, Any] = _NO_VALUES) -> Rows:
        """Have a statement run with these values, `%(name)s` in it; its rows."""
        statement, names = _numbered(text)
        name = self._prepared.get(text)
        if name is None:
            name = self._prepared[text] = f"noiseproof_{next(_NUMBERS)}".encode()
            self._server.send_prepare(name, statement.encode(self._encoding))
            self._expected.append(None)
        self._server.send_query_prepared(name, [self._written(values[one]) for one in names])
        self._sent = False
        rows = Rows(self)
        self._expected.append(rows)
        return rows

    def end(self) -> None:
        """Send what is left, without waiting for what comes of it; nothing more can be executed together with it."""
        self._server.pipeline_sync()
        self._expected.append(None)
        self._sent = True
        self._connection.wait(send(self._server))

    def receive(self, rows: Rows) -> None:
        """Wait for rows."""
        if not self._sent:
            self._server.send_flush_request()
            self._connection.wait(send(self._server))
            self._sent = True
        while rows.found is None:
            self._next()

    def _next(self) -> None:
        results = self._connection.wait(fetch_many(self._server))
        rows = self._expected.popleft()
        for result in results:
            if result.status not in _GOOD:
                raise error_from_result(result, self._encoding)
        if rows is not None:
            self._loader.set_pgresult(results[-1])
            rows.found = self._loader.load_rows(0, results[-1].ntuples, tuple)

    def _finish(self) -> None:
        if not self._sent:
            self.end()
        while self._expected:
            self._next()
        self._server.exit_pipeline_mode()

    def _give_up(self) -> None:
        """Leave the session as it was before, without its prepared statements: of some nobody knows whether they are."""
        self._prepared.clear()
        self._expected.clear()
        self._sent = True
        try:
            self._server.pipeline_sync()  # once more, perhaps
            while self._server.pipeline_status != 0:
                while self._connection.wait(fetch_many(self._server)):
                    pass
                self._server.exit_pipeline_mode()
            self._connection.rollback()
            self._connection.execute("DEALLOCATE ALL")
            self._connection.commit()
        except psycopg.Error:
            self._connection.close()

    def _written(self, value: Any) -> bytes | None:
        """A value as a server reads it, whatever type it wants."""
        if value is None:
            return None
        if isinstance(value, list):
            value = "{" + ",".join(f'"{_ESCAPED.sub(_escape, one)}"' for one in value) + "}"
        written = str(value).encode(self._encoding)
        if b"\0" in written:
            raise psycopg.DataError("a text of PostgreSQL's holds no zero byte")
        return written


class Rows:
    """The rows of a statement, each a tuple; whoever looks at them waits for them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.found: list[tuple[Any, ...]] | None = None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All of them."""
        if self.found is None:
            self._session.receive(self)
        assert self.found is not None
        return self.found

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())


_ESCAPED = re.compile(r'["\\]')


def _escape(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


@functools.cache
def _numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """A statement with numbers for the names of its values, and the names in their order."""
    names: list[str] = []

    def number(found: re.Match[str]) -> str:
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return re.sub(r"%\(([^)]+)\)s", number, text).replace("%%", "%"), tuple(names)
