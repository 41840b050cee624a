"""What somebody grants by writing to the database is found, however well the hashes were made to fit."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.exc import DBAPIError

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger import (
    Amount,
    Database,
    History,
    Keys,
    Ledger,
    Promise,
    Spend,
    grants,
    retirement,
    spending,
)
from noiseproof.serve.ledger.database import parse_url
from noiseproof.serve.ledger.records import Entry
from noiseproof.serve.ledger.tables import clients, entries, keys, metadata, models
from tests import untrusted

EACH = Amount.cost("pure", 0.01)


@pytest.fixture
def ledger(database):
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=EACH * 10, weights="w")
    ledger.draw("d", release="r", promise=Promise(1.0, 1e-5, "add-or-remove"))
    ledger.limit_data_set("d", 3.0, 1e-3)
    made = Keys(database)
    made.create("ann", answers=5)
    made.revoke(made.check(made.create("bob", operator=True)).id)
    for _ in range(4):
        ledger.spend(Spend("m", "ann", EACH))
    assert problems(database) == []
    return ledger


def problems(database):
    return [problem for result in History(database).verify() for problem in result.problems]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "noticed"),
    [
        ("UPDATE keys SET revoked_at = NULL", "is not as it was granted"),
        ("UPDATE keys SET hash = salt WHERE client = 'ann'", "is not as it was granted"),
        ("UPDATE keys SET expires_at = 1", "is not as it was granted"),
        ("UPDATE clients SET answers = NULL", "the client ann is not as it was granted"),
        ("UPDATE clients SET operator = 1 WHERE client = 'ann'", "the client ann is not as it was granted"),
        ("UPDATE clients SET period = 'day' WHERE client = 'ann'", "the client ann is not as it was granted"),
        ("INSERT INTO allowances VALUES ('ann', 'm', 99, NULL)", "the allowance ann/m is not as it was granted"),
        ("UPDATE data_sets SET epsilon = 99", "the data set d is not as it was granted"),
        ("UPDATE draws SET epsilon = 0", "is not as it was granted"),
        ("DELETE FROM draws", "a row of draws that was granted is missing"),
        ("INSERT INTO names VALUES ('n', 'm')", "the name n is not as it was granted"),
        ("DELETE FROM names", "a row of names that was granted is missing"),
        ("DELETE FROM weights", "a row of weights that was granted is missing"),
    ],
)
def test_a_right_that_nobody_gave_is_noticed(ledger, database, statement, noticed):
    with database.writing() as connection:
        connection.execute(text(statement))
    assert any(noticed in problem for problem in problems(database))


@pytest.mark.parametrize("statement", ["UPDATE grants SET content = '{}'", "DELETE FROM grants"])
def test_the_database_itself_refuses_to_rewrite_grants(ledger, url, statement):
    engine = create_engine(parse_url(url))
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def _raise_everyone(connection, times=1000):
    """A budget raised by an entry whose hash is true, as the balances are: nothing but the rule against it is broken."""
    row = connection.execute(select(models)).one()
    entry = Entry("m", row.sequence + 1, "forged", "limit", "", 0, (EACH * 10 * times).units, 0)
    hash = entry.hash_after(row.head)
    connection.execute(insert(entries).values(**entry.row(hash)))
    connection.execute(text("UPDATE models SET sequence = sequence + 1, head = :head"), {"head": hash})
    connection.execute(text("UPDATE balances SET capacity = :c WHERE client = ''"), {"c": (EACH * 10 * times).units[0]})


def test_a_hashed_limit_that_raises_the_budget_a_thousand_times_is_found_and_taken_back_at_the_next_start(
    ledger, database
):
    with database.writing() as connection:
        _raise_everyone(connection)
    assert any("raised the model's budget" in problem for problem in problems(database))
    with Database(database.url.render_as_string(hide_password=False)) as again:
        Ledger(again).open("m", release="r", capacity=EACH * 10, weights="w")
        assert Ledger(again).balance("m").left == EACH * 6


def test_hashed_grants_that_revive_a_key_or_repoint_a_name_are_found(ledger, database):
    with database.writing() as connection:
        row = connection.execute(select(keys).where(keys.c.client == "bob")).mappings().one()
        grants.put(connection, keys, {**row, "revoked_at": None}, "revoked_at")
    assert any("took back that the key" in problem for problem in problems(database))


def test_a_client_that_had_more_answers_than_any_right_of_its_ever_was_is_found(ledger, database):
    with database.writing() as connection:
        connection.execute(clients.update().values(answers=None))
    unaware = Ledger(database)  # which has read no rights before
    for _ in range(3):
        unaware.spend(Spend("m", "ann", EACH))

    with database.writing() as connection:
        connection.execute(clients.update().where(clients.c.client == "ann").values(answers=5))
    found = problems(database)
    assert any("gave ann more answers than it ever had a right to" in problem for problem in found)
    assert not any("not as it was granted" in problem for problem in found)


def test_a_ledger_whose_key_was_changed_sells_nothing_again_under_another_name(ledger, database):
    """Releases are known by keyed digests: with another key each would look like one that was never seen."""
    with database.writing() as connection:
        connection.execute(text("UPDATE properties SET value = :key WHERE name = 'key'"), {"key": "00" * 32})
    with pytest.raises(LedgerError, match="key was changed"):
        ledger.open("other", release="r", capacity=EACH * 10, weights="w")
    assert any("the key by which releases are known was changed" in problem for problem in problems(database))


def test_a_retired_model_that_somebody_brings_back_is_found(ledger, database):
    retirement.retire(database, "free")
    assert retirement.retired(database) == {"free"}
    assert problems(database) == []
    with database.writing() as connection:
        connection.execute(text("DELETE FROM retired"))
    assert any("a row of retired that was granted is missing" in problem for problem in problems(database))


def test_triggers_and_rules_and_views_that_are_none_of_a_ledgers_are_found(ledger, database):
    with database.writing() as connection:
        if database.dialect == "sqlite":
            made = ["CREATE TRIGGER evil AFTER INSERT ON entries BEGIN UPDATE balances SET spent = 0; END"]
            made += [
                "CREATE TABLE kept AS SELECT * FROM keys",
                "DROP TABLE keys",
                "CREATE VIEW keys AS SELECT * FROM kept",
            ]
        else:
            body = "LANGUAGE plpgsql AS $$ BEGIN UPDATE balances SET spent = 0; RETURN NULL; END $$"
            made = [f"CREATE FUNCTION evil() RETURNS trigger {body}"]
            made += ["CREATE TRIGGER evil AFTER INSERT ON entries FOR EACH STATEMENT EXECUTE FUNCTION evil()"]
            made += ["CREATE RULE keys AS ON UPDATE TO keys DO INSTEAD NOTHING"]
        for statement in made:
            connection.execute(text(statement))
    found = {problem.partition(" ")[0] for problem in problems(database) if "no part of a ledger" in problem}
    assert found == {"evil", "keys"}


@pytest.mark.parametrize("table", ["entries", "grants"])
def test_insert_or_replace_does_not_rewrite_history(ledger, database, table):
    if database.dialect != "sqlite":
        pytest.skip("REPLACE is SQLite's; PostgreSQL's ON CONFLICT is an update, which is refused")
    engine = create_engine(database.url)
    for verb in ("INSERT OR REPLACE", "REPLACE"):
        with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(text(f"{verb} INTO {table} SELECT * FROM {table} WHERE sequence = 2"))
    columns = "model, 99, receipt, kind, client, answers, units, made_at, hash"
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(f"REPLACE INTO entries SELECT {columns} FROM entries WHERE sequence = 2"))
    engine.dispose()
    assert problems(database) == []


def test_a_guard_that_was_taken_away_or_hollowed_out_is_noticed(ledger, database):
    with database.writing() as connection:
        if database.dialect == "sqlite":
            connection.execute(text("DROP TRIGGER entries_no_update"))
            connection.execute(text("CREATE TRIGGER entries_no_update BEFORE UPDATE ON entries BEGIN SELECT 1; END"))
            connection.execute(text("DROP TRIGGER grants_no_replace"))
            expected = 2
        else:
            connection.execute(text("ALTER TABLE entries DISABLE TRIGGER entries_no_change"))
            connection.execute(text("DROP TRIGGER grants_no_change ON grants"))
            expected = 2
    assert sum("guard" in problem for problem in problems(database)) == expected


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("units", "'nonsense'"),
        ("units", "'[' || replace(hex(zeroblob(50000)), '00', '[')"),
        ("units", "'[-5]'"),
        ("units", "'[1, 2]'"),
        ("units", "'{}'"),
        ("units", "x'ff'"),
        ("answers", "'many'"),
        ("answers", "-3"),
        ("made_at", "1e300"),
        ("client", "x'fffe'"),
        ("client", "CAST(x'fffe' AS TEXT)"),
        ("hash", "12"),
        ("receipt", "x'00'"),
    ],
)
def test_a_row_that_cannot_be_read_is_a_finding_and_no_crash(tmp_path, column, value):
    with Database(str(tmp_path / "ledger.db")) as database:
        ledger = Ledger(database)
        ledger.open("m", release="r", capacity=EACH * 10)
        for _ in range(3):
            ledger.spend(Spend("m", "ann", EACH))
        with database.writing() as connection:
            connection.execute(text("DROP TRIGGER entries_no_update"))
            connection.execute(text(f"UPDATE entries SET {column} = {value} WHERE sequence = 3"))
        assert any("entry 3" in problem for problem in problems(database))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE models SET orders = 'x'",
        "UPDATE models SET measure = 'free'",
        "UPDATE balances SET client = x'ff' WHERE client = 'ann'",
        "INSERT INTO keys VALUES ('k', 'ann', x'ff', 7, 'when', NULL, NULL)",
        "INSERT INTO clients VALUES (x'00', 0, 'all', 0, NULL)",
    ],
)
def test_an_account_or_a_right_that_cannot_be_read_is_a_finding_and_no_crash(tmp_path, statement):
    with Database(str(tmp_path / "ledger.db")) as database:
        Keys(database).create("ann")
        Ledger(database).open("m", release="r", capacity=EACH * 10)
        Ledger(database).spend(Spend("m", "ann", EACH))
        spending.sum_up(database)
        with database.writing() as connection:
            connection.execute(text(statement))
        assert problems(database)


def test_the_chain_of_grants_holds_no_secret_of_a_key(ledger, database):
    with database.reading() as connection:
        chained = json.dumps([list(row) for row in connection.execute(text("SELECT * FROM grants"))])
        kept = connection.execute(text("SELECT salt, hash FROM keys")).all()
    assert kept
    assert not any(part in chained for row in kept for part in row)


COUNTED = ("folded", "rights")
"""How far balances were added up, which tells something only where they do not add up; and how often rights changed."""


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_whatever_cell_is_changed_and_whatever_row_is_taken_out_something_is_found(ledger, database, tmp_path):
    """Of every table that a chain tells of: the first and the last row, each of its cells, and the row as a whole."""
    database.into_one_file()
    file = tmp_path / "ledger.db"
    right = json.loads(untrusted.rows_of(file))
    missed, refused = [], []
    for table in right.keys() - untrusted.UNCHAINED:
        for place in {0, len(right[table]) - 1} if right[table] else ():
            row = right[table][place]
            if row[0] in COUNTED:
                continue
            names = metadata.tables[table].columns.keys()
            others = [
                [*row[:at], another(cell), *row[at + 1 :]] for at, cell in enumerate(row) if names[at] not in COUNTED
            ]
            for other in [*others, None]:
                rows = [*right[table][:place], *([] if other is None else [other]), *right[table][place + 1 :]]
                copy = untrusted.with_rows(file, json.dumps({**right, table: rows}).encode())
                try:
                    with Database(str(copy), create=False) as opened:
                        if not problems(opened):
                            missed.append((table, place, other))
                except LedgerError as error:
                    refused.append(str(error))
    assert missed == []
    assert not [sentence for sentence in refused if "try again" in sentence]


def another(cell):
    """A value of the same type, or a number for none."""
    if cell is None:
        return 7
    return cell + "x" if isinstance(cell, str) else cell + 1
