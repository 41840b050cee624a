"""Keys: who may ask. An API key is shown once, when it is made; what is kept is a salted hash of it."""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select

from noiseproof.errors import SettingError
from noiseproof.serve.ledger import grants
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.records import PERIODS, Period, timestamp
from noiseproof.serve.ledger.statements import Statement
from noiseproof.serve.ledger.tables import allowances, clients, keys, lock, names

_PREFIX = "np"
_ID_BYTES, _SECRET_BYTES, _SALT_BYTES = 8, 32, 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_KEYS = select(keys, clients.c.operator, clients.c.answers, clients.c.period).join(
    clients, clients.c.client == keys.c.client
)
_KEPT = Statement(
    "SELECT (SELECT value FROM properties WHERE name = 'key'), k.salt, k.hash, k.id, k.client, c.operator, c.answers, "
    "k.made_at, k.revoked_at, k.expires_at, c.period FROM keys k JOIN clients c ON c.client = k.client WHERE k.id = ANY(:ids)"
)
_NOBODY = ("", "0" * 2 * _SALT_BYTES, "0" * 64)
"""No ledger's key, and a salt and a hash that no secret has: what an unknown key is checked against, so that it takes as long."""


class Keep(enum.Enum):
    """Leave a right as it is."""

    KEEP = 0


KEEP = Keep.KEEP


@dataclass(frozen=True)
class Caller:
    """A client by one of its keys; `answers` is how many it may have of each model (None: no limit of its own)."""

    id: str
    client: str
    operator: bool = False
    answers: int | None = None
    made_at: int = 0
    revoked_at: int | None = None
    expires_at: int | None = None
    period: Period | None = None
    """What `answers` is for; None: for good."""
    secret: bytes = field(default=b"", repr=False)
    """What digests of the client's inputs are keyed with: the same for all of its keys."""

    def to_json(self) -> dict[str, Any]:
        """The key as it is listed."""
        shown = {name: value for name, value in vars(self).items() if name != "secret"}
        times = {name: shown[name] for name in ("made_at", "revoked_at", "expires_at")}
        return {**shown, **{name: None if at is None else timestamp(at) for name, at in times.items()}}


