"""Grants: a chain of hashes over everything that allows something, so that a right that nobody gave is a finding."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Table, and_, insert, select, text

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger.records import digest
from noiseproof.serve.ledger.tables import GRANTING, RIGHTS, grants, keys, properties, upsert

_VOLATILE = {"models": ("sequence", "head", "folded")}
"""Columns that follow from other chains."""
_BY_NAME = {table.name: table for table in GRANTING}
_FINAL = {
    "models": (),
    "names": (),
    "weights": (),
    "draw_units": (),
    "anchors": (),
    "retired": (),
    "keys": ("revoked_at", "expires_at"),
}
"""Tables whose rows stay as they are once they are set, but for these columns."""

MARK = (
    "(SELECT hash FROM grants ORDER BY sequence DESC LIMIT 1) "
    f"|| (SELECT value FROM properties WHERE name = '{RIGHTS}')"
)
"""SQL for what tells the present state of keys and rights from every other, whoever changed them, and how."""

State = dict[tuple[str, str], dict[str, Any]]
"""What is granted, by table and row."""


def put(connection: Connection, table: Table, row: Mapping[str, Any], *changed: str) -> None:
    """Set a row of a table that grants something and note it in the chain; `changed` columns only, if it is there.

    The caller's transaction holds the lock "open". A row that is as it should be already leaves no entry.
    """
    place = [column == row[column.name] for column in table.primary_key.columns]
    before = connection.execute(select(table).where(and_(*place))).mappings().one_or_none()
    blank = dict.fromkeys(table.columns.keys())
    after = {**blank, **row} if before is None else {**before, **{name: row[name] for name in changed}}
    if before is not None and dict(before) == after:
        return
    connection.execute(upsert(connection.dialect.name, table, *(changed if before is not None else ())), after)
    note(connection, table, after)


def note(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Note in the chain that a row was set."""
    last = connection.execute(select(grants).order_by(grants.c.sequence.desc()).limit(1)).one_or_none()
    sequence, previous = (0, origin(connection)) if last is None else (last.sequence, last.hash)
    entry = _entry(sequence + 1, previous, table, row)
    connection.execute(insert(grants).values(**entry))


def adopt(connection: Connection) -> None:
    """Note every row that an older version set without noting it."""
    known = replay(connection)
    sequence, head = known.sequence, known.head
    rows = []
    for table in GRANTING:
        for row in map(dict, connection.execute(select(table)).mappings()):
            if (table.name, _subject(table, row)) not in known.state:
                rows.append(_entry(sequence + 1, head, table, row))
                sequence, head = rows[-1]["sequence"], rows[-1]["hash"]
    if rows:
        connection.execute(insert(grants), rows)


def mark(connection: Connection) -> str | None:
    """What tells the present state of keys and rights from every other."""
    return connection.execute(text(f"SELECT {MARK}")).scalar()


def origin(connection: Connection) -> str:
    """The hash that the first grant follows."""
    id = connection.execute(select(properties.c.value).where(properties.c.name == "id")).scalar_one_or_none()
    if id is None:
        raise LedgerError("the ledger's id was taken out of it: nobody should rely on it; restore a backup that holds.")
    return digest({"ledger": id})


@dataclass
class Right:
    """How many answers a client may have of a model: in all, or in each period; None: as many as there are."""

    answers: int | None
    period: str | None = None


@dataclass
class Granted:
    """What the chain of grants says, and what is wrong with it."""

    state: State = field(default_factory=dict)
    rights: dict[str, list[tuple[str | None, Right]]] = field(default_factory=dict)
    """Every right that a client ever had: for one model, or (None) for all."""
    sequence: int = 0
    head: str = ""
    problems: list[str] = field(default_factory=list)

    def most(self, client: str, model: str) -> Right | None:
        """The largest right that a client ever had of a model; None where there was no limit, or is no client."""
        found = [right for of, right in self.rights.get(client, ()) if of in (None, model)]
        if not found or any(right.answers is None for right in found):
            return None
        # Rights by period and in all are not compared: with both there is no one limit to check.
        periods = {right.period for right in found}
        return Right(max(right.answers or 0 for right in found), periods.pop()) if len(periods) == 1 else None


