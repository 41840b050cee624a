"""Accounts: what one transaction reads of a model's account and adds to it, while it holds the model's lock."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection

from noiseproof.errors import SettingError
from noiseproof.serve.ledger import answers, grants, spending
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
from noiseproof.serve.ledger.statements import Insertion, Rows, Statement, Together
from noiseproof.serve.ledger.tables import EVERYONE, balances, entries, models
from noiseproof.serve.ledger.tails import Tail, tail_of

_READ = Statement(
    "SELECT model, release, measure, orders, sequence, head, folded FROM models WHERE model = ANY(:names) ORDER BY model"
)
_LOCK = Statement(
    "SELECT model, release, measure, orders, sequence, head, folded FROM models WHERE model = ANY(:names) ORDER BY model "
    "FOR UPDATE"
)
_BALANCES = Statement(
    "SELECT model, client, capacity, spent FROM balances WHERE model = ANY(:names) ORDER BY coordinate"
)
_SOME_BALANCES = Statement(
    "SELECT model, client, capacity, spent FROM balances WHERE model = ANY(:names) AND client = ANY(:clients) "
    "ORDER BY coordinate"
)
_BALANCES_AND_GRANTS = Statement(
    f"SELECT model, client, capacity, spent, {grants.MARK} FROM balances "
    "WHERE model = ANY(:names) AND client = ANY(:clients) ORDER BY coordinate"
)
_LARGEST = Statement(
    f"SELECT client FROM balances WHERE model = :model AND coordinate = 0 AND client <> '{EVERYONE}' "
    "ORDER BY spent DESC, client LIMIT :most"
)
_CLIENTS = Statement(
    f"SELECT COUNT(*) FROM balances WHERE model = :model AND coordinate = 0 AND client <> '{EVERYONE}'"
)
_WRITE = Together(
    Statement("UPDATE models SET sequence = :sequence, head = :head WHERE model = :model"),
    Insertion(entries),
    Insertion(balances, "capacity", "spent"),
)
_RIGHTS = Statement(
    "SELECT c.client, c.answers, c.period, a.model, a.answers, a.period FROM clients c LEFT JOIN allowances a "
    "ON a.client = c.client WHERE c.client = ANY(:clients) AND (c.answers IS NOT NULL OR a.model IS NOT NULL)"
)
_LIVE = Statement("SELECT id, client, expires_at FROM keys WHERE id = ANY(:keys) AND revoked_at IS NULL")
_KNOWN_SECONDS = 60.0
"""Seconds for which rights are remembered at most."""
_MOST_KNOWN = 1 << 18
_COMMITTED = Statement("SELECT receipt FROM entries WHERE receipt = ANY(:receipts)")


class AccountTransaction:
    """What one transaction reads of one model's account and adds to it, while it holds the model's lock."""

    def __init__(
        self, chain: Chain, sequence: int, head: str, known: Mapping[str, Balance], granted: str | None = None
    ) -> None:
        self.chain = chain
        self.sequence, self.head = sequence, head
        self.granted = granted
        """What told the state of keys and rights from every other after the lock was taken."""
        self.added: list[Entry] = []
        """What this transaction adds to the history."""
        self._now = dict(known)
        self._rows: list[dict[str, Any]] = []

    @classmethod
    def start(cls, connection: Connection, chain: Chain, capacity: Amount) -> AccountTransaction:
        """A new account."""
        if max(capacity.units) > LARGEST:
            raise SettingError(f"a budget above {LARGEST / SCALE:.3g} is no promise, and more than a ledger can count.")
        row = {**asdict(chain), "orders": json.dumps(chain.orders), "sequence": 0, "head": chain.origin, "folded": 0}
        grants.put(connection, models, row)
        account = cls(chain, 0, chain.origin, {})
        account._limit(EVERYONE, capacity)
        return account

    @classmethod
    def lock(
        cls,
        connection: Connection,
        names: Collection[str],
        clients: Collection[str],
        tails: Mapping[str, Tail] | None = None,
    ) -> Callable[[], dict[str, AccountTransaction]]:
        """Ask for some models with the balances of some clients; nobody else changes them until the commit.

        `tails`, by model, are what this process knows of accounts already.

        (On SQLite a writing transaction holds the only lock already, and there is no FOR UPDATE. On PostgreSQL rows are
        locked in one order, so that two transactions never wait for each other.)
        """
        return cls.read(connection, names, clients, tails, _LOCK)

    @classmethod
    def read(
        cls,
        connection: Connection,
        names: Collection[str],
        clients: Collection[str] = (),
        tails: Mapping[str, Tail] | None = None,
        statement: Statement = _READ,
    ) -> Callable[[], dict[str, AccountTransaction]]:
        """Ask for some models with the balances of some clients, as they are now; what is returned reads them."""
        cursor = statement.run(connection, names=list(names))
        kept = {name: Tail() for name in names} if tails is None else tails
        new = set().union(*(kept[name].unknown(clients) for name in names))
        stored = _BALANCES_AND_GRANTS.run(connection, names=list(names), clients=[EVERYONE, *new])
        asked = {name: kept[name].ask(connection, name) for name in names if clients}

        def read() -> dict[str, AccountTransaction]:
            rows = {row[0]: row for row in cursor}
            for name in names:
                if name not in rows:
                    raise SettingError(f"the ledger has no account {name!r}.")
            chains = {name: Chain.of(*row[:4]) for name, row in rows.items()}
            balances = stored.fetchall()
            granted = balances[0][4] if balances else None
            up_to_date = {name: since(chains[name], rows[name][6]) for name, since in asked.items()}
            # What was known may have been forgotten just now.
            late = set().union(*(tail.unknown(clients) for tail in up_to_date.values())) - new
            more = _SOME_BALANCES.run(connection, names=list(names), clients=list(late)) if late else ()
            found = _balances(chains, (*(row[:4] for row in balances), *more))
            for name, tail in up_to_date.items():
                known = found[name]
                known.update(
                    (one, now)
                    for one in clients
                    if (now := tail.balance(chains[name], one, known.get(one))) is not None
                )
            return {
                name: cls(chain, rows[name][4], rows[name][5], found[name], granted) for name, chain in chains.items()
            }

        return read

    @property
    def balances(self) -> Mapping[str, Balance]:
        """Balances by client, as far as they were asked for, with what this transaction adds."""
        return self._now

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
        self,
        spend: Spend,
        live: Mapping[str, str],
        earlier: answers.PaidBefore | None,
        share: Share | None,
        committed: Collection[str] = (),
    ) -> Paid | Refused:
        """Note a spend if its key is its client's and live and both budgets cover it, unless it was paid for earlier."""
        limit = spend.limit
        if share is not None:
            spent = self._now[spend.client].spent if spend.client in self._now else spend.cost * 0
            limit = share.limit(_each(spend), spent)
        everyone, own = self.everyone, self.balance(spend.client, limit)
        if spend.tried is not None and spend.tried.id in committed:
            return Paid(spend.tried, everyone, own)
        if spend.key is not None and live.get(spend.key) != spend.client:
            return Refused("revoked", everyone, own)
        if spend.retry is not None and earlier is not None:
            if not earlier.covers(spend):
                return Refused("retry", everyone, own)
            return Paid(earlier.receipt, everyone, own, repeated=True, answer=earlier.answer)
        together, alone = everyone.spent + spend.cost, own.spent + spend.cost
        if not together.fits(everyone.capacity):
            return Refused("model", everyone, own)
        if not alone.fits(own.capacity):
            return Refused("client", everyone, own, None if share is None else share.period)
        if spend.client not in self._now or self._now[spend.client].capacity != own.capacity:
            self._limit(spend.client, own.capacity)
        self._now[EVERYONE] = everyone = Balance(everyone.capacity, together)
        self._now[spend.client] = own = Balance(own.capacity, alone)
        entry = self._append("spend", spend.client, spend.answers, spend.cost, spend.seal)
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
        """Write what was added; the transaction's commit makes it true.

        Of balances everyone's alone is written: those of clients are added up later.
        """
        if not self._rows:
            return
        model, now = self.chain.model, self.everyone
        rows = [
            {"model": model, "client": EVERYONE, "coordinate": i, "capacity": capacity, "spent": spent}
            for i, (capacity, spent) in enumerate(zip(now.capacity.units, now.spent.units, strict=True))
        ]
        _WRITE.run(connection, {"model": model, "sequence": self.sequence, "head": self.head}, self._rows, rows)

    def _limit(self, client: str, capacity: Amount) -> None:
        spent = self._now[client].spent if client in self._now else capacity * 0
        self._now[client] = Balance(capacity, spent)
        self._append("limit", client, 0, capacity)

    def _append(self, kind: Kind, client: str, answers: int, amount: Amount, seal: str | None = None) -> Entry:
        self.sequence += 1
        now = time.time_ns() // 1000
        # Ids that begin with the time lie side by side in their index, however long the history is.
        receipt = f"{now:014x}{seal or os.urandom(9).hex()}"
        entry = Entry(self.chain.model, self.sequence, receipt, kind, client, answers, amount.units, now)
        self.head = entry.hash_after(self.head)
        self._rows.append(entry.row(self.head))
        self.added.append(entry)
        return entry


