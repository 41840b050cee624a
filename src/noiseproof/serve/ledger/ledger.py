"""Ledger: who spent what of which model's budget. Spend first, then release; what does not fit is refused."""

from __future__ import annotations

import hashlib
import hmac
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from sqlalchemy import Connection, bindparam, select

from noiseproof.errors import BudgetError, LedgerError, SettingError
from noiseproof.serve.ledger import answers, grants, spending
from noiseproof.serve.ledger.accounts import (
    AccountTransaction,
    Rights,
    balances_of,
    committed,
    count_clients,
    largest_of,
    under,
)
from noiseproof.serve.ledger.amounts import Amount
from noiseproof.serve.ledger.bindings import Binding
from noiseproof.serve.ledger.database import Database, LedgerUnsureError
from noiseproof.serve.ledger.records import Balance, Chain, DataSetBalance, Paid, Promise, Receipt, Refused, Spend
from noiseproof.serve.ledger.tables import (
    EVERYONE,
    data_sets,
    draw_units,
    draws,
    key_was_changed,
    lock,
    models,
    names,
    properties,
    weights,
)
from noiseproof.serve.ledger.tails import Tail

_LONGEST_TAIL = 1 << 16
"""Entries that a process keeps at most until it adds up clients' balances itself."""

_WEIGHTS = weights
_ACCOUNT_OF_WEIGHTS = select(weights.c.model).where(weights.c.weights == bindparam("weights"))


