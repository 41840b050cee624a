"""Tables: what a ledger's database holds, what the database itself refuses, and how older ones are brought up to date."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Column, Connection, Engine, ForeignKey, Index, Table, Text, select, text
from sqlalchemy.dialects import postgresql, sqlite

from noiseproof.errors import LedgerError

VERSION = 9
"""The version of the tables that this noiseproof reads and writes."""

_SUMMED_AT_ONCE = 6
"""The version whose spends were summed up in their own transactions."""
_FOLDED_LATER = 9
"""The version since which clients' balances are added up behind the spends."""

EVERYONE = ""
"""The client of a model's own account: what all clients together may spend, because they may collude."""

metadata = sa.MetaData()


def _key(name: str, kind: type[Text | sa.Integer | sa.BigInteger] = Text, references: str | None = None) -> Column[Any]:
    foreign = () if references is None else (ForeignKey(references),)
    return Column(name, kind, *foreign, primary_key=True, autoincrement=False)


def _column(kind: type[Any], name: str, *more: Any, nullable: bool = False, **options: Any) -> Column[Any]:
    return Column(name, kind, *more, nullable=nullable, **options)


def _table(name: str, *columns: Any, by_key: bool = False) -> Table:
    """A table; of SQLite's, `by_key`: rows lie in the order of their key, so that one of very many is found in one step."""
    return Table(name, metadata, *columns, sqlite_with_rowid=not by_key)


_text, _number, _real = (partial(_column, kind) for kind in (Text, sa.BigInteger, sa.Double))
models = _table(
    "models",
    *(_key("model"), _text("release"), _text("measure"), _text("orders"), _number("sequence"), _text("head")),
    _number("folded"),
)
"""Accounts, and the entry up to which their clients' balances add up what was entered; everyone's is always up to date."""
balances = _table(
    "balances",
    _key("model", references="models.model"),
    _key("client"),
    _key("coordinate", sa.Integer),
    _number("capacity"),
    _number("spent"),
    sa.CheckConstraint("spent >= 0 AND spent <= capacity", name="never_overdrawn"),
    by_key=True,
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
grants = _table(
    "grants",
    _key("sequence", sa.BigInteger),
    _text("kind"),
    _text("subject"),
    _text("content"),
    _number("made_at"),
    _text("hash"),
)
"""The chain of everything that grants something: every row of the tables of `GRANTING`, as it was set."""
clients = _table(
    "clients",
    _key("client"),
    _column(sa.Integer, "operator"),
    _number("answers", nullable=True),
    _number("made_at"),
    _text("period", nullable=True),
    by_key=True,
)
allowances = _table(
    "allowances",
    _key("client", references="clients.client"),
    _key("model", references="models.model"),
    _number("answers", nullable=True),
    _text("period", nullable=True),
)
"""Answers of one model that a client may have, where that is not what it may have of every model."""
keys = _table(
    "keys",
    _key("id"),
    _text("client", ForeignKey("clients.client")),
    _text("salt"),
    _text("hash"),
    _number("made_at"),
    _number("revoked_at", nullable=True),
    _number("expires_at", nullable=True),
    by_key=True,
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
    _text("nonce"),
    Index("retries_by_time", "made_at"),
)
"""Requests that may be sent again. The receipt ends in a digest of the request and a nonce, so that no other comes under it."""
answered = _table("answered", _key("receipt"))
"""Receipts of such requests whose answer was released: there is never another, whatever becomes of `retries`."""
repeats = _table("repeats", _key("model", references="models.model"), _key("client"), _key("question"), _text("answer"))
spending = _table(
    "spending",
    _key("model", references="models.model"),
    _key("client"),
    _key("span"),
    _key("start", sa.BigInteger),
    _number("answers"),
    by_key=True,
)
"""Answers by `span` (a minute or an hour) from `start` on: sums of entries. `SUMMED` says up to which one."""
names = _table("names", _key("name"), _text("model", ForeignKey("models.model")))
weights = _table("weights", _key("weights"), _text("model", ForeignKey("models.model")))
"""The accounts of releases by a keyed digest of their weights alone, whatever else is said of them."""
data_sets = _table("data_sets", _key("data_set"), _real("epsilon"), _real("delta"))
draws = _table(
    "draws", _key("release"), _text("data_set"), _real("epsilon", nullable=True), _real("delta"), _text("neighbours")
)
draw_units = _table("draw_units", _key("release"), _text("unit"))
"""Whose promise each of the draws is; a record's, where nothing is said."""
anchors = _table("anchors", _key("ledger"), _key("made_at", sa.BigInteger), _text("document"))
"""Signed heads of other ledgers, kept here for them."""
retired = _table("retired", _key("name"), _number("made_at"))
"""The names of models that answer no more."""
properties = _table("properties", _key("name"), _text("value"))
version_table = _table("version", _column(sa.Integer, "version"))

GRANTING = (models, names, weights, clients, allowances, keys, data_sets, draws, draw_units, anchors, retired)
"""The tables whose rows allow something, and are therefore in the chain of grants."""

SPANS = {"minute": 60_000_000, "hour": 3_600_000_000}
"""Microseconds of the spans that answers are summed up by."""
SUMMED = "summed"
"""The span of the row that says up to which entry of a model its answers are summed up."""

# History is appended to, never edited: the database itself refuses. (SQLite's REPLACE deletes without a delete trigger.)
_SAME = {
    "entries": "(model = NEW.model AND sequence = NEW.sequence) OR receipt = NEW.receipt",
    "grants": "sequence = NEW.sequence",
    "answered": "receipt = NEW.receipt",
}
_REFUSE = "BEGIN SELECT RAISE(ABORT, 'the history of a ledger is append-only'); END"
_SQLITE_GUARDS = {
    f"{table}_no_{verb.lower()}": f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {_REFUSE}"
    for table in _SAME
    for verb in ("UPDATE", "DELETE")
} | {
    f"{table}_no_replace": f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
    f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {same}) {_REFUSE}"
    for table, same in _SAME.items()
}
_POSTGRESQL_BODY = " BEGIN RAISE EXCEPTION 'the history of a ledger is append-only'; END "

