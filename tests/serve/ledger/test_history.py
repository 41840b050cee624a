"""A history that was rewritten is noticed; one that was not verifies, whatever the clock did."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from sqlalchemy import create_engine, text

from noiseproof.serve.ledger import Amount, History, Ledger, Spend, spending
from noiseproof.serve.ledger.database import parse_url
from noiseproof.serve.ledger.records import Entry

EACH = Amount.cost("gdp", 0.01)


@pytest.fixture
def ledger(database):
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=EACH * 10)
    for i in range(5):
        ledger.spend(Spend("m", f"c{i % 2}", EACH, 1))
    return ledger


@pytest.fixture
def forge(url):
    """Change the database behind the ledger's back, with its guards taken away."""

    def run(*statements):
        engine = create_engine(parse_url(url))
        sqlite = engine.dialect.name == "sqlite"
        with engine.begin() as connection:
            guards = ("entries_no_update", "entries_no_delete") if sqlite else ("entries_no_change",)
            found = [_guard(connection, name, sqlite) for name in guards]
            for name in guards:
                connection.execute(text(f"DROP TRIGGER {name}{'' if sqlite else ' ON entries'}"))
            for statement in statements:
                statement(connection) if callable(statement) else connection.execute(text(statement))
            for statement in found:  # as a careful forger would
                connection.execute(text(statement))
        engine.dispose()

    return run


def _guard(connection, name, sqlite):
    query = (
        "SELECT sql FROM sqlite_master WHERE name = :name"
        if sqlite
        else ("SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = :name AND tgrelid = to_regclass('entries')")
    )
    return connection.execute(text(query), {"name": name}).scalar_one()


def problems(ledger, **noted):
    return [problem for result in History(ledger.database).verify(**noted) for problem in result.problems]


def test_an_honest_history_holds_and_is_counted(ledger):
    (result,) = History(ledger.database).verify()
    assert result.holds
    assert (result.entries, result.answers) == (8, 5)  # three limits: everyone's and two clients'


@pytest.mark.parametrize(
    ("statement", "noticed"),
    [
        ("UPDATE entries SET answers = 2 WHERE sequence = 5", "entry 5 was changed"),
        ("UPDATE entries SET units = '[1]' WHERE sequence = 5", "entry 5 was changed"),
        ("UPDATE entries SET client = 'c1' WHERE sequence = 3", "entry 3 was changed"),
        ("UPDATE entries SET made_at = made_at + 1 WHERE sequence = 8", "entry 8 was changed"),
        ("UPDATE entries SET receipt = 'mine' WHERE sequence = 8", "entry 8 was changed"),
        ("DELETE FROM entries WHERE sequence = 4", "entry 4 is missing"),
        ("DELETE FROM entries WHERE sequence = 8", "last entries are missing"),
        ("UPDATE balances SET spent = 0", "not what the history adds up to"),
        ("UPDATE balances SET capacity = capacity + 1", "not what the history adds up to"),
        ("DELETE FROM balances WHERE client = 'c1'", "not what the history adds up to"),
        ("UPDATE models SET release = 'other'", "entry 1 was changed"),
    ],
)
def test_what_was_changed_is_noticed(ledger, forge, statement, noticed):
    spending.sum_up(ledger.database)
    forge(statement)
    assert any(noticed in problem for problem in problems(ledger))


def _cut_off(connection):
    """The last entry gone and all else made to fit: what a chain of hashes alone cannot show."""
    connection.execute(text("DELETE FROM entries WHERE sequence = 8"))
    head = connection.execute(text("SELECT hash FROM entries WHERE sequence = 7")).scalar_one()
    connection.execute(text("UPDATE models SET sequence = 7, head = :head"), {"head": head})
    cost = {"cost": EACH.units[0]}
    connection.execute(text("UPDATE balances SET spent = spent - :cost WHERE client IN ('', 'c0')"), cost)


def test_a_history_that_was_cut_off_with_its_balances_lacks_a_hash_that_was_noted(ledger, forge):
    noted = list(History(ledger.database).export())[-1]["hash"]
    assert not problems(ledger, noted=noted)
    forge(_cut_off)
    assert not problems(ledger)
    assert problems(ledger, noted=noted) == ["the noted hash is in no history: one was rewritten."]