class Ledger:
    """Accounts of models, and of clients under them, in a database that many processes may share.

    Formal guarantee
    ----------------
    The sum of all spends of a model never exceeds its capacity, and a client's never exceeds that client's, whatever is
    asked at once, by whomever, and whatever crashes: a spend is checked and written in one transaction that holds the
    model's lock, and the database itself refuses a model's balance above its capacity. `spend` returns after the commit, so
    that what is released after it has been paid for. What follows for privacy is said at `Amount`. Assumptions: the
    database keeps what it has committed; nobody answers from the same release by another ledger, or by none.
    """

    def __init__(self, database: Database, bindings: Mapping[str, Sequence[Binding]] | None = None) -> None:
        self.database = database
        self._bindings = bindings or {}
        """By account: what is noted in bundles before anything is released."""
        self._rights = Rights()
        self._tails: defaultdict[str, Tail] = defaultdict(Tail)
        """By account: what was spent since clients' balances were added up."""

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
            weights: A fingerprint of its weights alone. Weights have one account, whatever noise and number of
                queries a bundle states beside them.

        Returns:
            The name of the account to spend from.

        Raises:
            LedgerError: If the name belongs to another release, or the release was counted in another measure.
            SettingError: If the capacity is more than a ledger can count.
        """
        with self.database.writing() as connection:
            lock(connection, "open")
            _check_no_backup(connection)
            keyed, kept = _keyed(connection, release), weights and _keyed(connection, weights)
            # Version 0.1 knew a release by its weights, without a key.
            found = connection.execute(select(models.c.model).where(models.c.release.in_([keyed, weights]))).scalar()
            if found is None and weights:
                found = connection.execute(_ACCOUNT_OF_WEIGHTS, {"weights": kept}).scalar_one_or_none()
            known = connection.execute(select(names.c.model).where(names.c.name == name)).scalar_one_or_none()
            if known is not None and found != known:
                raise LedgerError(f"the ledger knows {name!r} as another release; serve this one under another name.")
            if found is None:
                account = AccountTransaction.start(connection, Chain(name, keyed, *capacity.kind), capacity)
            else:
                account = self._lock(connection, found)
                if account.everyone.capacity.kind != capacity.kind:
                    raise LedgerError(
                        f"the ledger's account {found!r} counts in another measure; serve it with the version of "
                        "noiseproof that opened it, and with the bundle as it was."
                    )
                account.lower(capacity)
            account.write(connection)
            model = account.chain.model
            grants.put(connection, names, {"name": name, "model": model})
            if weights:
                grants.put(connection, _WEIGHTS, {"weights": kept, "model": model})
        self._saw([account])
        return model

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
            _check_no_backup(connection)
            grants.put(connection, draws, row, "data_set")
            grants.put(connection, draw_units, unit)
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
            grants.put(connection, data_sets, row, "epsilon", "delta")
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

    def spend_together(
        self, spends: Sequence[Spend], meanwhile: Callable[[Sequence[Paid | Refused]], None] | None = None
    ) -> list[Paid | Refused]:
        """Pay for several requests in one transaction; each is granted or refused on its own, in their order.

        Args:
            spends: What is paid for.
            meanwhile: Given the outcomes while they are brought to disk: what it works out must not be released before
                this returns, and never if it raises. It raises nothing itself.

        Raises:
            LedgerAwayError: If nothing was spent, since the database is away.
            LedgerUnsureError: If it went away in the middle: `tried` by their outcomes, the same spends are made once.
        """
        outcomes: list[Paid | Refused] = []
        try:
            return self._spend_together(spends, outcomes, None if meanwhile is None else partial(meanwhile, outcomes))
        except LedgerUnsureError as error:
            error.outcomes = outcomes
            raise

    def _spend_together(
        self, spends: Sequence[Spend], outcomes: list[Paid | Refused], meanwhile: Callable[[], None] | None
    ) -> list[Paid | Refused]:
        places = [(spend.model, spend.client) for spend in spends]
        clients, keys = {spend.client for spend in spends}, {spend.key for spend in spends if spend.key is not None}
        with self.database.writing(together=True, meanwhile=meanwhile) as connection:
            # All that is read is asked for before any of it is looked at: a server is waited for once.
            locked = AccountTransaction.lock(connection, {spend.model for spend in spends}, clients, self._tails)
            asked = self._rights.ask(connection, clients, keys)
            paid_before = answers.paid_before(connection, spends)
            tried = committed(connection, spends)
            accounts = self._unchanged(locked())
            earlier, already = paid_before(), tried()
            self._rights = rights = asked(next((one.granted for one in accounts.values()), None))
            limited, live = rights.shares(connection, places), rights.live(keys)
            promised = []
            for spend in spends:
                place = spend.model, spend.client, spend.retry.key if spend.retry else None
                share = limited.get((spend.model, spend.client))
                outcome = accounts[spend.model].spend(spend, live, earlier.get(place), share, already)
                if (
                    spend.retry
                    and isinstance(outcome, Paid)
                    and not outcome.repeated
                    and outcome.receipt.id not in already
                ):
                    earlier[place] = answers.PaidBefore(spend.retry, outcome.receipt)
                    promised.append((spend, outcome.receipt))
                outcomes.append(outcome)
            for account in accounts.values():
                account.write(connection)
            answers.promise(connection, promised)
        self._saw(accounts.values())
        for name, account in accounts.items():
            self._tails[name].follow(account.added, account.balances)
        if any(len(self._tails[name]) > _LONGEST_TAIL for name in accounts):
            with suppress(LedgerError):  # what was paid for is paid for
                spending.sum_up(self.database)  # where no service does
        return outcomes

    def close(self, model: str) -> Balance:
        """Close a model's budget for good: nothing more can be spent of it, and nothing is taken back."""
        with self.database.writing() as connection:
            account = self._lock(connection, model)
            account.lower(account.everyone.spent)
            account.write(connection)
        self._saw([account])
        return account.everyone

    def balance(self, model: str, client: str = EVERYONE) -> Balance:
        """What a model, or a client of it, may spend and has spent."""
        return self.share(model, client)[1]

    def share(
        self, model: str, client: str, *, each: Amount | None = None, limit: Amount | None = None
    ) -> tuple[Balance, Balance]:
        """The balance of everyone together, and of a client.

        Args:
            model: The account.
            client: Whose.
            each: What an answer costs: the client's balance is then what its rights leave it now, in this period if
                they are for one.
            limit: What a client may spend whose rights say nothing.
        """
        with self.database.reading() as connection:
            found = balances_of(connection, [_chain(connection, model)], [EVERYONE, client])[model]
            everyone = found[EVERYONE]
            if client == EVERYONE:
                return everyone, everyone
            own = found.get(client, Balance(everyone.capacity, everyone.spent * 0))
            if each is None:
                return everyone, own
            share = Rights().ask(connection, [client])(None).shares(connection, [(model, client)]).get((model, client))
            return everyone, under(limit if share is None else share.limit(each, own.spent), everyone, own)

    def balances(self, model: str, most: int | None = None) -> dict[str, Balance]:
        """The balance of everyone together and of clients that asked, by name: of all, or of those that spent most."""
        with self.database.reading() as connection:
            return largest_of(connection, _chain(connection, model), most)

    def clients(self, model: str) -> int:
        """How many clients have asked a model."""
        with self.database.reading() as connection:
            return count_clients(connection, _chain(connection, model))

    def _lock(self, connection: Connection, model: str) -> AccountTransaction:
        """An account to change."""
        return self._unchanged(AccountTransaction.lock(connection, {model}, set())())[model]

    def _unchanged(self, accounts: dict[str, AccountTransaction]) -> dict[str, AccountTransaction]:
        """Accounts that were locked, if they are not behind what this process has seen of them."""
        for name, account in accounts.items():
            sequence, head = self.database.seen.get(name, (0, account.head))
            if account.sequence < sequence or (account.sequence == sequence and account.head != head):
                raise LedgerError(
                    f"the ledger's account {name!r} is behind what was spent of it: an older copy took its place while "
                    "it was in use; nothing was released. Stop the service, and use `noiseproof ledger restore`."
                )
        return accounts

    def note(self) -> None:
        """Note in the bundles how far their accounts are, so that older copies of this ledger are refused."""
        with self.database.reading() as connection:
            accounts = AccountTransaction.read(connection, self._bindings)()
        self._saw(accounts.values())
        for name, account in accounts.items():
            for binding in self._bindings[name]:
                binding.keep_up(name, account.sequence, account.head, account.everyone)

    def _saw(self, accounts: Iterable[AccountTransaction]) -> None:
        """Remember what was committed, and note it in the bundles, before anything is released."""
        for account in accounts:
            name = account.chain.model
            self.database.seen[name] = max(self.database.seen.get(name, (0, "")), (account.sequence, account.head))
            for binding in self._bindings.get(name, ()):
                binding.reach(name, account.sequence, account.head, account.everyone)


