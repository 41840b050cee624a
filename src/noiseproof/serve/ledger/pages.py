"""Page: what one transaction reads of one model's account and adds to it, while it holds the model's lock."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, bindparam, insert, select, update

from noiseproof.errors import SettingError
from noiseproof.serve.ledger.amounts import LARGEST, SCALE, Amount
from noiseproof.serve.ledger.entries import Chain, Entry, Kind
from noiseproof.serve.ledger.spends import Balance, Paid, Receipt, Refused, Spend
from noiseproof.serve.ledger.tables import EVERYONE, balances, entries, models

_LOCK = (
    select(models)
    .where(models.c.model.in_(bindparam("names", expanding=True)))
    .order_by(models.c.model)
    .with_for_update()
)
_BALANCES = (
    select(balances).where(balances.c.model.in_(bindparam("names", expanding=True))).order_by(balances.c.coordinate)
)
_SOME_BALANCES = _BALANCES.where(balances.c.client.in_(bindparam("clients", expanding=True)))
_ADVANCE = update(models).where(models.c.model == bindparam("m")).values(sequence=bindparam("s"), head=bindparam("h"))
_ADD = (
    update(balances)
    .where(
        balances.c.model == bindparam("m"), balances.c.client == bindparam("c"), balances.c.coordinate == bindparam("i")
    )
    .values(spent=balances.c.spent + bindparam("more"), capacity=bindparam("limit"))
)


class Page:
    """One model's account within a transaction: balances as they are, and what is to be appended."""

    def __init__(self, chain: Chain, sequence: int, head: str, known: Mapping[str, Balance]) -> None:
        self.chain = chain
        self._sequence, self._head = sequence, head
        self._before = dict(known)
        self._now = dict(known)
        self._rows: list[dict[str, Any]] = []

    @classmethod
    def start(cls, connection: Connection, chain: Chain, capacity: Amount) -> Page:
        """The first page of a new account."""
        if max(capacity.units) > LARGEST:
            raise SettingError(f"a budget above {LARGEST / SCALE:.3g} is no promise, and more than a ledger can count.")
        connection.execute(
            insert(models).values(
                model=chain.model,
                release=chain.release,
                measure=chain.measure,
                orders=json.dumps(chain.orders),
                sequence=0,
                head=chain.origin,
            )
        )
        page = cls(chain, 0, chain.origin, {})
        page._limit(EVERYONE, capacity)
        return page

    @classmethod
    def lock(cls, connection: Connection, names: Collection[str], clients: Collection[str]) -> dict[str, Page]:
        """The pages of some models with the balances of some clients; nobody else changes them until the commit.

        (On SQLite a writing transaction holds the only lock already, and there is no FOR UPDATE. On PostgreSQL rows are
        locked in one order, so that two transactions never wait for each other.)
        """
        rows = connection.execute(_LOCK, {"names": list(names)}).all()
        found = balances_of(connection, [read_chain(row) for row in rows], [EVERYONE, *clients])
        pages = {row.model: cls(read_chain(row), row.sequence, row.head, found[row.model]) for row in rows}
        for name in names:
            if name not in pages:
                raise SettingError(f"the ledger has no account {name!r}.")
        return pages

    @property
    def everyone(self) -> Balance:
        """The model's balance, with what this page adds."""
        return self._now[EVERYONE]

    def balance(self, client: str, limit: Amount | None) -> Balance:
        """A client's balance under a limit (at most the model's), with what this page adds.

        A limit below what was spent leaves nothing, and takes nothing back.
        """
        most = self.everyone.capacity
        spent = self._now[client].spent if client in self._now else most.nothing
        return Balance(most if limit is None else limit.capped(most).at_least(spent), spent)

    def spend(self, spend: Spend) -> Paid | Refused:
        """Note a spend if both budgets cover it."""
        everyone, own = self.everyone, self.balance(spend.client, spend.limit)
        if not spend.cost.fits(everyone.left):
            return Refused("model", everyone, own)
        if not spend.cost.fits(own.left):
            return Refused("client", everyone, own)
        if spend.client not in self._now or self._now[spend.client].capacity != own.capacity:
            self._limit(spend.client, own.capacity)
        self._now[EVERYONE] = everyone = Balance(everyone.capacity, everyone.spent + spend.cost)
        self._now[spend.client] = own = Balance(own.capacity, own.spent + spend.cost)
        entry = self._append("spend", spend.client, spend.answers, spend.cost)
        return Paid(Receipt(entry, spend.cost, self._head), everyone, own)

    def write(self, connection: Connection) -> None:
        """Write what was added; the transaction's commit makes it true."""
        if not self._rows:
            return
        connection.execute(insert(entries), self._rows)
        connection.execute(_ADVANCE, {"m": self.chain.model, "s": self._sequence, "h": self._head})
        new, changed = [], []
        for client, now in self._now.items():
            before = self._before.get(client)
            if before == now:
                continue
            for i, (capacity, spent) in enumerate(zip(now.capacity.units, now.spent.units, strict=True)):
                if before is None:
                    row = {"model": self.chain.model, "client": client, "coordinate": i}
                    new.append({**row, "capacity": capacity, "spent": spent})
                else:
                    row = {"m": self.chain.model, "c": client, "i": i}
                    changed.append({**row, "more": spent - before.spent.units[i], "limit": capacity})
        if new:
            connection.execute(insert(balances), new)
        if changed:
            connection.execute(_ADD, changed)

    def _limit(self, client: str, capacity: Amount) -> None:
        spent = self._now[client].spent if client in self._now else capacity.nothing
        self._now[client] = Balance(capacity, spent)
        self._append("limit", client, 0, capacity)

    def _append(self, kind: Kind, client: str, answers: int, amount: Amount) -> Entry:
        self._sequence += 1
        now = time.time_ns() // 1000
        entry = Entry(self.chain.model, self._sequence, uuid.uuid4().hex, kind, client, answers, amount.units, now)
        self._head = entry.hash_after(self._head)
        self._rows.append(entry.row(self._head))
        return entry


def read_chain(row: Row[Any]) -> Chain:
    """Whose history a row of `models` begins."""
    return Chain(row.model, row.release, row.measure, tuple(json.loads(row.orders)))


def balances_of(
    connection: Connection, chains: Collection[Chain], clients: Collection[str] | None = None
) -> dict[str, dict[str, Balance]]:
    """Balances by model and client; of all clients, or of some."""
    names = [chain.model for chain in chains]
    if clients is None:
        stored = connection.execute(_BALANCES, {"names": names})
    else:
        stored = connection.execute(_SOME_BALANCES, {"names": names, "clients": list(clients)})
    rows: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in stored:
        rows.setdefault((row.model, row.client), []).append((row.capacity, row.spent))
    found: dict[str, dict[str, Balance]] = {chain.model: {} for chain in chains}
    for chain in chains:
        for (model, client), pairs in rows.items():
            if model == chain.model:
                capacity, spent = zip(*pairs, strict=True)
                found[model][client] = Balance(chain.amount(capacity), chain.amount(spent))
    return found