def test_a_history_that_overspends_is_noticed_even_with_true_hashes(ledger, forge):
    def overspend(connection):
        row = connection.execute(text("SELECT * FROM models")).one()
        entry = Entry("m", 9, "forged", "spend", "c0", 99, (EACH * 99).units, 0)
        head = entry.hash_after(row.head)
        fields = entry.row(head)
        columns, places = ", ".join(fields), ", ".join(f":{name}" for name in fields)
        connection.execute(text(f"INSERT INTO entries ({columns}) VALUES ({places})"), fields)
        connection.execute(text("UPDATE models SET sequence = 9, head = :head"), {"head": head})

    forge(overspend)
    assert "entry 9 spent more than was left." in problems(ledger)


def test_a_budget_that_was_raised_is_noticed_even_with_true_hashes(ledger, forge):
    def raise_limit(connection):
        row = connection.execute(text("SELECT * FROM models")).one()
        entry = Entry("m", 9, "forged", "limit", "", 0, (EACH * 1000).units, 0)
        fields = entry.row(entry.hash_after(row.head))
        columns, places = ", ".join(fields), ", ".join(f":{name}" for name in fields)
        connection.execute(text(f"INSERT INTO entries ({columns}) VALUES ({places})"), fields)
        connection.execute(text("UPDATE models SET sequence = 9, head = :head"), {"head": fields["hash"]})
        connection.execute(
            text("UPDATE balances SET capacity = 1000 * :each WHERE client = ''"), {"each": EACH.units[0]}
        )

    forge(raise_limit)
    assert problems(ledger) == ["entry 9 raised the model's budget."]


def test_a_clock_that_jumps_changes_nothing_but_the_times(ledger, monkeypatch):
    real = time.time_ns()
    for jump in (-(10**18), 10**18, 0):
        monkeypatch.setattr(time, "time_ns", lambda jump=jump: max(0, real + jump))
        ledger.spend(Spend("m", "c0", EACH, 1))
    assert ledger.balance("m").spent == EACH * 8
    assert not problems(ledger)


def test_the_export_has_every_entry_in_order_with_the_hash_before_it(ledger):
    lines = list(History(ledger.database).export())
    assert [line["sequence"] for line in lines] == list(range(1, 9))
    assert [line["previous"] for line in lines[1:]] == [line["hash"] for line in lines[:-1]]
    assert [line["client"] for line in lines if line["kind"] == "spend"] == ["c0", "c1", "c0", "c1", "c0"]
    assert {tuple(line["amounts"]) for line in lines if line["kind"] == "spend"} == {("0.01",)}


def test_accounts_tell_everyones_and_each_clients_balance(ledger):
    (account,) = History(ledger.database).accounts()
    assert account.everyone.left == EACH * 5
    assert {client: balance.spent for client, balance in account.clients.items()} == {"c0": EACH * 3, "c1": EACH * 2}
    assert account.head == list(History(ledger.database).export())[-1]["hash"]


def test_spending_is_the_same_before_while_and_after_it_is_summed_up(ledger, monkeypatch):
    monkeypatch.setattr(spending, "_AT_ONCE", 3)
    history = History(ledger.database)

    def seen():
        return [
            sum(answers for _, answers in history.spending("m", seconds, 6, client))
            for seconds in (3600, 10 * 86400)
            for client in (None, "c0", "c1")
        ]

    before = seen()
    assert before[0] == 5
    rounds = 0
    while spending.sum_up(ledger.database):
        assert seen() == before
        rounds += 1
    assert rounds > 1
    assert seen() == before
    assert not spending.sum_up(ledger.database)
    ledger.spend(Spend("m", "c1", EACH))
    assert seen() == [count + (client != "c0") for count, client in zip(before, (None, "c0", "c1") * 2, strict=True)]


def test_spending_over_time_is_counted_in_intervals(ledger):
    history = History(ledger.database)
    assert sum(answers for _, answers in history.spending("m", 3600, 6)) == 5
    assert sum(answers for _, answers in history.spending("m", 3600, 6, "c1")) == 2
    starts = [start for start, _ in history.spending("m", 3600, 6)]
    assert all(after - before == pytest.approx(600) for before, after in pairwise(starts))