# Workers remember rights until this number changes, whoever changed them, and how.
RIGHTS = "rights"
"""The property that is another after every transaction that changes keys or rights."""
_WATCHED = ("clients", "allowances", "keys")
_COUNT = f"UPDATE properties SET value = CAST(CAST(value AS bigint) + 1 AS text) WHERE name = '{RIGHTS}'"
# PostgreSQL keeps every version of a row until its transaction ends: the transaction's own number is written once.
_NUMBER = (
    f"UPDATE properties SET value = CAST(txid_current() AS text) WHERE name = '{RIGHTS}' "
    "AND value <> CAST(txid_current() AS text)"
)
_SQLITE_GUARDS |= {
    f"{table}_{verb.lower()}_counted": f"CREATE TRIGGER {table}_{verb.lower()}_counted AFTER {verb} ON {table} "
    f"BEGIN {_COUNT}; END"
    for table in _WATCHED
    for verb in ("INSERT", "UPDATE", "DELETE")
}
_POSTGRESQL_COUNT = f" BEGIN {_NUMBER}; RETURN NULL; END "
_POSTGRESQL_GUARDS = {
    f"{table}_no_change": ("BEFORE UPDATE OR DELETE OR TRUNCATE", table, "keep_history") for table in _SAME
}
_POSTGRESQL_GUARDS |= {
    f"{table}_counted": ("AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE", table, "count_rights") for table in _WATCHED
}
_POSTGRESQL_FUNCTIONS = {"keep_history": _POSTGRESQL_BODY, "count_rights": _POSTGRESQL_COUNT}


_OTHERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')",
    "postgresql": """
        SELECT t.tgname FROM pg_trigger t WHERE NOT t.tgisinternal AND t.tgrelid = ANY(CAST(:tables AS regclass[]))
        UNION ALL SELECT r.rulename FROM pg_rewrite r WHERE r.ev_class = ANY(CAST(:tables AS regclass[]))
    """,
}


def strangers(connection: Connection) -> Iterator[str]:
    """The names of triggers, rules and views that are none of a ledger's: they may change what is written behind its back."""
    dialect = connection.dialect.name
    own = {*_SQLITE_GUARDS, *_POSTGRESQL_GUARDS}
    asked = {} if dialect == "sqlite" else {"tables": [*metadata.tables]}
    found = connection.execute(text(_OTHERS[dialect]), asked).scalars()
    yield from (str(name) for name in found if name not in own)


