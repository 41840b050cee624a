"""Ledger: who spent what of which model's budget. Spend first, then release; what does not fit is refused."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from noiseproof.errors import BudgetError, LedgerError, SettingError
from noiseproof.serve.ledger import answers
from noiseproof.serve.ledger.amounts import LARGEST, SCALE, Amount
from noiseproof.serve.ledger.database import (
    EVERYONE,
    Database,
    balances,
    data_sets,
    draw_units,
    draws,
    entries,
    keys,
    lock,
    models,
    names,
    properties,
    upsert,
)
from noiseproof.serve.ledger.records import (
    Balance,
    Chain,
    DataSetBalance,
    Entry,
    Kind,
    Paid,
    Promise,
    Receipt,
    Refused,
    Spend,
)

_LIVE_KEYS = select(keys.c.id).where(keys.c.id.in_(bindparam("ids", expanding=True)), keys.c.revoked_at.is_(None))
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
_SET_BALANCES = {name: upsert(name, balances, "capacity", "spent") for name in ("sqlite", "postgresql")}


class Ledger:
    """Accounts of models, and of clients under them, in a database that many processes may share.

    Formal guarantee
    ----------------
    The sum of all spends of a model never exceeds its capacity, and a client's never exceeds that client's, whatever is
    asked at once, by whomever, and whatever crashes: a spend is checked and written in one transaction that holds the
    model's lock, and the database itself refuses a balance above its capacity. `spend` returns after the commit, so
    that what is released after it has been paid for. What follows for privacy is said at `Amount`. Assumptions: the
    database keeps what it has committed; nobody answers from the same release by another ledger, or by none.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    @property
    def id(self) -> str:
        """What tells this ledger apart from every other; no secret."""
        with self.database.reading() as connection:
            return _property(connection, "id")

    def open(self, name: str, *, release: str, capacity: Amount, weights: str = "") -> str:
        """Make sure that a release has an account, and that it is called `name`.

        A release has one account, whatever names it is served under. An account that is there keeps what was spent,
        and its capacity unless this one is smaller.

        Args:
            name: What the release is served under.
            release: A fingerprint of the release, with its noise and its number of queries. It may tell private
                records apart, so only a keyed digest of it is kept; the key stays in the ledger.
            capacity: What all answers together may cost.
            weights: The fingerprint by which version 0.1 knew the release.

        Returns:
            The name of the account to spend from.

        Raises:
            LedgerError: If the name belongs to another release, or the release was counted in another measure.
            SettingError: If the capacity is more than a ledger can count.
        """
        with self.database.writing() as connection:
            lock(connection, "open")
            keyed = _keyed(connection, release)
            row = connection.execute(select(models).where(models.c.release.in_([keyed, weights]))).first()
            known = connection.execute(select(names.c.model).where(names.c.name == name)).scalar_one_or_none()
            if known is not None and (row is None or row.model != known):
                raise LedgerError(f"the ledger knows {name!r} as another release; serve this one under another name.")
            if row is None:
                account = AccountTransaction.start(connection, Chain(name, keyed, *capacity.kind), capacity)
            else:
                account = AccountTransaction.lock(connection, [row.model], [])[row.model]
                if account.everyone.capacity.kind != capacity.kind:
                    raise LedgerError(
                        f"the ledger's account {row.model!r} counts in another measure; serve it with the version of "
                        "noiseproof that opened it."
                    )
                account.lower(capacity)
            account.write(connection)
            if known is None:
                connection.execute(insert(names).values(name=name, model=account.chain.model))
            return account.chain.model

    def draw(self, data_set: str, *, release: str, promise: Promise) -> DataSetBalance:
        """Count a release's whole promise against the data set that it was made from; once, however often it is served.

        Formal guarantee
        ----------------
        All releases that were drawn on a data set are together (epsilon, delta)-differentially private for the sums
        that `DataSetBalance` states, for its unit (promises for a record and for a person do not add up), by basic
        composition, also if each was chosen after seeing the others (Rogers et al. 2016); with a limit these never
        exceed it. Promises for exchanged records and for added ones are stated for exchanged ones together, an
        (epsilon, delta) of the latter as (2 epsilon, (1 + exp(epsilon)) delta).

        Args:
            data_set: The data set's name.
            release: A fingerprint of the release, as for `open`.
            promise: What the release promises for the records.

        Returns:
            What the data set's releases promise together.

        Raises:
            BudgetError: If the data set's limit does not cover it; nothing is counted then.
        """
        with self.database.writing() as connection:
            lock(connection, "open")
            keyed = _keyed(connection, release)
            row = {"release": keyed, "data_set": data_set, **vars(promise)}
            unit = {"release": keyed, "unit": row.pop("unit")}
            connection.execute(upsert(self.database.dialect, draws, "data_set"), row)
            connection.execute(upsert(self.database.dialect, draw_units, "unit"), unit)
            balance = _data_set(connection, data_set)
            if balance.overdrawn:
                raise BudgetError(f"{balance.sentence()} This release is one too many; nothing of it is served.")
            return balance

    def limit_data_set(self, data_set: str, epsilon: float, delta: float) -> DataSetBalance:
        """Set what all releases of a data set may promise together; what was promised before must be within it."""
        if not (math.isfinite(epsilon) and epsilon >= 0 and 0 <= delta < 1):
            raise SettingError(
                "a data set's budget is a finite epsilon, 0 or more, and a delta of at least 0 and below 1."
            )
        with self.database.writing() as connection:
            lock(connection, "open")
            row = {"data_set": data_set, "epsilon": epsilon, "delta": delta}
            connection.execute(upsert(self.database.dialect, data_sets, "epsilon", "delta"), row)
            balance = _data_set(connection, data_set)
            if balance.overdrawn:
                raise BudgetError(f"{balance.sentence()} What was promised cannot be taken back, and no limit was set.")
            return balance

    def data_set(self, name: str) -> DataSetBalance:
        """What the releases of a data set promise together."""
        with self.database.reading() as connection:
            return _data_set(connection, name)

    def data_sets(self) -> list[DataSetBalance]:
        """What the releases of every data set promise together."""
        with self.database.reading() as connection:
            found = {*connection.execute(select(draws.c.data_set)).scalars()}
            found |= {*connection.execute(select(data_sets.c.data_set)).scalars()}
            return [_data_set(connection, name) for name in sorted(found)]

    def spend(self, spend: Spend) -> Receipt:
        """Pay for one request.

        Returns:
            The receipt of the committed spend.

        Raises:
            BudgetError: If it does not fit; nothing is spent then.
        """
        outcome = self.spend_together([spend])[0]
        if isinstance(outcome, Refused):
            raise BudgetError(outcome.sentence(spend))
        return outcome.receipt

    def spend_together(self, spends: Sequence[Spend]) -> list[Paid | Refused]:
        """Pay for several requests in one transaction; each is granted or refused on its own, in their order."""
        with self.database.writing() as connection:
            accounts = AccountTransaction.lock(
                connection, {spend.model for spend in spends}, {spend.client for spend in spends}
            )
            ids = {spend.key for spend in spends if spend.key is not None}
            live = set(connection.execute(_LIVE_KEYS, {"ids": list(ids)}).scalars()) if ids else set()
            earlier = answers.paid_before(connection, spends)
            outcomes = []
            promised = []
            for spend in spends:
                place = spend.model, spend.client, spend.retry.key if spend.retry else None
                outcome = accounts[spend.model].spend(spend, live, earlier.get(place))
                if spend.retry and isinstance(outcome, Paid) and not outcome.repeated:
                    earlier[place] = spend.retry.digest, outcome.receipt, None
                    promised.append((spend, outcome.receipt))
                outcomes.append(outcome)
            for account in accounts.values():
                account.write(connection)
            answers.promise(connection, promised)
        return outcomes

    def balance(self, model: str, client: str = EVERYONE) -> Balance:
        """What a model, or a client of it, may spend and has spent."""
        known = self.balances(model)
        everyone = known[EVERYONE]
        return known.get(client, Balance(everyone.capacity, everyone.spent * 0))

    def balances(self, model: str) -> dict[str, Balance]:
        """The balance of everyone together and of every client that asked, by name."""
        with self.database.reading() as connection:
            row = connection.execute(select(models).where(models.c.model == model)).one_or_none()
            if row is None:
                raise SettingError(f"the ledger has no account {model!r}.")
            return balances_of(connection, [Chain.from_row(row)])[model]


