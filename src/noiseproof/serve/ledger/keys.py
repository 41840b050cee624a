"""Keys: who may ask. An API key is shown once, when it is made; what is kept is a salted hash of it."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, insert, select, update

from noiseproof.errors import SettingError
from noiseproof.serve.ledger.database import Database, clients, keys, upsert
from noiseproof.serve.ledger.records import timestamp

_PREFIX = "np"
_ID_BYTES, _SECRET_BYTES, _SALT_BYTES = 8, 32, 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_KEYS = select(keys, clients.c.operator, clients.c.answers).join(clients, clients.c.client == keys.c.client)
_NOBODY = ("0" * 2 * _SALT_BYTES, "0" * 64)
"""A salt and a hash that no secret has: what an unknown key is checked against, so that it takes as long."""


@dataclass(frozen=True)
class Caller:
    """A client by one of its keys; `answers` is how many it may have of each model (None: no limit of its own)."""

    id: str
    client: str
    operator: bool = False
    answers: int | None = None
    made_at: int = 0
    revoked_at: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The key as it is listed."""
        revoked = None if self.revoked_at is None else timestamp(self.revoked_at)
        return {**vars(self), "made_at": timestamp(self.made_at), "revoked_at": revoked}


class Keys:
    """The API keys in a ledger's database.

    A key is `np_ID_SECRET`, the secret 256 random bits, so that one fast hash with a salt is enough to keep it: there
    is nothing to guess. Secrets are compared in constant time, and an unknown id costs the same work as a known one.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, client: str, *, operator: bool = False, answers: int | None = None) -> str:
        """A new key for a client, who is made if new; a client that is there gets these rights for all its keys."""
        if not _NAME.fullmatch(client):
            raise SettingError("a client's name has 1 to 100 letters, digits or ._@- and no sign comes first.")
        if answers is not None and answers < 0:
            raise SettingError(f"a client's number of answers must be 0 or more, not {answers}.")
        id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        salt = secrets.token_hex(_SALT_BYTES)
        now = time.time_ns() // 1000
        rights = {"operator": int(operator), "answers": answers}
        with self._database.writing() as connection:
            row = {"client": client, "made_at": now, **rights}
            connection.execute(upsert(self._database.dialect, clients, *rights), row)
            connection.execute(
                insert(keys).values(id=id, client=client, salt=salt, hash=_hash(secret, salt), made_at=now)
            )
        return f"{_PREFIX}_{id}_{secret}"

    def revoke(self, id: str) -> None:
        """Revoke a key by its id; no spend that begins after this returns is made with it."""
        with self._database.writing() as connection:
            changed = connection.execute(
                update(keys)
                .where(keys.c.id == id, keys.c.revoked_at.is_(None))
                .values(revoked_at=time.time_ns() // 1000)
            )
            if changed.rowcount == 0:
                raise SettingError("there is no live key of that id; `noiseproof keys list` shows them.")

    def list(self) -> list[Caller]:
        """All keys, oldest first, without their secrets."""
        with self._database.reading() as connection:
            rows = connection.execute(_KEYS.order_by(keys.c.made_at, keys.c.id)).all()
        return [_caller(row) for row in rows]

    def check(self, key: str) -> Caller | None:
        """Whose key it is; None for one that is wrong, unknown or revoked."""
        id, secret = split(key)
        with self._database.reading() as connection:
            row = connection.execute(_KEYS.where(keys.c.id == id)).one_or_none()
        salt, expected = _NOBODY if row is None else (row.salt, row.hash)
        # All three are worked out for every key, right or wrong.
        same = hmac.compare_digest(_hash(secret, salt), expected)
        if not same or row is None or row.revoked_at is not None:
            return None
        return _caller(row)


def _caller(row: Row[Any]) -> Caller:
    return Caller(row.id, row.client, bool(row.operator), row.answers, row.made_at, row.revoked_at)


def split(key: str) -> tuple[str, str]:
    """The id and the secret of a key; what is no key has an id that nobody has."""
    prefix, _, rest = key.partition("_")
    id, _, secret = rest.partition("_")
    return (id, secret) if prefix == _PREFIX else ("", key)


def _hash(secret: str, salt: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode()).hexdigest()
