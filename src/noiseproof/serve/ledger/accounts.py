"""Accounts: what one transaction reads of a model's account and adds to it, while it holds the model's lock."""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, func, insert, or_, select, update

from noiseproof.errors import SettingError
from noiseproof.serve.ledger import answers, grants
from noiseproof.serve.ledger.amounts import LARGEST, SCALE, Amount
from noiseproof.serve.ledger.grants import Right
from noiseproof.serve.ledger.records import (
    Balance,
    Chain,
    Entry,
    Kind,
    Paid,
    Period,
    Receipt,
    Refused,
    Spend,
    period_start,
)
from noiseproof.serve.ledger.tables import (
    EVERYONE,
    SPANS,
    allowances,
    balances,
    clients,
    entries,
    keys,
    models,
    spending,
    upsert,
)

_READ = select(models).where(models.c.model.in_(bindparam("names", expanding=True))).order_by(models.c.model)
_LOCK = _READ.with_for_update()
_BALANCES = (
    select(balances).where(balances.c.model.in_(bindparam("names", expanding=True))).order_by(balances.c.coordinate)
)
_SOME_BALANCES = _BALANCES.where(balances.c.client.in_(bindparam("clients", expanding=True)))
_ADVANCE = update(models).where(models.c.model == bindparam("m")).values(sequence=bindparam("s"), head=bindparam("h"))
_SET_BALANCES = {name: upsert(name, balances, "capacity", "spent") for name in ("sqlite", "postgresql")}
_ADD_SPENDING = {name: upsert(name, spending, "answers", add=True) for name in ("sqlite", "postgresql")}
_RIGHTS = (
    select(
        clients,
        keys.c.id.label("key"),
        allowances.c.model,
        *(allowances.c[name].label(f"own_{name}") for name in ("answers", "period")),
    )
    .select_from(
        clients.outerjoin(
            allowances,
            and_(allowances.c.client == clients.c.client, allowances.c.model.in_(bindparam("names", expanding=True))),
        ).outerjoin(
            keys,
            and_(
                keys.c.client == clients.c.client,
                keys.c.id.in_(bindparam("keys", expanding=True)),
                keys.c.revoked_at.is_(None),
                or_(keys.c.expires_at.is_(None), keys.c.expires_at > bindparam("now")),
            ),
        )
    )
    .where(clients.c.client.in_(bindparam("clients", expanding=True)))
)
_USED = select(func.sum(spending.c.answers)).where(
    spending.c.model == bindparam("m"),
    spending.c.client == bindparam("c"),
    spending.c.span == "hour",
    spending.c.start >= bindparam("since"),
)