class AccountTransaction:
    """What one transaction reads of one model's account and adds to it, while it holds the model's lock."""

    def __init__(self, chain: Chain, sequence: int, head: str, known: Mapping[str, Balance]) -> None:
        self.chain = chain
        self._sequence, self._head = sequence, head
        self._before = dict(known)
        self._now = dict(known)
        self._rows: list[dict[str, Any]] = []

    @classmethod
    def start(cls, connection: Connection, chain: Chain, capacity: Amount) -> AccountTransaction:
        """A new account."""
        if max(capacity.units) > LARGEST:
            raise SettingError(f"a budget above {LARGEST / SCALE:.3g} is no promise, and more than a ledger can count.")
        row = {**vars(chain), "orders": json.dumps(chain.orders), "sequence": 0, "head": chain.origin}
        connection.execute(insert(models).values(**row))
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
        rows = {row.model: row for row in connection.execute(_LOCK, {"names": list(names)})}
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
        most = self.everyone.capacity
        spent = self._now[client].spent if client in self._now else most * 0
        return Balance(most if limit is None else limit.capped(most).at_least(spent), spent)

    def spend(self, spend: Spend, live: Collection[str], earlier: answers.PaidBefore | None) -> Paid | Refused:
        """Note a spend if its key is among the live ones and both budgets cover it, unless it was paid for earlier."""
        everyone, own = self.everyone, self.balance(spend.client, spend.limit)
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
            return Refused("client", everyone, own)
        if spend.client not in self._now or self._now[spend.client].capacity != own.capacity:
            self._limit(spend.client, own.capacity)
        self._now[EVERYONE] = everyone = Balance(everyone.capacity, everyone.spent + spend.cost)
        self._now[spend.client] = own = Balance(own.capacity, own.spent + spend.cost)
        entry = self._append("spend", spend.client, spend.answers, spend.cost)
        return Paid(Receipt(entry, spend.cost, self._head), everyone, own)

    def lower(self, capacity: Amount) -> None:
        """Lower the model's capacity, if it is above this one, as far as was not spent."""
        most = capacity.capped(self.everyone.capacity).at_least(self.everyone.spent)
        if most != self.everyone.capacity:
            self._limit(EVERYONE, most)

    def write(self, connection: Connection) -> None:
        """Write what was added; the transaction's commit makes it true."""
        if not self._rows:
            return
        connection.execute(insert(entries), self._rows)
        connection.execute(_ADVANCE, {"m": self.chain.model, "s": self._sequence, "h": self._head})
        rows = [
            {"model": self.chain.model, "client": client, "coordinate": i, "capacity": capacity, "spent": spent}
            for client, now in self._now.items()
            if now != self._before.get(client)
            for i, (capacity, spent) in enumerate(zip(now.capacity.units, now.spent.units, strict=True))
        ]
        connection.execute(_SET_BALANCES[connection.dialect.name], rows)

    def _limit(self, client: str, capacity: Amount) -> None:
        spent = self._now[client].spent if client in self._now else capacity * 0
        self._now[client] = Balance(capacity, spent)
        self._append("limit", client, 0, capacity)

    def _append(self, kind: Kind, client: str, answers: int, amount: Amount) -> Entry:
        self._sequence += 1
        now = time.time_ns() // 1000
        entry = Entry(self.chain.model, self._sequence, uuid.uuid4().hex, kind, client, answers, amount.units, now)
        self._head = entry.hash_after(self._head)
        self._rows.append(entry.row(self._head))
        return entry


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


def _property(connection: Connection, name: str) -> str:
    return str(connection.execute(select(properties.c.value).where(properties.c.name == name)).scalar_one())


def _keyed(connection: Connection, fingerprint: str) -> str:
    key = bytes.fromhex(_property(connection, "key"))
    return f"hmac-{hmac.new(key, fingerprint.encode(), hashlib.sha256).hexdigest()}"


def _data_set(connection: Connection, name: str) -> DataSetBalance:
    both = draws.outerjoin(draw_units, draws.c.release == draw_units.c.release)
    rows = connection.execute(select(draws, draw_units.c.unit).select_from(both).where(draws.c.data_set == name)).all()
    limit = connection.execute(select(data_sets).where(data_sets.c.data_set == name)).one_or_none()
    # Ledgers of version 4 and before know records alone.
    promises = [Promise(row.epsilon, row.delta, row.neighbours, row.unit or "record") for row in rows]
    return DataSetBalance(name, promises, None if limit is None else (limit.epsilon, limit.delta))