def missing_guards(connection: Connection) -> Iterator[str]:
    """The names of guards that are not there, or not as they were made."""
    if connection.dialect.name == "sqlite":
        rows = connection.execute(text("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
        found = {row.name: row.sql for row in rows}
        yield from (name for name, statement in _SQLITE_GUARDS.items() if found.get(name) != statement)
        return
    query = text(
        "SELECT t.tgname, CAST(t.tgrelid AS regclass) = to_regclass(CAST(:table AS text)) AND p.prosrc = :body "
        "FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE t.tgenabled IN ('O', 'A') AND t.tgname = :name"
    )
    for name, (_, table, function) in _POSTGRESQL_GUARDS.items():
        asked = {"name": name, "table": table, "body": _POSTGRESQL_FUNCTIONS[function]}
        if not any(right for _, right in connection.execute(query, asked)):
            yield name


def version(database: Engine | Connection) -> int:
    """The version of a database's tables; 0 for an empty one."""
    if not sa.inspect(database).has_table("version"):
        return 0
    with database.connect() if isinstance(database, Engine) else nullcontext(database) as connection:
        found = connection.execute(select(version_table.c.version)).scalars().all()
    if len(found) != 1 or type(found[0]) is not int:
        raise LedgerError(
            "the ledger does not say its tables' version: somebody changed it; restore a backup that holds."
        )
    return found[0]


def migrate(engine: Engine, *, create: bool = True) -> None:
    """Bring a database to this version, keeping all that is in it; a newer one is refused.

    Every version so far has only added tables and columns, so a step up makes those that are missing. All of it happens
    in one transaction. An empty database becomes a ledger only with `create`.
    """
    present = version(engine)
    if present == VERSION:
        return
    if present == 0 and not create:
        raise LedgerError("there is no ledger in that database; `noiseproof ledger init` makes one.")
    with engine.begin() as connection:
        lock(connection, "migrate")
        found = version(connection)
        if found == VERSION:
            return  # another was quicker
        if found > VERSION:
            raise LedgerError(
                f"the ledger has version {found}, this noiseproof knows {VERSION}; use the one that made it."
            )
        _build(connection, found)
        connection.execute(version_table.delete())
        connection.execute(version_table.insert().values(version=VERSION))


def _build(connection: Connection, found: int) -> None:
    from noiseproof.serve.ledger import grants as chain

    dialect = connection.dialect.name
    metadata.create_all(connection)
    columns = (
        *(
            ("keys", "expires_at", "BIGINT"),
            ("clients", "period", "TEXT"),
            ("retries", "nonce", "TEXT NOT NULL DEFAULT ''"),
        ),
        ("models", "folded", "BIGINT NOT NULL DEFAULT 0"),
    )
    for table, column, kind in columns:
        if column not in {one["name"] for one in sa.inspect(connection).get_columns(table)}:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {kind}"))
    if dialect == "sqlite":
        for name, statement in _SQLITE_GUARDS.items():
            connection.execute(text(f"DROP TRIGGER IF EXISTS {name}"))
            connection.execute(text(statement))
    else:
        for function, body in _POSTGRESQL_FUNCTIONS.items():
            statement = f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$"
            connection.execute(text(statement))
        for name, (when, table, function) in _POSTGRESQL_GUARDS.items():
            statement = (
                f"CREATE OR REPLACE TRIGGER {name} {when} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {function}()"
            )
            connection.execute(text(statement))
    # Accounts of versions 1 to 3 have one name each, their own.
    connection.execute(
        text("INSERT INTO names SELECT model, model FROM models WHERE model NOT IN (SELECT name FROM names)")
    )
    known = dict(map(tuple, connection.execute(select(properties.c.name, properties.c.value))))
    key = known.get("key") or secrets.token_hex(32)
    fresh = [{"name": "key", "value": key}, {"name": "id", "value": id_of(key)}, {"name": RIGHTS, "value": "0"}]
    connection.execute(upsert(dialect, properties), fresh)
    # Up to version 7 retired models were noted outside the chain of grants.
    for name in known:
        if name.startswith(_RETIRED):
            row = {"name": name.removeprefix(_RETIRED), "made_at": int(known[name])}
            connection.execute(upsert(dialect, retired), row)
    chain.adopt(connection)
    if found < _FOLDED_LATER:
        connection.execute(text("UPDATE models SET folded = sequence"))
    if found == _SUMMED_AT_ONCE:
        connection.execute(
            text(f"INSERT INTO spending SELECT model, '{EVERYONE}', '{SUMMED}', 0, sequence FROM models")
        )


_RETIRED = "retired "
_ID_DIGITS = 32


def id_of(key: str) -> str:
    """The id of a ledger with that key: whoever changed the key, by which releases are known, would need another id."""
    return hashlib.sha256(f"the ledger with the key {key}".encode()).hexdigest()[:_ID_DIGITS]


def key_was_changed(id: str, key: str) -> bool:
    """Whether a ledger's key is not the one that it was made with; of ledgers made before version 8 nobody can tell."""
    return len(id) == _ID_DIGITS and id != id_of(key)


def lock(connection: Connection, purpose: str) -> None:
    """Hold one lock for a purpose until the transaction ends (on SQLite, a writing transaction has the only one)."""
    if connection.dialect.name == "postgresql":
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtext(:purpose))"), {"purpose": f"noiseproof {purpose}"}
        )


def upsert(dialect: str, table: Table, *changed: str, add: bool = False) -> Any:
    """An insertion that changes these columns of rows that are there already, or adds to them, and nothing else."""
    inserted = (postgresql if dialect == "postgresql" else sqlite).insert(table)
    if not changed:
        return inserted.on_conflict_do_nothing()
    values = {name: table.c[name] + inserted.excluded[name] if add else inserted.excluded[name] for name in changed}
    return inserted.on_conflict_do_update(index_elements=table.primary_key.columns, set_=values)