class AccountTransaction:
    """What one transaction reads of one model's account and adds to it, while it holds the model's lock."""

    def __init__(self, chain: Chain, sequence: int, head: str, known: Mapping[str, Balance]) -> None:
        self.chain = chain
        self.sequence, self.head = sequence, head
        self._before = dict(known)
        self._now = dict(known)
        self._rows: list[dict[str, Any]] = []
        self._spending: Counter[tuple[str, str, int]] = Counter()

    @classmethod
    def start(cls, connection: Connection, chain: Chain, capacity: Amount) -> AccountTransaction:
        """A new account."""
        if max(capacity.units) > LARGEST:
            raise SettingError(f"a budget above {LARGEST / SCALE:.3g} is no promise, and more than a ledger can count.")
        row = {**vars(chain), "orders": json.dumps(chain.orders), "sequence": 0, "head": chain.origin}
        grants.put(connection, models, row)
        account = cls(chain, 0, chain.origin, {})
        account._limit(EVERYONE, capacity)
        return account

    @classmethod
    def lock(
        cls, connection: Connection, names: Collection[str], clients: Collection[str]
    ) -> dict[str, AccountTransaction]:
        """Some models with the balances of some clients; nobody else changes them until the commit.

        (On SQLite a writing transaction holds the only lock already, and there is no FOR UPDATE. On PostgreSQL rows are
        locked in one order, so that two transactions never wait for each other.)
        """
        return cls.read(connection, names, clients, _LOCK)

    @classmethod
    def read(
        cls, connection: Connection, names: Collection[str], clients: Collection[str] = (), query: Select[Any] = _READ
    ) -> dict[str, AccountTransaction]:
        """Some models with the balances of some clients, as they are now."""
        rows = {row.model: row for row in connection.execute(query, {"names": list(names)})}
        for name in names:
            if name not in rows:
                raise SettingError(f"the ledger has no account {name!r}.")
        chains = [Chain.from_row(row) for row in rows.values()]
        found = balances_of(connection, chains, [EVERYONE, *clients])
        return {
            chain.model: cls(chain, rows[chain.model].sequence, rows[chain.model].head, found[chain.model])
            for chain in chains
        }

    @property
    def everyone(self) -> Balance:
        """The model's balance, with what this transaction adds."""
        return self._now[EVERYONE]

    def balance(self, client: str, limit: Amount | None) -> Balance:
        """A client's balance under a limit (at most the model's), with what this transaction adds.

        A limit below what was spent leaves nothing, and takes nothing back.
        """
        return under(limit, self.everyone, self._now.get(client))

    def spend(
        self, spend: Spend, live: Collection[str], earlier: answers.PaidBefore | None, share: Share | None
    ) -> Paid | Refused:
        """Note a spend if its key is among the live ones and both budgets cover it, unless it was paid for earlier."""
        limit = spend.limit
        if share is not None:
            spent = self._now[spend.client].spent if spend.client in self._now else spend.cost * 0
            limit = share.limit(_each(spend), spent)
        everyone, own = self.everyone, self.balance(spend.client, limit)
        if spend.key is not None and spend.key not in live:
            return Refused("revoked", everyone, own)
        if spend.retry is not None and earlier is not None:
            digest, receipt, answer = earlier
            if digest != spend.retry.digest:
                return Refused("retry", everyone, own)
            return Paid(receipt, everyone, own, repeated=True, answer=answer)
        if not spend.cost.fits(everyone.left):
            return Refused("model", everyone, own)
        if not spend.cost.fits(own.left):
            return Refused("client", everyone, own, None if share is None else share.period)
        if spend.client not in self._now or self._now[spend.client].capacity != own.capacity:
            self._limit(spend.client, own.capacity)
        self._now[EVERYONE] = everyone = Balance(everyone.capacity, everyone.spent + spend.cost)
        self._now[spend.client] = own = Balance(own.capacity, own.spent + spend.cost)
        entry = self._append("spend", spend.client, spend.answers, spend.cost)
        for span, width in SPANS.items():
            for client in (EVERYONE, spend.client):
                self._spending[client, span, entry.made_at - entry.made_at % width] += spend.answers
        if share is not None:
            share.used += spend.answers
        return Paid(Receipt(entry, spend.cost, self.head), everyone, own)

    def charge(self, client: str, amount: Amount) -> None:
        """Count an amount as spent by a client, without an answer."""
        spent = (self._now[client].spent if client in self._now else amount * 0) + amount
        self._limit(client, spent.capped(self.everyone.capacity))
        self._now[EVERYONE] = Balance(self.everyone.capacity, self.everyone.spent + amount)
        self._now[client] = Balance(self._now[client].capacity, spent)
        self._append("spend", client, 0, amount)

    def lower(self, capacity: Amount) -> None:
        """Lower the model's capacity, if it is above this one, as far as was not spent."""
        most = capacity.capped(self.everyone.capacity).at_least(self.everyone.spent)
        if most != self.everyone.capacity:
            self._limit(EVERYONE, most)

    def write(self, connection: Connection) -> None:
        """Write what was added; the transaction's commit makes it true."""
        if not self._rows:
            return
        model, dialect = self.chain.model, connection.dialect.name
        connection.execute(insert(entries), self._rows)
        connection.execute(_ADVANCE, {"m": model, "s": self.sequence, "h": self.head})
        rows = [
            {"model": model, "client": client, "coordinate": i, "capacity": capacity, "spent": spent}
            for client, now in self._now.items()
            if now != self._before.get(client)
            for i, (capacity, spent) in enumerate(zip(now.capacity.units, now.spent.units, strict=True))
        ]
        connection.execute(_SET_BALANCES[dialect], rows)
        if self._spending:
            names = ("client", "span", "start", "answers")
            sums = [
                {"model": model, **dict(zip(names, (*place, answers), strict=True))}
                for place, answers in self._spending.items()
            ]
            connection.execute(_ADD_SPENDING[dialect], sums)

    def _limit(self, client: str, capacity: Amount) -> None:
        spent = self._now[client].spent if client in self._now else capacity * 0
        self._now[client] = Balance(capacity, spent)
        self._append("limit", client, 0, capacity)

    def _append(self, kind: Kind, client: str, answers: int, amount: Amount) -> Entry:
        self.sequence += 1
        now = time.time_ns() // 1000
        # Ids that begin with the time lie side by side in their index, however long the history is.
        receipt = f"{now:014x}{secrets.token_hex(9)}"
        entry = Entry(self.chain.model, self.sequence, receipt, kind, client, answers, amount.units, now)
        self.head = entry.hash_after(self.head)
        self._rows.append(entry.row(self.head))
        return entry


