"""A database is brought to the newest version with all that is in it, and its errors are sentences without secrets."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

from noiseproof.errors import BudgetError, LedgerError, SettingError
from noiseproof.serve.ledger import Amount, Answers, Database, History, Keys, Ledger, Retry, Spend, retirement, spending
from noiseproof.serve.ledger.database import LedgerAwayError, LedgerUnsureError, parse_url
from noiseproof.serve.ledger.statements import Statement
from noiseproof.serve.ledger.tables import VERSION
from noiseproof.serve.ledger.tables import version as version_of

EACH = Amount.cost("pure", 0.01)


def test_a_ledger_that_version_0_1_made_opens_with_all_that_is_in_it(tmp_path):
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as old:
        old.executescript((Path(__file__).parent / "ledger-0.1.sql").read_text())
    key, each = "np_1cc084970bced752_oHNF164eKw8yJv7FlLopfOS8paEOT3f1SD6sYEnMzyM", Amount.cost("gdp", 0.01)
    with Database(str(file)) as opened:
        assert Keys(opened).check(key).answers == 7
        assert Answers(opened).known("m", "ann", ["q"]) == {"q": "known"}
        ledger = Ledger(opened)
        assert ledger.balance("m").left == each * 7
        retried = ledger.spend_together([Spend("m", "ann", each * 3, 3, retry=Retry("k", "what?"))])[0]
        assert (retried.answer, retried.receipt.id) == ("first", "1308a71067224f74afaa5e5f27670be0")
        ledger.spend(Spend("m", "ann", each * 4, 4))
        with pytest.raises(BudgetError, match="your budget covers 0 more"):
            ledger.spend(Spend("m", "ann", each, 1))
        ledger.spend(Spend("m", "bob", each * 3, 3))
        with pytest.raises(BudgetError, match="the model's budget covers 0 more"):
            ledger.spend(Spend("m", "bob", each, 1))
        assert ledger.open("other name", release="new", capacity=each * 10, weights="0" * 64) == "m"
        (result,) = History(opened).verify(noted="60601b900a0675fa9959db3afbf4d9f6f9ad18b486110218afb18fd91bf06be4")
        assert result.holds


def test_a_ledger_of_version_5_opens_with_all_that_is_in_it_and_its_grants_are_chained(tmp_path):
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as old:
        old.executescript((Path(__file__).parent / "ledger-5.sql").read_text())
    live = "np_92db8232efef6222_b3Uyu4yBV__t04-w7disQi_yjDxY98L_R8GdV0wn9Uw"
    revoked = "np_cd2d4c1ae372f819_fA7XFKVPHf_mWIkRqxZbY3LxsRCgRhnhk80uxVv4wNs"
    each = Amount.cost("gdp", 0.01)
    with Database(str(file), create=False) as opened:
        assert (Keys(opened).check(live).answers, Keys(opened).check(revoked)) == (7, None)
        ledger, history = Ledger(opened), History(opened)
        assert ledger.open("third", release="r", capacity=each * 10, weights="w") == "m"
        assert ledger.spend_together([Spend("m", "ann", each * 3, 3, retry=Retry("k", "what?"))])[0].answer == "first"
        assert sum(answers for _, answers in history.spending("m", 10 * 365 * 86400.0, 10)) == 3
        ledger.spend(Spend("m", "bob", each * 7, 7))
        noted = "e7cade75af69fc480a4633fed44774e0a4e0624b809d714056c52a36ab0a2bf9"
        assert all(result.holds for result in history.verify(noted))
        with opened.writing() as connection:
            connection.execute(text("UPDATE keys SET revoked_at = NULL"))
        assert any("not as it was granted" in problem for one in history.verify() for problem in one.problems)


def test_what_version_6_summed_up_with_its_spends_is_not_summed_up_again(url):
    with Database(url) as old:
        ledger = Ledger(old)
        ledger.open("m", release="r", capacity=EACH * 3)
        ledger.spend(Spend("m", "ann", EACH))
        spending.sum_up(old)
        with old.writing() as connection:
            connection.execute(text("DELETE FROM spending WHERE span = 'summed'"))
            connection.execute(text("UPDATE version SET version = 6"))
    with Database(url) as new:
        history = History(new)
        assert sum(answers for _, answers in history.spending("m", 3600, 6)) == 1
        assert not spending.sum_up(new)
        Ledger(new).spend(Spend("m", "ann", EACH))
        spending.sum_up(new)
        assert sum(answers for _, answers in history.spending("m", 3600, 6, "ann")) == 2


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_an_older_ledger_is_migrated_with_all_that_is_in_it(url, version):
    with Database(url) as old:
        Ledger(old).open("m", release="r", capacity=EACH * 3)
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        for name in ("retired", "anchors", "grants", "spending", "weights", "allowances"):
            connection.execute(text(f"DROP TABLE {name}"))
        for table, column in (("keys", "expires_at"), ("clients", "period")):
            connection.execute(text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        late = [["keys", "clients"], ["retries", "repeats"], ["names", "data_sets", "draws", "properties"]]
        late.append(["draw_units"])
        for table in late[version - 1 :]:
            for name in table:
                connection.execute(text(f"DROP TABLE {name}"))
        connection.execute(text(f"UPDATE version SET version = {version}"))
    assert version_of(engine) == version
    with Database(url) as new:
        assert version_of(engine) == VERSION
        Keys(new).create("ann")
        Ledger(new).spend(Spend("m", "ann", EACH))
        assert Ledger(new).balance("m").left == EACH * 2
        assert all(result.holds for result in History(new).verify())
    engine.dispose()


def test_models_that_were_retired_before_version_8_stay_retired_and_are_chained(url):
    with Database(url) as old, old.writing() as connection:
        connection.execute(text("INSERT INTO properties VALUES ('retired free', '1700000000000000')"))
        connection.execute(text("DROP TABLE retired"))
        connection.execute(text("UPDATE version SET version = 7"))
    with Database(url) as new:
        assert retirement.retired(new) == {"free"}
        with new.writing() as connection:
            connection.execute(text("DELETE FROM retired"))
        assert not History(new).verify()[-1].holds


def test_a_ledger_of_a_newer_version_is_refused_and_left_alone(url):
    Database(url).close()
    engine = create_engine(parse_url(url))
    with engine.begin() as connection:
        connection.execute(text("UPDATE version SET version = 99"))
    with pytest.raises(LedgerError, match="version 99"):
        Database(url)
    assert version_of(engine) == 99
    engine.dispose()


def test_an_empty_database_becomes_a_ledger_only_where_one_is_meant_to_be_made(url):
    with pytest.raises(LedgerError, match="ledger init"):
        Database(url, create=False)
    Database(url).close()
    Database(url, create=False).close()


def test_many_may_open_an_empty_database_at_once(url):
    errors = []

    def open_it():
        try:
            with Database(url) as database:
                Ledger(database).open("m", release="r", capacity=EACH)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", "sqlite://", "sqlite:///:memory:", "://", "postgresql://u:secret@h:port/x"]
)
def test_what_is_no_database_for_a_ledger_is_refused_without_its_password(url):
    with pytest.raises(SettingError) as caught:
        Database(url)
    assert "secret" not in str(caught.value)


def test_a_file_in_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingError, match="does not exist"):
        Database(str(tmp_path / "no" / "ledger.db"))


def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to be looked at. " * 10)
    before = file.read_bytes()
    with pytest.raises(LedgerError):
        Database(str(file))
    assert file.read_bytes() == before


def test_a_server_that_does_not_answer_is_said_so_without_the_password():
    with pytest.raises(LedgerError) as caught:
        Database("postgresql://user:secret@127.0.0.1:1/none")
    assert "secret" not in str(caught.value)
    assert "nothing was released" in str(caught.value)


def test_a_plain_path_is_a_sqlite_file_whose_commits_are_flushed_after_the_lock_is_released(tmp_path, monkeypatch):
    file = tmp_path / "ledger.db"
    flushed = []

    def note(descriptor):
        assert os.fstat(descriptor).st_ino == (tmp_path / "ledger.db-wal").stat().st_ino
        with sqlite3.connect(file, timeout=0) as other:  # which fails while somebody holds the lock
            other.execute("BEGIN IMMEDIATE")
        other.close()
        flushed.append(descriptor)

    with Database(str(file)) as database:
        with database.reading() as connection:
            assert connection.execute(text("PRAGMA journal_mode")).scalar_one() == "wal"
            assert (
                connection.execute(text("PRAGMA synchronous")).scalar_one() == 1
            )  # NORMAL: a whole file after anything
        monkeypatch.setattr("noiseproof.serve.ledger.database._to_disk", note)
        with database.writing():
            assert flushed == []
        assert len(flushed) == 1


def test_a_commit_that_cannot_be_brought_to_disk_is_no_commit_to_rely_on(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    with Database(str(tmp_path / "ledger.db")) as database:
        monkeypatch.setattr("noiseproof.serve.ledger.database._to_disk", fail)
        with pytest.raises(LedgerError, match="cannot be brought to disk"), database.writing():
            pass


@pytest.mark.parametrize("together", [False, True])
def test_a_commit_to_postgresql_is_in_the_log_on_disk_when_the_block_ends(postgres, together):
    with Database(postgres.get_uri()) as database:
        for _ in range(3):
            with database.writing(together=together) as connection:
                Statement("INSERT INTO properties VALUES (md5(CAST(random() AS text)), 'x')").run(connection)
                ((written,),) = Statement("SELECT CAST(pg_current_wal_insert_lsn() AS text)").run(connection)
            with database.reading() as connection:
                on_disk = text("SELECT pg_current_wal_flush_lsn() >= CAST(:written AS pg_lsn)")
                assert connection.execute(on_disk, {"written": written}).scalar_one()


def test_a_server_is_not_blamed_for_what_is_worked_out_while_it_flushes(postgres):
    with Database(postgres.get_uri(), deadline=0.8) as database:
        ledger = Ledger(database)
        name = ledger.open("slow answers", release="slow", capacity=EACH * 3)
        before = ledger.balance(name).spent
        ledger.spend_together([Spend(name, "ann", EACH)], lambda _: threading.Event().wait(2.0))
        assert ledger.balance(name).spent == before + EACH


@pytest.mark.parametrize("together", [False, True])
def test_a_flush_that_fails_leaves_no_connection_that_commits_half_of_a_transaction(postgres, monkeypatch, together):
    """It was left in autocommit."""

    def write_half(then):
        with database.writing(together=then) as connection:
            Statement("INSERT INTO properties VALUES ('half', 'x')").run(connection)
            raise ZeroDivisionError

    with Database(postgres.get_uri()) as database:
        with monkeypatch.context() as broken:
            broken.setattr("noiseproof.serve.ledger.database._FLUSH", "SELECT 1 / 0")
            with pytest.raises(LedgerError), database.writing(together=together):
                pass
        for then in (False, True):
            with pytest.raises(ZeroDivisionError):
                write_half(then)
        with database.reading() as connection:
            assert not connection.execute(text("SELECT name FROM properties WHERE name = 'half'")).all()


def test_statements_sent_together_are_prepared_once_also_where_one_fails_or_a_transaction_is_undone(postgres):
    prepared = Statement("SELECT COUNT(*) FROM pg_prepared_statements")

    def count():
        with database.writing(together=True) as connection:
            ((found,),) = prepared.run(connection)
        return found

    with Database(postgres.get_uri()) as database:
        first = [count() for _ in range(3)][1:]
        for name in ("a\0b", "a", "b"):
            with pytest.raises(LedgerError), database.writing(together=True) as connection:
                Statement("INSERT INTO properties VALUES (:name, NULL)").run(connection, name=name)
        with pytest.raises(ZeroDivisionError), database.reading():
            raise ZeroDivisionError
        assert [count() for _ in range(3)][1:] == first
        assert first[0] == first[1]
        with database._writer.connect() as connection:
            assert not connection.connection.driver_connection.closed


@pytest.mark.slow
def test_spends_whose_connection_is_cut_at_any_moment_are_made_once(postgres):
    schema = "cut"
    with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
    over, paid, cut = threading.Event(), [], 0

    def cut_connections():
        with psycopg.connect(postgres.get_uri(), autocommit=True) as connection:
            while not over.wait(0.05):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'noiseproof'"
                )

    with Database(f"{postgres.get_uri()}&options=-csearch_path%3D{schema}", deadline=10.0) as database:
        ledger = Ledger(database)
        ledger.open("m", release="r", capacity=EACH * 10**6)
        cutting = threading.Thread(target=cut_connections)
        cutting.start()
        tried = None
        while cut < 40:
            try:
                (outcome,) = ledger.spend_together([Spend("m", "ann", EACH, tried=tried)])
                paid.append(outcome.receipt.id)
                tried = None
            except LedgerUnsureError as error:
                cut += 1
                tried = error.outcomes[0].receipt
            except LedgerAwayError:
                cut += 1
        over.set()
        cutting.join()
        if tried is not None:
            paid.append(ledger.spend_together([Spend("m", "ann", EACH, tried=tried)])[0].receipt.id)
        kept = [line["receipt"] for line in History(database).export() if line["kind"] == "spend"]
        assert sorted(paid) == sorted(kept)
        assert all(result.holds for result in History(database).verify())


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("postgresql://someone@127.0.0.1:1/none", "nothing listens at its address"),
        ("postgresql://someone@nowhere.invalid/none", "its host's name is not known"),
    ],
)
def test_why_a_ledger_cannot_be_used_is_said_in_words_that_an_operator_can_act_on(address, reason):
    with pytest.raises(LedgerAwayError, match=reason):
        Database(address)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_database_that_there_is_not_is_told_from_one_that_is_away(url):
    elsewhere = url.replace("/postgres?", "/none?")
    assert elsewhere != url
    with pytest.raises(LedgerAwayError, match="there is no such database or role"):
        Database(elsewhere)
