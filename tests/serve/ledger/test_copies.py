"""A ledger that was lost, copied or put back sells nothing twice: the bundles that it pays for know better."""

from __future__ import annotations

import json
import os
import shutil
import stat

import pytest
from sqlalchemy import text

from noiseproof.errors import LedgerError, SettingError
from noiseproof.serve.ledger import (
    Amount,
    Binding,
    Database,
    History,
    Keys,
    Ledger,
    Spend,
    backup,
    recover,
    restore,
)
from noiseproof.serve.ledger.accounts import AccountTransaction
from noiseproof.serve.ledger.copies import LOST

EACH = Amount.cost("gdp", 0.01)


@pytest.fixture
def bundle(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    return folder


def open_bound(database, bundle, capacity=EACH * 100):
    """A ledger as a service opens it for a bundle."""
    binding = Binding(bundle, Ledger(database).id)
    with database.reading() as connection:
        binding.check(connection)
    Ledger(database).open("m", release="r", capacity=capacity, weights="w")
    ledger = Ledger(database, {"m": [binding]})
    ledger.note()
    return ledger


def spend(ledger, times, client="ann"):
    for _ in range(times):
        ledger.spend(Spend("m", client, EACH))


def noted(bundle):
    return json.loads((bundle / "ledger.json").read_text())


def test_a_backup_of_a_ledger_in_use_has_every_spend_verifies_and_spends_nothing(database, bundle, tmp_path):
    ledger = open_bound(database, bundle)
    Keys(database).create("ann", answers=50)
    spend(ledger, 7)
    out = tmp_path / "backup.db"
    assert backup(database, out) == 9
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(one.name for one in tmp_path.iterdir() if one.name.startswith("backup")) == ["backup.db"]
    with Database(str(out), create=False) as copy:
        assert Ledger(copy).balance("m").spent == EACH * 7
        assert all(result.holds for result in History(copy).verify())
        with pytest.raises(LedgerError, match="this is a backup"):
            Ledger(copy).open("m", release="r", capacity=EACH * 100)


def test_a_copied_file_lacks_what_is_not_in_it_yet_and_is_not_served(tmp_path, bundle):
    file = tmp_path / "ledger.db"
    with Database(str(file)) as database:
        open_bound(database, bundle)
    with Database(str(file)) as database:
        spend(open_bound(database, bundle), 60)
        shutil.copy(file, tmp_path / "copy.db")  # without what SQLite keeps beside it
    with Database(str(tmp_path / "copy.db"), create=False) as copied:
        assert Ledger(copied).balance("m").spent == EACH * 0
        assert all(result.holds for result in History(copied).verify())
        with pytest.raises(LedgerError, match="it is an older copy, or was rewritten"):
            open_bound(copied, bundle)


def test_what_a_bundle_notes_is_never_less_than_what_was_spent_and_little_more(database, bundle):
    ledger = open_bound(database, bundle, EACH * 640)
    for spent in range(1, 60):
        spend(ledger, 1)
        assert spent * EACH.units[0] <= noted(bundle)["at_most"][0] <= (spent + 10) * EACH.units[0]


def test_a_restored_ledger_counts_what_was_spent_since_the_backup(database, bundle, tmp_path):
    ledger = open_bound(database, bundle)
    spend(ledger, 10)
    backup(database, tmp_path / "backup.db")
    spend(ledger, 30, "bob")
    with pytest.raises(LedgerError, match="nobody knows what was spent of m since"):
        restore(str(tmp_path / "backup.db"), str(tmp_path / "new.db"), [])
    counted = restore(str(tmp_path / "backup.db"), str(tmp_path / "new.db"), [bundle])
    with Database(str(tmp_path / "new.db"), create=False) as new:
        again = open_bound(new, bundle)
        spent = again.balance("m").spent.units[0]
        assert 40 * EACH.units[0] <= spent <= 42 * EACH.units[0]
        assert counted == {"m": [again.balance("m", LOST).spent.to_json()["amounts"][0]]}
        spend(again, (EACH * 100).units[0] // EACH.units[0] - -(-spent // EACH.units[0]))
        assert all(result.holds for result in History(new).verify())


def test_a_ledger_put_back_by_other_means_is_refused_until_it_is_recovered(tmp_path, bundle):
    file, kept = tmp_path / "ledger.db", tmp_path / "kept.db"
    with Database(str(file)) as database:
        spend(open_bound(database, bundle), 5)
        database.into_one_file()
    shutil.copy(file, kept)
    with Database(str(file)) as database:
        spend(open_bound(database, bundle), 40)
    for suffix in ("", "-wal", "-shm"):
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    shutil.copy(kept, file)
    with Database(str(file)) as database:
        with pytest.raises(LedgerError, match="older copy"):
            open_bound(database, bundle)
        recover(database, [bundle])
        assert open_bound(database, bundle).balance("m").spent.units[0] >= 45 * EACH.units[0]
        assert recover(database, [bundle])  # once more costs what is noted ahead, and no more
        assert open_bound(database, bundle).balance("m").spent.units[0] <= 49 * EACH.units[0]


def test_an_older_copy_is_refused_also_where_all_that_was_spent_since_was_noted_ahead(tmp_path, bundle):
    """Of a large budget thousands of answers are noted ahead: a service notes every few seconds, and at its end, where it is."""
    file, kept = tmp_path / "ledger.db", tmp_path / "kept.db"
    with Database(str(file)) as database:
        spend(open_bound(database, bundle, EACH * 6400), 5)
        database.into_one_file()
    shutil.copy(file, kept)
    with Database(str(file)) as database:
        ledger = open_bound(database, bundle, EACH * 6400)
        spend(ledger, 20)
        ledger.note()
        most = noted(bundle)["at_most"]
        assert 25 * EACH.units[0] <= most[0]
        database.into_one_file()
    with Database(str(kept), create=False) as older, pytest.raises(LedgerError, match="it is an older copy"):
        open_bound(older, bundle, EACH * 6400)
    with Database(str(file), create=False) as database:
        open_bound(database, bundle, EACH * 6400)
    assert noted(bundle)["at_most"] == most


def test_a_note_never_says_less_than_one_before_it(database, bundle):
    """Workers note in turns, each what it knows, and one may be late."""
    ledger = open_bound(database, bundle, EACH * 640)
    binding = Binding(bundle, ledger.id)
    with database.reading() as connection:
        account = AccountTransaction.read(connection, ["m"])()["m"]
    spend(ledger, 30)
    ledger.note()
    before = noted(bundle)
    binding.keep_up("m", account.sequence, account.head, account.everyone)
    assert noted(bundle) == before


def test_a_ledger_moves_to_another_database_whole(database, tmp_path):
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=EACH * 10, weights="w")
    key = Keys(database).create("ann", answers=3)
    spend(ledger, 2)
    backup(database, tmp_path / "backup.db")
    assert restore(str(tmp_path / "backup.db"), str(tmp_path / "new.db"), [], nothing_since=True) == {}
    with Database(str(tmp_path / "new.db"), create=False) as new:
        assert Keys(new).check(key).answers == 3
        assert Ledger(new).id == ledger.id
        assert Ledger(new).open("n", release="r", capacity=EACH * 10, weights="w") == "m"
        assert list(History(new).export()) == list(History(database).export())
        assert all(result.holds for result in History(new).verify())
    with pytest.raises(SettingError, match="already"):
        restore(str(tmp_path / "backup.db"), str(tmp_path / "new.db"), [], nothing_since=True)


def test_a_backup_moves_into_postgresql(url, tmp_path):
    with Database(str(tmp_path / "old.db")) as old:
        Ledger(old).open("m", release="r", capacity=EACH * 10)
        spend(Ledger(old), 2)
        backup(old, tmp_path / "backup.db")
    restore(str(tmp_path / "backup.db"), url, [], nothing_since=True)
    with Database(url, create=False) as new:
        spend(Ledger(new), 8)
        assert Ledger(new).balance("m").left == EACH * 0
        assert all(result.holds for result in History(new).verify())


def test_a_ledger_that_does_not_hold_is_neither_backed_up_nor_restored(tmp_path):
    with Database(str(tmp_path / "ledger.db")) as database:
        Ledger(database).open("m", release="r", capacity=EACH * 10)
        with pytest.raises(LedgerError, match="is no backup"):
            restore(str(tmp_path / "ledger.db"), str(tmp_path / "new.db"), [])
        backup(database, tmp_path / "good.db")
        with database.writing() as connection:
            connection.execute(text("UPDATE balances SET capacity = 2 * capacity"))
        with pytest.raises(LedgerError, match="does not hold"):
            backup(database, tmp_path / "bad.db")
        assert not (tmp_path / "bad.db").exists()
    with Database(str(tmp_path / "good.db")) as copy, copy.writing() as connection:
        connection.execute(text("UPDATE balances SET capacity = 2 * capacity"))
    with pytest.raises(LedgerError, match="the backup does not hold"):
        restore(str(tmp_path / "good.db"), str(tmp_path / "new.db"), [], nothing_since=True)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("gone", ["", "-wal"])
def test_a_ledger_that_is_removed_while_it_is_used_is_noticed_at_the_next_spend(tmp_path, gone):
    with Database(str(tmp_path / "ledger.db")) as database:
        ledger = Ledger(database)
        ledger.open("m", release="r", capacity=EACH * 10)
        spend(ledger, 1)
        os.unlink(tmp_path / f"ledger.db{gone}")
        for _ in range(2):
            with pytest.raises(LedgerError, match="removed or replaced"):
                spend(ledger, 1)


def test_an_older_copy_that_takes_a_ledgers_place_is_noticed_at_the_next_spend(database):
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=EACH * 10)
    spend(ledger, 3)
    with database.writing() as connection:  # what a database server that was put back shows
        connection.execute(text("UPDATE models SET sequence = 2"))
    with pytest.raises(LedgerError, match="behind what was spent"):
        spend(ledger, 1)


