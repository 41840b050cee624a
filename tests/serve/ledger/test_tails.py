"""A client's balance is what the history says, however much of it has been added up, and whoever entered it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from sqlalchemy import select, text

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger import (
    Amount,
    Answers,
    Database,
    History,
    Ledger,
    Paid,
    Refused,
    Retry,
    Spend,
    accounts,
    ledger,
    spending,
)
from noiseproof.serve.ledger.tables import balances, models

GAUSSIAN, RENYI = Amount.cost("gdp", 0.01), Amount.cost("rdp", 0.01, 0.02, 0.03, orders=(2.0, 4.0, 8.0))


def spend(ledger, client, each, answers=1, limit=None):
    return ledger.spend_together([Spend("m", client, each * answers, answers, limit=limit)])[0]


def holds(database):
    return all(result.holds for result in History(database).verify())


@pytest.mark.parametrize("each", [GAUSSIAN, RENYI], ids=["one coordinate", "a curve"])
@pytest.mark.parametrize("seed", range(3))
def test_two_processes_keep_every_client_to_its_limit_while_balances_are_added_up_at_any_moment(
    database, url, each, seed, monkeypatch
):
    monkeypatch.setattr(spending, "_AT_ONCE", 7)  # so that some entries are added up, and some are not
    chance, had = random.Random(seed), Counter()
    names = [f"c{number}" for number in range(4)]
    most = {name: chance.randint(3, 25) for name in names}
    with Database(url) as other:
        processes = [Ledger(database), Ledger(other)]
        processes[0].open("m", release="r", capacity=each * 60)
        for _ in range(120):
            name, answers, one = chance.choice(names), chance.randint(1, 3), chance.choice(processes)
            if chance.random() < 0.05:
                most[name] = chance.randint(0, 30)
            fits = had[name] + answers <= min(60, max(most[name], had[name])) and sum(had.values()) + answers <= 60
            outcome = spend(one, name, each, answers, each * most[name])
            assert isinstance(outcome, Paid) == fits
            had[name] += answers * fits
            assert outcome.client.spent == each * had[name]
            if chance.random() < 0.1:
                spending.sum_up(database)
        found = Ledger(database)
        assert found.balance("m").spent == each * sum(had.values())
        assert {name: found.balance("m", name).spent for name in names} == {name: each * had[name] for name in names}
        assert {name: one.spent for name, one in found.balances("m").items() if name} == {
            name: each * had[name] for name in names if had[name]
        }
        assert found.clients("m") == len([name for name in names if had[name]])
        best = max(had, key=lambda name: (had[name], name))
        assert had[list(found.balances("m", 1))[-1]] == had[best]
        assert holds(database)
        while spending.sum_up(database):
            pass
        assert holds(database)
        with database.reading() as connection:
            rows = connection.execute(select(balances.c.client, balances.c.spent).where(balances.c.coordinate == 0))
            stored = {client: spent for client, spent in rows if client}
        assert stored == {name: (each * had[name]).units[0] for name in names if had[name]}


def test_what_is_added_up_is_kept_in_memory_no_more(database):
    one = Ledger(database)
    one.open("m", release="r", capacity=GAUSSIAN * 100)
    for _ in range(5):
        spend(one, "ann", GAUSSIAN)
    assert len(one._tails["m"]) == 6  # with ann's limit
    spending.sum_up(database)
    spend(one, "bob", GAUSSIAN)
    assert len(one._tails["m"]) == 2
    assert one.balance("m", "ann").spent == GAUSSIAN * 5


def test_a_budget_is_read_by_as_few_rows_with_many_clients_as_with_few(database, monkeypatch):
    read = []
    stored = accounts._balances
    monkeypatch.setattr(
        accounts, "_balances", lambda chains, rows: stored(chains, [read.append(row) or row for row in rows])
    )
    one = Ledger(database)
    one.open("m", release="r", capacity=GAUSSIAN * 1000)
    for count in (3, 300):
        one.spend_together([Spend("m", f"c{number}", GAUSSIAN) for number in range(count)])
        spending.sum_up(database)
        for client in ("", "c1"):
            read.clear()
            one.share("m", client, each=GAUSSIAN)
            assert len(read) == 1 + bool(client)


def test_the_row_of_a_client_that_was_seen_is_not_read_again(database, monkeypatch):
    read = []
    stored = accounts._balances
    monkeypatch.setattr(
        accounts, "_balances", lambda chains, rows: stored(chains, [read.append(row) or row for row in rows])
    )
    one, other = Ledger(database), Ledger(database)
    one.open("m", release="r", capacity=GAUSSIAN * 1000)
    clients = [f"c{number}" for number in range(20)]
    for process in (one, one, other):
        process.spend_together([Spend("m", client, GAUSSIAN) for client in clients])
        while spending.sum_up(database):
            pass
    read.clear()
    other.spend_together([Spend("m", client, GAUSSIAN) for client in clients])
    assert [row[1] for row in read] == [""]
    read.clear()
    # What another process entered was added up before this one saw it.
    outcomes = one.spend_together([Spend("m", client, GAUSSIAN, limit=GAUSSIAN * 5) for client in [*clients, *clients]])
    assert len(read) == 1 + len(clients)
    assert [isinstance(outcome, Paid) for outcome in outcomes] == [True] * 20 + [False] * 20


def test_a_ledger_that_no_service_sums_up_does_so_itself(database, monkeypatch):
    monkeypatch.setattr(ledger, "_LONGEST_TAIL", 10)
    one = Ledger(database)
    one.open("m", release="r", capacity=GAUSSIAN * 100)
    for _ in range(40):
        spend(one, "ann", GAUSSIAN)
    assert len(one._tails["m"]) <= 11
    assert one.balance("m", "ann").spent == GAUSSIAN * 40
    assert holds(database)


def test_a_limit_that_was_lowered_holds_before_and_after_it_is_added_up(database):
    one = Ledger(database)
    one.open("m", release="r", capacity=GAUSSIAN * 100)
    spend(one, "ann", GAUSSIAN, 4, GAUSSIAN * 10)
    assert isinstance(spend(one, "ann", GAUSSIAN, 2, GAUSSIAN * 5), Refused)
    spend(one, "ann", GAUSSIAN, 1, GAUSSIAN * 5)
    for _ in range(2):
        assert one.balance("m", "ann").capacity == GAUSSIAN * 5
        assert isinstance(spend(one, "ann", GAUSSIAN, 1, GAUSSIAN * 5), Refused)
        spending.sum_up(database)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_an_entry_that_cannot_be_read_stops_spending_in_one_sentence_every_time(database):
    one = Ledger(database)
    one.open("m", release="r", capacity=GAUSSIAN * 100)
    spend(one, "ann", GAUSSIAN)
    other = Ledger(database)
    with database.writing() as connection:
        connection.execute(text("DROP TRIGGER entries_no_update"))
        connection.execute(text("UPDATE entries SET units = 'x' WHERE sequence = 3"))
    for _ in range(2):
        with pytest.raises(LedgerError, match="malformed"):
            spend(other, "ann", GAUSSIAN)
    assert not holds(database)


def test_what_somebody_says_was_added_up_and_was_not_is_noticed(database):
    one = Ledger(database)
    one.open("m", release="r", capacity=GAUSSIAN * 100)
    spend(one, "ann", GAUSSIAN)
    with database.writing() as connection:
        connection.execute(models.update().values(folded=models.c.sequence))
    found = [problem for result in History(database).verify() for problem in result.problems]
    assert found == ["the balances are not what the history adds up to."]


def test_balances_of_version_8_are_added_up_already_and_its_kept_answers_are_given_again_and_no_others(url):
    retries = [Retry("answered", "what?"), Retry("paid for alone", "what?")]
    with Database(url) as old:
        one = Ledger(old)
        one.open("m", release="r", capacity=GAUSSIAN * 100)
        for retry in retries:
            one.spend(Spend("m", "ann", GAUSSIAN, retry=retry))
        Answers(old).keep("m", "ann", "answered", "first")
        spending.sum_up(old)
        with old.writing() as connection:
            connection.execute(text("ALTER TABLE models DROP COLUMN folded"))
            connection.execute(text("ALTER TABLE retries DROP COLUMN nonce"))
            connection.execute(text("DROP TABLE answered"))
            connection.execute(text("UPDATE version SET version = 8"))
    with Database(url) as new:
        again, lost = Ledger(new).spend_together([Spend("m", "ann", GAUSSIAN, retry=retry) for retry in retries])
        assert (again.answer, lost.reason) == ("first", "retry")
        spend(Ledger(new), "ann", GAUSSIAN)
        assert Ledger(new).balance("m", "ann").spent == GAUSSIAN * 3
        assert holds(new)
