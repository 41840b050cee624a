"""Statements of the path that every answer takes, in the drivers' own calls.

What SQLAlchemy adds to a statement, mostly for databases that need more of it, takes several times as long as SQLite takes
for the statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, Table, Text

Rows = Iterable[tuple[Any, ...]]


TOGETHER = "together"
"""Under which a connection keeps the session that sends its statements together, while it does."""


def driver(connection: Connection) -> Any:
    """What executes statements: the driver's connection, or the session by which its statements are sent together."""
    return connection.info.get(TOGETHER) or connection.connection.driver_connection


class Statement:
    """SQL with `:name` for values, `= ANY(:name)` for one of a list, and PostgreSQL's `FOR UPDATE`, for both databases."""

    def __init__(self, text: str) -> None:
        listed = r"= ANY\(:(\w+)\)"
        self._lists = tuple(re.findall(listed, text))
        # A transaction of SQLite's that writes has the only lock already.
        self._sqlite = re.sub(listed, r"IN (SELECT value FROM json_each(:\1))", text).replace(" FOR UPDATE", "")
        self.postgresql = re.sub(r":(\w+)", r"%(\1)s", text.replace("%", "%%"))

    def run(self, connection: Connection, **values: Any) -> Any:
        """Send it; the driver's cursor, whose rows are tuples."""
        raw = driver(connection)
        if connection.dialect.name == "postgresql":
            return raw.execute(self.postgresql, values)
        for name in self._lists:
            values[name] = orjson.dumps(values[name]).decode()
        return raw.execute(self._sqlite, values)


class Insertion:
    """Rows into a table, whole but for columns that may be empty; where one is there already, it gets the `changed` columns."""

    def __init__(self, table: Table, *changed: str) -> None:
        columns = [column for column in table.columns if not column.nullable]
        names = [column.name for column in columns]
        key = ", ".join(column.name for column in table.primary_key.columns)
        setting = ", ".join(f"{name} = excluded.{name}" for name in changed)
        begin, end = f"INSERT INTO {table.name} ({', '.join(names)})", ""
        if changed:
            end = f" ON CONFLICT ({key}) DO UPDATE SET {setting}"
        self._sqlite = f"{begin} VALUES ({', '.join(f':{name}' for name in names)}){end}"
        # One statement and one value for all rows: psycopg takes longer to write an array than the server to read JSON.
        kinds = ", ".join(f"{one.name} {'text' if isinstance(one.type, Text) else 'bigint'}" for one in columns)
        self.postgresql = f"{begin} SELECT * FROM json_to_recordset(%(rows)s::json) AS given({kinds}){end}"

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows, at least one."""
        raw = driver(connection)
        if connection.dialect.name == "postgresql":
            raw.execute(self.postgresql, {"rows": as_json(rows)})
        else:
            raw.executemany(self._sqlite, rows)


class Together:
    """A statement and insertions into other tables, which a server is sent as one."""

    def __init__(self, statement: Statement, *insertions: Insertion) -> None:
        self._statement, self._insertions = statement, insertions
        parts = [statement.postgresql, *(one.postgresql for one in insertions)]
        texts = [re.sub(r"%\((\w+)\)s", rf"%({place} \1)s", part) for place, part in enumerate(parts)]
        steps = ", ".join(f"step{place} AS ({text})" for place, text in enumerate(texts[:-1]))
        self._postgresql = f"WITH {steps} {texts[-1]}"

    def run(self, connection: Connection, values: Mapping[str, Any], *rows: Sequence[Mapping[str, Any]]) -> None:
        """Run it with these values, and insert these rows, at least one into each table."""
        if connection.dialect.name == "postgresql":
            given = enumerate([values, *({"rows": as_json(its_rows)} for its_rows in rows)])
            named = {f"{place} {name}": value for place, one in given for name, value in one.items()}
            raw = driver(connection)
            raw.execute(self._postgresql, named)
            return
        self._statement.run(connection, **values)
        for insertion, its_rows in zip(self._insertions, rows, strict=True):
            insertion.run(connection, its_rows)


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as one value, which a server takes apart again."""
    return orjson.dumps(rows).decode()