def committed(connection: Connection, spends: Iterable[Spend]) -> Callable[[], set[str]]:
    """Ask for receipts of spends that were tried before and are in the history, while holding the models' locks."""
    tried = [spend.tried.id for spend in spends if spend.tried is not None]
    cursor = _COMMITTED.run(connection, receipts=tried) if tried else ()
    return lambda: {receipt for (receipt,) in cursor}


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


class Rights:
    """What clients and keys may, as far as it was asked for: good until a key or a right is changed, by whomever.

    The database itself counts changes. Should somebody take its counter away, which verifying finds, they are seen in a minute.
    """

    def __init__(self, mark: str | None = None) -> None:
        self._mark, self._since = mark, time.monotonic()
        self._rights: dict[str, dict[str | None, Right]] = {}
        """By client: of one model, or (None) of all."""
        self._keys: dict[str, tuple[str, int | None]] = {}
        """By id, those that nobody revoked: whose, and when it expires."""

    def ask(
        self, connection: Connection, clients: Collection[str], keys: Collection[str] = ()
    ) -> Callable[[str | None], Rights]:
        """Ask for what is not known; what is returned reads it, and is given the state's mark, which was read before."""
        new = [client for client in clients if client not in self._rights]
        new_keys = [key for key in keys if key not in self._keys]
        rights = _RIGHTS.run(connection, clients=new) if new else ()
        live = _LIVE.run(connection, keys=new_keys) if new_keys else ()

        def read(mark: str | None) -> Rights:
            old = time.monotonic() - self._since > _KNOWN_SECONDS or len(self._keys) > _MOST_KNOWN
            if mark != self._mark or (old and self._rights):
                return Rights(mark).ask(connection, clients, keys)(mark)
            # All is read before any of it counts as known: a connection may break, and other threads may look.
            found: dict[str, dict[str | None, Right]] = {client: {} for client in new}
            for client, of_each, period, model, of_this, own_period in rights:
                found[client][None] = Right(of_each, period)
                if model is not None:
                    found[client][model] = Right(of_this, own_period)
            self._keys.update([(id, (client, expires)) for id, client, expires in live])
            self._rights.update(found)
            return self

        return read

    def shares(self, connection: Connection, places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Share]:
        """The shares of clients that have a right of their own, by model and client."""
        found = {}
        for place in set(places):
            model, client = place
            rights = self._rights[client]
            right = rights.get(model, rights.get(None))
            if right is None or right.answers is None:
                continue
            used = 0
            if right.period is not None:
                start = period_start(right.period, time.time_ns() // 1000)
                used = spending.answers_since(connection, *place, start)
            found[place] = Share(right, used)
        return found

    def live(self, keys: Iterable[str]) -> dict[str, str]:
        """Whose keys these are, of those that are neither revoked nor expired."""
        now = time.time_ns() // 1000
        found = ((key, *self._keys[key]) for key in keys if key in self._keys)
        return {key: client for key, client, expires in found if expires is None or expires > now}


def under(limit: Amount | None, everyone: Balance, own: Balance | None) -> Balance:
    """A client's balance under a limit, which is at most the model's and at least what was spent."""
    most = everyone.capacity
    spent = most * 0 if own is None else own.spent
    return Balance(most if limit is None else limit.capped(most).at_least(spent), spent)


def balances_of(
    connection: Connection, chains: Collection[Chain], clients: Collection[str] | None = None
) -> dict[str, dict[str, Balance]]:
    """Balances by model and client; of all clients, or of some."""
    named = {chain.model: chain for chain in chains}
    if clients is None:
        found = _balances(named, _BALANCES.run(connection, names=list(named)))
    else:
        found = _balances(named, _SOME_BALANCES.run(connection, names=list(named), clients=list(clients)))
    if clients is not None and not set(clients) - {EVERYONE}:
        return found  # which is always up to date
    for chain in chains:
        tail, known = tail_of(connection, chain, clients), found[chain.model]
        known.update(
            (one, now) for one in tail.clients if (now := tail.balance(chain, one, known.get(one))) is not None
        )
    return found


def largest_of(connection: Connection, chain: Chain, most: int | None) -> dict[str, Balance]:
    """The balance of everyone together, then those of clients: of all, or of the `most` that spent most."""
    if most is None:
        return balances_of(connection, [chain])[chain.model]
    stored = _LARGEST.run(connection, model=chain.model, most=most).fetchall()
    # Whoever spent most is among those who had, and those who have spent since that was added up.
    some = {*(client for (client,) in stored), *tail_of(connection, chain).clients}
    found = balances_of(connection, [chain], [EVERYONE, *some])[chain.model]
    ordered = sorted(some & found.keys(), key=lambda client: (-found[client].spent.units[0], client))
    return {client: found[client] for client in (EVERYONE, *ordered[:most])}


def count_clients(connection: Connection, chain: Chain) -> int:
    """How many clients have asked."""
    ((stored,),) = _CLIENTS.run(connection, model=chain.model)
    new = set(tail_of(connection, chain).clients)
    known = {client for _, client, *_ in _SOME_BALANCES.run(connection, names=[chain.model], clients=list(new))}
    return int(stored) + len(new - known)


def _balances(chains: Mapping[str, Chain], stored: Rows) -> dict[str, dict[str, Balance]]:
    units: dict[str, dict[str, list[tuple[int, int]]]] = {name: {} for name in chains}
    for model, client, capacity, spent in stored:
        units[model].setdefault(client, []).append((capacity, spent))
    return {
        model: {client: Balance(*map(chain.known, zip(*pairs, strict=True))) for client, pairs in units[model].items()}
        for model, chain in chains.items()
    }


def _each(spend: Spend) -> Amount:
    """What one answer of a spend costs, rounded up."""
    units = tuple(-(-units // max(1, spend.answers)) for units in spend.cost.units)
    return Amount(spend.cost.measure, units, spend.cost.orders)
