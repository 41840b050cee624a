"""Ledger: who spent what of which model's budget. Spend first, then release; what does not fit is refused."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from noiseproof.errors import BudgetError, LedgerError, SettingError
from noiseproof.serve.ledger import answers
from noiseproof.serve.ledger.amounts import LARGEST, SCALE, Amount
from noiseproof.serve.ledger.database import EVERYONE, Database, balances, entries, insert_or, keys, lock, models
from noiseproof.serve.ledger.records import Balance, Chain, Entry, Kind, Paid, Receipt, Refused, Spend

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

    def open(self, model: str, *, release: str, capacity: Amount) -> Balance:
        """Make sure that a model has an account. One that is there keeps its capacity and what was spent.

        Args:
            model: The account's name.
            release: A fingerprint of what answers: an account is never taken over by another release, whose answers
                would be paid for from the wrong budget.
            capacity: What all answers together may cost.

        Returns:
            The account's balance.

        Raises:
            LedgerError: If the account belongs to another release.
            SettingError: If the capacity is more than a ledger can count.
        """
        chain = Chain(model, release, *capacity.kind)
        with self.database.writing() as connection:
            lock(connection, "open")
            row = connection.execute(select(models).where(models.c.model == model)).one_or_none()
            if row is None:
                account = AccountTransaction.start(connection, chain, capacity)
                account.write(connection)
                return account.everyone
            if Chain.from_row(row) != chain:
                raise LedgerError(
                    f"the ledger's account {model!r} belongs to another release; serve this one under another name."
                )
            return balances_of(connection, [chain], [EVERYONE])[model][EVERYONE]

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
            live = _live_keys(connection, {spend.key for spend in spends if spend.key is not None})
            earlier = answers.paid_before(connection, spends)
            outcomes = []
            promised = []
            for spend in spends:
                outcome = _decide(spend, accounts[spend.model], live, earlier)
                if spend.retry and isinstance(outcome, Paid) and not outcome.repeated:
                    place = spend.model, spend.client, spend.retry.key
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
        return known.get(client, Balance(everyone.capacity, everyone.spent.zero))

    def balances(self, model: str) -> dict[str, Balance]:
        """The balance of everyone together and of every client that asked, by name."""
        with self.database.reading() as connection:
            row = connection.execute(select(models).where(models.c.model == model)).one_or_none()
            if row is None:
                raise SettingError(f"the ledger has no account {model!r}.")
            return balances_of(connection, [Chain.from_row(row)])[model]

    def models(self) -> list[str]:
        """The names of all accounts."""
        with self.database.reading() as connection:
            return list(connection.execute(select(models.c.model).order_by(models.c.model)).scalars())


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
        spent = self._now[client].spent if client in self._now else most.zero
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
        rows = [
            {"model": self.chain.model, "client": client, "coordinate": i, "capacity": capacity, "spent": spent}
            for client, now in self._now.items()
            if now != self._before.get(client)
            for i, (capacity, spent) in enumerate(zip(now.capacity.units, now.spent.units, strict=True))
        ]
        upsert = insert_or(connection, balances)
        new = {name: upsert.excluded[name] for name in ("capacity", "spent")}
        connection.execute(upsert.on_conflict_do_update(index_elements=balances.primary_key.columns, set_=new), rows)

    def _limit(self, client: str, capacity: Amount) -> None:
        spent = self._now[client].spent if client in self._now else capacity.zero
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


def _decide(
    spend: Spend,
    account: AccountTransaction,
    live: Collection[str],
    earlier: Mapping[answers.Place, answers.PaidBefore],
) -> Paid | Refused:
    everyone, own = account.everyone, account.balance(spend.client, spend.limit)
    if spend.key is not None and spend.key not in live:
        return Refused("revoked", everyone, own)
    found = earlier.get((spend.model, spend.client, spend.retry.key)) if spend.retry else None
    if spend.retry is None or found is None:
        return account.spend(spend)
    digest, receipt, answer = found
    if digest != spend.retry.digest:
        return Refused("retry", everyone, own)
    return Paid(receipt, everyone, own, repeated=True, answer=answer)


def _live_keys(connection: Connection, ids: set[str]) -> set[str]:
    """Those of the API keys that are not revoked."""
    return set(connection.execute(_LIVE_KEYS, {"ids": list(ids)}).scalars()) if ids else set()