def test_a_bundle_is_paid_for_by_one_ledger(tmp_path, bundle):
    with Database(str(tmp_path / "one.db")) as one, Database(str(tmp_path / "two.db")) as two:
        open_bound(one, bundle)
        with pytest.raises(LedgerError, match="another ledger"):
            open_bound(two, bundle)
        with pytest.raises(LedgerError, match="another ledger"):
            recover(two, [bundle])


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"ledger": 1}', '{"ledger": "x", "sequence": "1"}', '{"ledger": "x", "more": 1}'],
)
def test_a_bundles_note_that_cannot_be_read_is_refused_in_one_sentence(tmp_path, bundle, content):
    (bundle / "ledger.json").write_text(content)
    with Database(str(tmp_path / "one.db")) as database, pytest.raises(LedgerError, match="cannot be read"):
        open_bound(database, bundle)


def test_a_bundle_that_cannot_be_written_to_is_refused_since_nothing_would_bind_it(database, bundle, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write to all but read-only disks
    with pytest.raises(LedgerError, match="cannot be written to"):
        open_bound(database, bundle)


def test_a_bundle_is_refused_another_account_than_the_one_that_it_noted(database, bundle):
    """As when somebody made the ledger forget the release, so that it opens an account anew."""
    spend(open_bound(database, bundle), 3)
    binding = Binding(bundle, Ledger(database).id)
    binding.check_account("m")
    with pytest.raises(LedgerError, match="would sell answers again"):
        binding.check_account("other")


def test_nothing_is_released_when_the_bundle_cannot_be_written_to(database, bundle, monkeypatch):
    ledger = open_bound(database, bundle)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("noiseproof.serve.ledger.bindings.write_whole", full)
    with pytest.raises(LedgerError, match=r"No space left.*nothing was released"):
        spend(ledger, 5)


def test_ledgers_and_what_lies_beside_them_are_their_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        with Database(str(tmp_path / "ledger.db")) as database:
            Ledger(database).open("m", release="r", capacity=EACH)
            modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"ledger.db": 0o600, "ledger.db-wal": 0o600, "ledger.db-shm": 0o600}