def _chain(connection: Connection, model: str) -> Chain:
    row = connection.execute(select(models).where(models.c.model == model)).one_or_none()
    if row is None:
        raise SettingError(f"the ledger has no account {model!r}.")
    return Chain.from_row(row)


def _check_no_backup(connection: Connection) -> None:
    made = connection.execute(select(properties.c.value).where(properties.c.name == "backup")).scalar_one_or_none()
    if made is not None:
        raise LedgerError(
            f"this is a backup of {made}, and nothing may be spent from it; `noiseproof ledger restore` makes a ledger of it."
        )


def _property(connection: Connection, name: str) -> str:
    return str(connection.execute(select(properties.c.value).where(properties.c.name == name)).scalar_one())


def _keyed(connection: Connection, fingerprint: str) -> str:
    id, key = (_property(connection, name) for name in ("id", "key"))
    if key_was_changed(id, key):
        raise LedgerError(
            "the ledger's key was changed, so that it knows no release any more and would sell all of them again; "
            "restore the ledger from a backup."
        )
    return f"hmac-{hmac.new(bytes.fromhex(key), fingerprint.encode(), hashlib.sha256).hexdigest()}"


def _data_set(connection: Connection, name: str) -> DataSetBalance:
    both = draws.outerjoin(draw_units, draws.c.release == draw_units.c.release)
    rows = connection.execute(select(draws, draw_units.c.unit).select_from(both).where(draws.c.data_set == name)).all()
    limit = connection.execute(select(data_sets).where(data_sets.c.data_set == name)).one_or_none()
    # Ledgers of version 4 and before know records alone.
    promises = [Promise(row.epsilon, row.delta, row.neighbours, row.unit or "record") for row in rows]
    return DataSetBalance(name, promises, None if limit is None else (limit.epsilon, limit.delta))