class Share:
    """A client's right to answers of a model, and how many of them it has had in this period."""

    def __init__(self, right: Right, used: int = 0) -> None:
        assert right.answers is not None
        self.answers, self.used = right.answers, used
        self.period: Period | None = right.period  # type: ignore[assignment]

    def limit(self, each: Amount, spent: Amount) -> Amount:
        """What the client may have spent in the end, if an answer costs `each`."""
        if self.period is None:
            return each * self.answers
        return spent + each * max(0, self.answers - self.used)


def shares(
    connection: Connection, places: Collection[tuple[str, str]], keys: Collection[str] = ()
) -> tuple[dict[tuple[str, str], Share], set[str]]:
    """The shares of clients that have a right of their own, by model and client; and which of some keys of theirs are live."""
    now = time.time_ns() // 1000
    asked = {"names": list({model for model, _ in places}), "clients": list({client for _, client in places})}
    general, special, live = {}, {}, set()
    for row in connection.execute(_RIGHTS, {**asked, "keys": list(keys), "now": now}):
        general[row.client] = Right(row.answers, row.period)
        if row.model is not None:
            special[row.model, row.client] = Right(row.own_answers, row.own_period)
        if row.key is not None:
            live.add(row.key)
    found = {}
    for place in set(places):
        right = special.get(place, general.get(place[1]))
        if right is None or right.answers is None:
            continue
        used = 0
        if right.period is not None:
            since = period_start(right.period, now)
            used = connection.execute(_USED, {"m": place[0], "c": place[1], "since": since}).scalar_one() or 0
        found[place] = Share(right, int(used))
    return found, live


def under(limit: Amount | None, everyone: Balance, own: Balance | None) -> Balance:
    """A client's balance under a limit, which is at most the model's and at least what was spent."""
    most = everyone.capacity
    spent = most * 0 if own is None else own.spent
    return Balance(most if limit is None else limit.capped(most).at_least(spent), spent)


def balances_of(
    connection: Connection, chains: Collection[Chain], clients: Collection[str] | None = None
) -> dict[str, dict[str, Balance]]:
    """Balances by model and client; of all clients, or of some."""
    names = [chain.model for chain in chains]
    if clients is None:
        stored = connection.execute(_BALANCES, {"names": names})
    else:
        stored = connection.execute(_SOME_BALANCES, {"names": names, "clients": list(clients)})
    units: dict[str, dict[str, list[tuple[int, int]]]] = {name: {} for name in names}
    for row in stored:
        units[row.model].setdefault(row.client, []).append((row.capacity, row.spent))
    return {
        chain.model: {
            client: Balance(*map(chain.amount, zip(*pairs, strict=True)))
            for client, pairs in units[chain.model].items()
        }
        for chain in chains
    }


def _each(spend: Spend) -> Amount:
    """What one answer of a spend costs, rounded up."""
    units = tuple(-(-units // max(1, spend.answers)) for units in spend.cost.units)
    return Amount(spend.cost.measure, units, spend.cost.orders)