class Keys:
    """The API keys in a ledger's database.

    A key is `np_ID_SECRET`, the secret 256 random bits, so that one fast hash with a salt is enough to keep it: there
    is nothing to guess. Secrets are compared in constant time, and an unknown id costs the same work as a known one.
    Keys and rights are in the ledger's chain of grants: one that nobody gave is found by `History.verify`.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        client: str,
        *,
        operator: bool | Keep = KEEP,
        answers: int | Keep | None = KEEP,
        period: Period | None = None,
        model: str | None = None,
        expires_at: float | None = None,
        change_rights: bool = False,
    ) -> str:
        """A new key for a client, who is made if new.

        Args:
            client: Whose key.
            operator: Whether the client may see all clients' budgets; by default as it is, and not for a new one.
            answers: How many answers of each model it may have (None: as many as there are); by default as it is.
            period: What `answers` is for: each day, week or month of the calendar (UTC), or for good.
            model: The one model that `answers` is for, by a name that it is served under.
            expires_at: When the key stops working, in seconds since 1970; None: never.
            change_rights: Whether a client that is there may be given other rights, which then hold for all its keys.

        Returns:
            The key.

        Raises:
            SettingError: If the client is there with other rights and they are not to be changed.
        """
        if not _NAME.fullmatch(client):
            raise SettingError("a client's name has 1 to 100 letters, digits or ._@- and no sign comes first.")
        if isinstance(answers, int) and answers < 0:
            raise SettingError(f"a client's number of answers must be 0 or more, not {answers}.")
        if period is not None and (period not in PERIODS or not isinstance(answers, int)):
            raise SettingError(f"a number of answers may be for each of {', '.join(PERIODS)}; give both.")
        if model is not None and answers is KEEP:
            raise SettingError("name a model together with the number of answers that the client may have of it.")
        now = time.time_ns() // 1000
        expires = None if expires_at is None else int(expires_at * 1e6)
        if expires is not None and expires <= now:
            raise SettingError("a key must expire in the future.")
        with self._database.writing() as connection:
            lock(connection, "open")
            _set_rights(connection, client, operator, answers, period, model, change_rights, now)
            return _make(connection, client, now, expires)

    def rotate(self, id: str, *, grace: float = 0.0, expires_at: float | None = None) -> str:
        """A new key for the client of a key, with the same rights; the old one works for `grace` seconds more.

        Args:
            id: The old key's id.
            grace: Seconds until the old key stops working; 0 revokes it at once.
            expires_at: When the new key stops working, in seconds since 1970; None: never.

        Returns:
            The new key.

        Raises:
            SettingError: If there is no live key of that id.
        """
        now = time.time_ns() // 1000
        with self._database.writing() as connection:
            lock(connection, "open")
            old = _live(connection, id, now)
            ends = now + int(grace * 1e6)
            if old["expires_at"] is not None:
                ends = min(ends, old["expires_at"])
            change = {"revoked_at": now} if grace <= 0 else {"expires_at": ends}
            grants.put(connection, keys, {**old, **change}, *change)
            return _make(connection, old["client"], now, None if expires_at is None else int(expires_at * 1e6))

    def revoke(self, id: str) -> None:
        """Revoke a key by its id; no spend that begins after this returns is made with it."""
        now = time.time_ns() // 1000
        with self._database.writing() as connection:
            lock(connection, "open")
            grants.put(connection, keys, {**_live(connection, id, 0), "revoked_at": now}, "revoked_at")

    def list(self) -> list[Caller]:
        """All keys, oldest first, without their secrets."""
        with self._database.reading() as connection:
            rows = connection.execute(_KEYS.order_by(keys.c.made_at, keys.c.id)).all()
        return [_caller(row) for row in rows]

    def check(self, key: str) -> Caller | None:
        """Whose key it is; None for one that is wrong, unknown, revoked or expired."""
        return self.check_all([key])[0]

    def check_all(self, given: Sequence[str]) -> Sequence[Caller | None]:
        """Whose keys these are, looked up together."""
        parts = [split(key) for key in given]
        with self._database.looking() as connection:
            rows = {row[3]: row for row in _KEPT.run(connection, ids=[id for id, _ in parts])}
        return [_checked(secret, rows.get(id)) for id, secret in parts]


def _set_rights(
    connection: Connection,
    client: str,
    operator: bool | Keep,
    answers: int | Keep | None,
    period: str | None,
    model: str | None,
    change: bool,
    now: int,
) -> None:
    """Give a client its rights; those of one that is there only if they are to be changed."""
    there = connection.execute(select(clients).where(clients.c.client == client)).mappings().one_or_none()
    wanted = dict(there or {"client": client, "operator": 0, "answers": None, "period": None, "made_at": now})
    if operator is not KEEP:
        wanted["operator"] = int(bool(operator))
    if answers is not KEEP and model is None:
        wanted |= {"answers": answers, "period": period}
    same = there is None or dict(there) == wanted
    special = None
    if model is not None:
        account = connection.execute(select(names.c.model).where(names.c.name == model)).scalar_one_or_none()
        if account is None:
            raise SettingError(f"the ledger knows no model {model!r}; `noiseproof ledger show` lists those it knows.")
        special = {"client": client, "model": account, "answers": answers, "period": period}
        place = (allowances.c.client == client) & (allowances.c.model == account)
        before = connection.execute(select(allowances).where(place)).mappings().one_or_none()
        same = same and (there is None or (before is not None and dict(before) == special))
    if not (same or change):
        raise SettingError(
            f"{client} is there already, with other rights, which hold for all of its keys; leave them out for one key "
            "more, or change them with --change-rights."
        )
    grants.put(connection, clients, wanted, "operator", "answers", "period")
    if special is not None:
        grants.put(connection, allowances, special, "answers", "period")


def _make(connection: Connection, client: str, now: int, expires: int | None) -> str:
    id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    salt = secrets.token_hex(_SALT_BYTES)
    kept = {"id": id, "client": client, "salt": salt, "hash": _hash(secret, salt)}
    grants.put(connection, keys, {**kept, "made_at": now, "expires_at": expires})
    return f"{_PREFIX}_{id}_{secret}"


def _live(connection: Connection, id: str, now: int) -> dict[str, Any]:
    row = connection.execute(select(keys).where(keys.c.id == id)).mappings().one_or_none()
    if row is None or row["revoked_at"] is not None or (row["expires_at"] is not None and row["expires_at"] <= now):
        raise SettingError("there is no live key of that id; `noiseproof keys list` shows them.")
    return dict(row)


def _checked(secret: str, row: tuple[Any, ...] | None) -> Caller | None:
    own, salt, expected = _NOBODY if row is None else row[:3]
    # This is worked out for every key, right or wrong.
    same = hmac.compare_digest(_hash(secret, salt), expected)
    if not same or row is None:
        return None
    id, client, operator, answers, made_at, revoked_at, expires_at, period = row[3:]
    if revoked_at is not None or (expires_at is not None and expires_at <= time.time_ns() // 1000):
        return None
    inputs = hmac.digest(bytes.fromhex(own), f"inputs of {client}".encode(), "sha256")
    return Caller(id, client, bool(operator), answers, made_at, revoked_at, expires_at, period, inputs)


def _caller(row: Row[Any]) -> Caller:
    times = row.made_at, row.revoked_at, row.expires_at
    return Caller(row.id, row.client, bool(row.operator), row.answers, *times, row.period)


def split(key: str) -> tuple[str, str]:
    """The id and the secret of a key; what is no key has an id that nobody has."""
    prefix, _, rest = key.partition("_")
    id, _, secret = rest.partition("_")
    return (id, secret) if prefix == _PREFIX else ("", key)


def _hash(secret: str, salt: str) -> str:
    return hashlib.sha256(bytes.fromhex(salt) + secret.encode()).hexdigest()
