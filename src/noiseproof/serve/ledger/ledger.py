"""Ledger: who spent what of which model's budget. Spend first, then release; what does not fit is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, text, tuple_

from noiseproof.errors import BudgetError, LedgerError, SettingError
from noiseproof.serve.ledger.amounts import Amount
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.entries import Chain, Entry
from noiseproof.serve.ledger.pages import Page, balances_of, read_chain
from noiseproof.serve.ledger.spends import Balance, Paid, Receipt, Refused, Spend
from noiseproof.serve.ledger.tables import EVERYONE, entries, keys, models, retries

_OPENING = 0x6F70656E
_LIVE = select(keys.c.id).where(keys.c.id.in_(bindparam("ids", expanding=True)), keys.c.revoked_at.is_(None))


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

        `release` is a fingerprint of what answers: an account is never taken over by another release, whose answers
        would be paid for from the wrong budget.
        """
        chain = Chain(model, release, *capacity.kind)
        with self.database.writing() as connection:
            if self.database.dialect == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _OPENING})
            row = connection.execute(select(models).where(models.c.model == model)).one_or_none()
            if row is None:
                page = Page.start(connection, chain, capacity)
                page.write(connection)
                return page.everyone
            if read_chain(row) != chain:
                raise LedgerError(
                    f"the ledger's account {model!r} belongs to another release; serve this one under another name."
                )
            return balances_of(connection, [chain], [EVERYONE])[model][EVERYONE]

    def spend(self, spend: Spend) -> Receipt:
        """Pay for one request, or raise `BudgetError` with nothing spent."""
        outcome = self.spend_together([spend])[0]
        if isinstance(outcome, Refused):
            raise BudgetError(refusal(spend, outcome))
        return outcome.receipt

    def spend_together(self, spends: Sequence[Spend]) -> list[Paid | Refused]:
        """Pay for several requests in one transaction; each is granted or refused on its own, in their order."""
        outcomes: list[Paid | Refused] = []
        promises = []
        with self.database.writing() as connection:
            pages = Page.lock(connection, {spend.model for spend in spends}, {spend.client for spend in spends})
            live = _live(connection, {spend.key for spend in spends if spend.key is not None})
            earlier = _earlier(connection, spends)
            for spend in spends:
                page = pages[spend.model]
                own = page.balance(spend.client, spend.limit)
                given = earlier.get((spend.model, spend.client, spend.retry.key)) if spend.retry else None
                if spend.key is not None and spend.key not in live:
                    outcome: Paid | Refused = Refused("revoked", page.everyone, own)
                elif spend.retry and given:
                    question, receipt, answer = given
                    if question == spend.retry.question:
                        outcome = Paid(receipt, page.everyone, own, repeated=True, answer=answer)
                    else:
                        outcome = Refused("retry", page.everyone, own)
                else:
                    outcome = page.spend(spend)
                    if isinstance(outcome, Paid) and spend.retry:
                        earlier[spend.model, spend.client, spend.retry.key] = (
                            spend.retry.question,
                            outcome.receipt,
                            None,
                        )
                        promises.append(_promise(spend, outcome.receipt))
                outcomes.append(outcome)
            for page in pages.values():
                page.write(connection)
            if promises:
                connection.execute(insert(retries), promises)
        return outcomes

    def balance(self, model: str, client: str = EVERYONE) -> Balance:
        """What a model, or a client of it, may spend and has spent."""
        known = self.balances(model)
        everyone = known[EVERYONE]
        return known.get(client, Balance(everyone.capacity, everyone.spent.nothing))

    def balances(self, model: str) -> dict[str, Balance]:
        """The balance of everyone together and of every client that asked, by name."""
        with self.database.reading() as connection:
            return balances_of(connection, [_find(connection, model)])[model]

    def models(self) -> list[str]:
        """The names of all accounts."""
        with self.database.reading() as connection:
            return list(connection.execute(select(models.c.model).order_by(models.c.model)).scalars())


def refusal(spend: Spend, refused: Refused) -> str:
    """A refusal as a sentence."""
    if refused.reason == "revoked":
        return "the API key was revoked; nothing was spent."
    if refused.reason == "retry":
        return "the idempotency key came with another request before; nothing was spent, use a new key."
    whose, balance = ("the model's", refused.everyone) if refused.reason == "model" else ("your", refused.client)
    each = replace(spend.cost, units=tuple(units // spend.answers for units in spend.cost.units))
    return (
        f"{spend.answers} answers were asked for and {whose} budget covers {each.times_within(balance.left)} more; "
        "nothing was answered and nothing spent."
    )


def _find(connection: Connection, model: str) -> Chain:
    row = connection.execute(select(models).where(models.c.model == model)).one_or_none()
    if row is None:
        raise SettingError(f"the ledger has no account {model!r}.")
    return read_chain(row)


def _live(connection: Connection, ids: set[str]) -> set[str]:
    """Those of the API keys that are not revoked."""
    if not ids:
        return set()
    return set(connection.execute(_LIVE, {"ids": list(ids)}).scalars())


_Given = tuple[str, Receipt, str | None]


def _earlier(connection: Connection, spends: Sequence[Spend]) -> dict[tuple[str, str, str], _Given]:
    """What was paid for under the retry keys before: the question, the receipt, and the answer if there is one yet."""
    wanted = [(spend.model, spend.client, spend.retry.key) for spend in spends if spend.retry]
    if not wanted:
        return {}
    kinds = {spend.model: spend.cost for spend in spends}
    query = select(retries.c.retry_key, retries.c.question, retries.c.answer, entries)
    query = query.join(entries, entries.c.receipt == retries.c.receipt)
    query = query.where(tuple_(retries.c.model, retries.c.client, retries.c.retry_key).in_(wanted))
    found = {}
    for row in connection.execute(query).mappings():
        entry = Entry.from_row(row)
        receipt = Receipt(entry, replace(kinds[entry.model], units=entry.units), row["hash"])
        found[entry.model, entry.client, row["retry_key"]] = row["question"], receipt, row["answer"]
    return found


def _promise(spend: Spend, receipt: Receipt) -> dict[str, Any]:
    assert spend.retry is not None
    return {
        "model": spend.model,
        "client": spend.client,
        "retry_key": spend.retry.key,
        "question": spend.retry.question,
        "receipt": receipt.id,
        "made_at": receipt.entry.made_at,
    }
