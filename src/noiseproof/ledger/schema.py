"""The tables of the newest version, as queries see them; `migrations` makes them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, MetaData, Table, Text

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