def replay(connection: Connection, noted: Mapping[int, str] | None = None) -> Granted:
    """Follow the chain of grants from its first entry, and compare it with the hashes `noted` elsewhere."""
    granted = Granted(head=origin(connection))
    left = dict(noted or {})
    for row in connection.execute(select(grants).order_by(grants.c.sequence), execution_options={"yield_per": 1000}):
        granted.sequence += 1
        if row.sequence != granted.sequence:
            granted.problems.append(f"grant {granted.sequence} is missing.")
            granted.sequence = row.sequence if isinstance(row.sequence, int) else granted.sequence
        try:
            entry = (row.sequence, row.kind, row.subject, row.content, row.made_at)
            found = _hash(*entry, granted.head)
            if found != row.hash:
                granted.problems.append(f"grant {granted.sequence} was changed, or the one before it.")
            granted.head = str(row.hash)
            _follow(granted, row.kind, row.subject, json.loads(row.content))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            granted.problems.append(f"grant {granted.sequence} cannot be read.")
        if left.pop(granted.sequence, granted.head) != granted.head:
            granted.problems.append(
                f"grant {granted.sequence} is not the one that was noted: the history was rewritten."
            )
    granted.problems += [f"grant {one}, which was noted, is missing: the history was cut off." for one in sorted(left)]
    return granted


def check_tables(connection: Connection, granted: Granted) -> list[str]:
    """What the tables grant that the chain does not, and the reverse."""
    problems = []
    left = dict(granted.state)
    for table in GRANTING:
        stored = connection.execute(select(table), execution_options={"yield_per": 1000}).mappings()
        for row in map(dict, stored):
            try:
                place = table.name, _subject(table, row)
                same = left.pop(place, None) == json.loads(json.dumps(_content(table, row)))
            except (ValueError, TypeError):
                same = False
            if not same:
                problems.append(f"{_named(table, row)} is not as it was granted.")
    problems += [f"a row of {kind} that was granted is missing: {subject}." for kind, subject in left]
    return problems


def _follow(granted: Granted, kind: str, subject: str, content: dict[str, Any]) -> None:
    table = _BY_NAME[kind]
    before = granted.state.get((kind, subject))
    if before is not None and kind in _FINAL:
        changed = {name for name in content.keys() | before.keys() if content.get(name) != before.get(name)}
        if changed - set(_FINAL[kind]):
            granted.problems.append(f"grant {granted.sequence} changed {_named(table, content)}, which nothing may.")
        if before.get("revoked_at") is not None and content.get("revoked_at") is None:
            granted.problems.append(f"grant {granted.sequence} took back that {_named(table, content)} was revoked.")
    granted.state[kind, subject] = content
    if kind in ("clients", "allowances"):
        right = Right(content["answers"], content["period"])
        granted.rights.setdefault(content["client"], []).append((content.get("model"), right))


def _entry(sequence: int, previous: str, table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    content = json.dumps(_content(table, row), sort_keys=True)
    made_at, subject = time.time_ns() // 1000, _subject(table, row)
    hash = _hash(sequence, table.name, subject, content, made_at, previous)
    names = ("sequence", "kind", "subject", "content", "made_at", "hash")
    return dict(zip(names, (sequence, table.name, subject, content, made_at, hash), strict=True))


def _hash(sequence: int, kind: str, subject: str, content: str, made_at: int, previous: str) -> str:
    names = ("sequence", "kind", "subject", "content", "made_at", "previous")
    return digest(dict(zip(names, (sequence, kind, subject, content, made_at, previous), strict=True)))


def _subject(table: Table, row: Mapping[str, Any]) -> str:
    return json.dumps([row[column.name] for column in table.primary_key.columns])


def _named(table: Table, row: Mapping[str, Any]) -> str:
    what = {"models": "account", "data_sets": "data set", "draws": "draw"}.get(table.name, table.name.removesuffix("s"))
    return f"the {what} {'/'.join(str(row[column.name]) for column in table.primary_key.columns)}"


def _content(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the chain holds it; of a key's secret only a digest of what is kept of it."""
    left_out = _VOLATILE.get(table.name, ())
    content = {name: row[name] for name in row if name not in left_out}
    if table is keys:
        kept = f"{content.pop('salt')} {content.pop('hash')}"
        content["secret"] = hashlib.sha256(kept.encode("utf-8", "surrogateescape")).hexdigest()
    return content
