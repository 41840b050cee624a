"""Spending: answers by the minute and by the hour, and balances of clients, summed up behind the spends.

A spend writes its entry and everyone's balance, nothing else. What the entries add up to is written later, thousands at a time:
row by row, sums of a hundred thousand clients would lie in as many places, and cost more than the spends themselves. Whoever
asks in between is told the sums and the entries that are not in them yet (`tails`).
"""

from __future__ import annotations

import time

from sqlalchemy import Connection

from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.statements import Statement
from noiseproof.serve.ledger.tables import EVERYONE, SPANS, SUMMED, lock

_AT_ONCE = 4096
"""Entries that one transaction sums up: the more at once, the fewer pages are written for each, and the longer a spend waits."""
_MINUTES_KEPT = 2 * 86_400_000_000

_ACCOUNTS = Statement(
    "SELECT m.model, m.sequence, m.folded, COALESCE(s.answers, 0) FROM models m LEFT JOIN spending s ON s.model = m.model "
    f"AND s.client = '{EVERYONE}' AND s.span = '{SUMMED}' AND s.start = 0 "
    "WHERE m.sequence > COALESCE(s.answers, 0) OR m.sequence > m.folded"
)
# The units of an entry are a list in JSON, which each database takes apart in its own way.
_UNITS = {
    "sqlite": (
        "CAST(j.key AS INTEGER)",
        "j.value",
        ", json_each(e.units) j",
        "json_extract(l.units, '$[' || a.coordinate || ']')",
    ),
    "postgresql": (
        *("CAST(j.place AS INTEGER) - 1", "CAST(j.value AS BIGINT)"),
        " CROSS JOIN LATERAL json_array_elements_text(CAST(e.units AS json)) WITH ORDINALITY AS j(value, place)",
        "CAST(CAST(l.units AS json) ->> a.coordinate AS BIGINT)",
    ),
}
_FOLD = {
    dialect: Statement(
        f"WITH added AS (SELECT e.client AS client, {place} AS coordinate, "
        f"CAST(SUM(CASE WHEN e.kind = 'spend' THEN {value} ELSE 0 END) AS BIGINT) AS spent, "
        f"MAX(CASE WHEN e.kind = 'limit' THEN e.sequence END) AS limited FROM entries e{apart} "
        f"WHERE e.model = :model AND e.sequence > :after AND e.sequence <= :upto AND e.client <> '{EVERYONE}' GROUP BY 1, 2) "
        "INSERT INTO balances (model, client, coordinate, capacity, spent) SELECT m.model, a.client, a.coordinate, "
        f"COALESCE((SELECT {limit} FROM entries l WHERE l.model = :model AND l.sequence = a.limited), b.capacity), "
        "COALESCE(b.spent, 0) + a.spent FROM added a JOIN models m ON m.model = :model LEFT JOIN balances b "
        "ON b.model = :model AND b.client = a.client AND b.coordinate = a.coordinate WHERE true "
        "ON CONFLICT (model, client, coordinate) DO UPDATE SET capacity = excluded.capacity, spent = excluded.spent"
    )
    for dialect, (place, value, apart, limit) in _UNITS.items()
}
_FOLDED = Statement("UPDATE models SET folded = :upto WHERE model = :model")
_MINUTE = SPANS["minute"]
_SUM_UP = Statement(
    f"WITH seen AS MATERIALIZED (SELECT client, made_at - made_at % {_MINUTE} AS minute, CAST(SUM(answers) AS BIGINT) AS answers "
    "FROM entries WHERE model = :model AND sequence > :after AND sequence <= :upto AND kind = 'spend' AND answers > 0 "
    "GROUP BY 1, 2) INSERT INTO spending (model, client, span, start, answers) "
    + " UNION ALL ".join(
        f"SELECT m.model, {client}, '{span}', minute - minute % {width} AS start, CAST(SUM(answers) AS BIGINT) "
        "FROM seen JOIN models m ON m.model = :model GROUP BY 1, 2, 3, 4"
        for span, width in SPANS.items()
        for client in ("client", f"'{EVERYONE}'")
    )
    + " ON CONFLICT (model, client, span, start) DO UPDATE SET answers = spending.answers + excluded.answers"
)
_SUMMED_UP = Statement(
    f"INSERT INTO spending (model, client, span, start, answers) VALUES (:model, '{EVERYONE}', '{SUMMED}', 0, :upto) "
    "ON CONFLICT (model, client, span, start) DO UPDATE SET answers = excluded.answers"
)
_UP_TO = (
    f"COALESCE((SELECT answers FROM spending WHERE model = :model AND client = '{EVERYONE}' AND span = '{SUMMED}'), 0)"
)
_SUMS = Statement(
    "SELECT start, answers FROM spending WHERE model = :model AND client = :client AND span = :span AND start >= :since"
)
_REST = Statement(
    "SELECT made_at, answers FROM entries WHERE model = :model AND kind = 'spend' AND made_at >= :since "
    f"AND sequence > {_UP_TO} AND (client = :client OR :client = '{EVERYONE}')"
)
_FORGET = Statement("DELETE FROM spending WHERE span = 'minute' AND start < :before")


def since(connection: Connection, model: str, client: str, span: str, start: int) -> dict[int, int]:
    """Answers of a client, or of everyone, by the minute or hour that they were paid for in, from the one of `start` on."""
    width = SPANS[span]
    asked = {"model": model, "client": client, "since": start - start % width}
    counts = {int(at): int(answers) for at, answers in _SUMS.run(connection, **asked, span=span)}
    for made_at, answers in _REST.run(connection, **asked):
        counts[made_at - made_at % width] = counts.get(made_at - made_at % width, 0) + answers
    return counts


def answers_since(connection: Connection, model: str, client: str, start: int) -> int:
    """How many answers a client has paid for since the hour of `start`, in microseconds since 1970."""
    return sum(since(connection, model, client, "hour", start).values())


def sum_up(database: Database) -> bool:
    """Sum up some entries that are not yet, and add them to the balances of clients; whether some may be left."""
    with database.reading() as connection:
        behind = _ACCOUNTS.run(connection).fetchall()
    if not behind:
        return False
    with database.writing() as connection:
        lock(connection, "sum up")
        for model, sequence, folded, summed in _ACCOUNTS.run(connection).fetchall():
            upto = min(sequence, summed + _AT_ONCE)
            if upto > summed:
                _SUM_UP.run(connection, model=model, after=summed, upto=upto)
                _SUMMED_UP.run(connection, model=model, upto=upto)
            upto = min(sequence, folded + _AT_ONCE)
            if upto > folded:
                _FOLD[database.dialect].run(connection, model=model, after=folded, upto=upto)
                # Last, since spends wait for whoever changes an account.
                _FOLDED.run(connection, model=model, upto=upto)
    return any(sequence - min(folded, summed) > _AT_ONCE for _, sequence, folded, summed in behind)


def forget(connection: Connection) -> None:
    """Forget single minutes that nobody looks at any more."""
    _FORGET.run(connection, before=time.time_ns() // 1000 - _MINUTES_KEPT)
