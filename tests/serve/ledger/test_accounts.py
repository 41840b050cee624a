"""What a process remembers of rights is what the ledger grants now: never more, and never for longer than that holds."""

from __future__ import annotations

import random
import time

import pytest
from sqlalchemy import text

from noiseproof.serve.ledger import Amount, History, Keys, Ledger, Paid, Refused, Spend, accounts

EACH = Amount.cost("gdp", 0.001)


@pytest.fixture
def ledger(database):
    opened = Ledger(database)
    opened.open("m", release="r", capacity=EACH * 10**6)
    return opened


def ask(ledger, client, key, answers=1):
    return ledger.spend_together([Spend("m", client, EACH * answers, answers, key=key)])[0]


def test_rights_that_change_after_they_were_read_hold_at_once(ledger, database):
    keys = Keys(database)
    id = keys.check(keys.create("ann", answers=2)).id
    assert isinstance(ask(ledger, "ann", id, 2), Paid)
    assert ask(ledger, "ann", id).reason == "client"
    keys.create("ann", answers=3, change_rights=True)
    assert isinstance(ask(ledger, "ann", id), Paid)
    keys.create("ann", answers=9, model="m", change_rights=True)
    assert isinstance(ask(ledger, "ann", id, 6), Paid)
    assert ask(ledger, "ann", id).reason == "client"
    keys.create("ann", answers=None, model="m", change_rights=True)
    assert isinstance(ask(ledger, "ann", id), Paid)
    keys.rotate(id)
    assert ask(ledger, "ann", id).reason == "revoked"


def test_whatever_is_granted_and_taken_back_meanwhile_a_spend_is_decided_as_the_ledger_says_now(ledger, database):
    chance, keys = random.Random(0), Keys(database)
    ids = {client: [keys.check(keys.create(client, answers=3)).id] for client in ("ann", "bob", "cy")}
    seen = set()
    for _ in range(120):
        client = chance.choice([*ids])
        done = chance.choices(["rights", "model", "key", "revoke", "nothing"], [2, 1, 1, 1, 4])[0]
        if done in ("rights", "model"):
            _, own = ledger.share("m", client, each=EACH)
            answers = chance.choice([None, own.spent.units[0] // EACH.units[0] + chance.randint(0, 4)])
            model = "m" if done == "model" else None
            keys.create(client, answers=answers, model=model, change_rights=True)
        elif done == "key":
            ids[client].append(keys.check(keys.create(client)).id)
        live = {one.id for one in keys.list() if one.revoked_at is None}
        if done == "revoke" and live & set(ids[client]):
            keys.revoke(chance.choice(sorted(live & set(ids[client]))))
            live = {one.id for one in keys.list() if one.revoked_at is None}
        key, answers = chance.choice(ids[client]), chance.randint(1, 3)
        _, own = Ledger(database).share("m", client, each=EACH)
        expected = "revoked" if key not in live else "paid" if (EACH * answers).fits(own.left) else "client"
        outcome = ask(ledger, client, key, answers)
        assert ("paid" if isinstance(outcome, Paid) else outcome.reason) == expected
        seen.add(expected)
    assert seen == {"revoked", "paid", "client"}


def test_a_key_that_expires_after_it_was_read_spends_nothing(ledger, database, monkeypatch):
    keys = Keys(database)
    id = keys.check(keys.create("ann", expires_at=time.time() + 100)).id
    assert isinstance(ask(ledger, "ann", id), Paid)
    now = time.time_ns()
    monkeypatch.setattr("noiseproof.serve.ledger.accounts.time.time_ns", lambda: now + 200 * 10**9)
    assert ask(ledger, "ann", id).reason == "revoked"


def test_rights_of_which_half_was_read_are_not_known(ledger, database, monkeypatch):
    id = Keys(database).check(Keys(database).create("ann", answers=0)).id

    class Broken:
        def run(self, *_, **__):
            yield from ()
            raise ConnectionError

    with monkeypatch.context() as broken:
        broken.setattr(accounts, "_RIGHTS", Broken())
        with pytest.raises(ConnectionError):
            ask(ledger, "ann", id)
    assert isinstance(ask(ledger, "ann", id), Refused)


@pytest.mark.parametrize(
    ("statement", "then"),
    [
        ("UPDATE keys SET revoked_at = 1", "revoked"),
        ("DELETE FROM keys", "revoked"),
        ("UPDATE clients SET answers = 1", "client"),
        ("INSERT INTO allowances VALUES ('ann', 'm', 1, NULL)", "client"),
    ],
)
def test_a_right_that_was_changed_by_sql_is_seen_by_the_next_spend(ledger, database, statement, then):
    id = Keys(database).check(Keys(database).create("ann")).id
    assert isinstance(ask(ledger, "ann", id), Paid)
    with database.writing() as connection:
        connection.execute(text(statement))
    assert ask(ledger, "ann", id).reason == then


def test_what_is_changed_where_nothing_counts_changes_is_found_and_seen_in_a_minute(ledger, database, monkeypatch):
    id = Keys(database).check(Keys(database).create("ann")).id
    assert isinstance(ask(ledger, "ann", id), Paid)
    name = "keys_update_counted" if database.dialect == "sqlite" else "keys_counted ON keys"
    with database.writing() as connection:
        connection.execute(text(f"DROP TRIGGER {name}"))
        connection.execute(text("UPDATE keys SET revoked_at = 1"))
    assert isinstance(ask(ledger, "ann", id), Paid)
    assert any("the guard keys_" in problem for result in History(database).verify() for problem in result.problems)
    monkeypatch.setattr(accounts, "_KNOWN_SECONDS", 0.0)
    assert ask(ledger, "ann", id).reason == "revoked"


def test_rights_are_asked_for_once(ledger, database, monkeypatch):
    id = Keys(database).check(Keys(database).create("ann")).id
    ask(ledger, "ann", id)
    asked = []
    for name in ("_RIGHTS", "_LIVE"):
        statement = getattr(accounts, name)
        monkeypatch.setattr(
            accounts, name, type("S", (), {"run": lambda *a, s=statement, **b: asked.append(s) or s.run(*a[1:], **b)})()
        )
    ask(ledger, "ann", id)
    assert asked == []
    Keys(database).create("bob")
    ask(ledger, "ann", id)
    assert len(asked) == 2
