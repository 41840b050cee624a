"""Keys open what they should, are kept only as hashes, and wrong ones all take the same work."""

from __future__ import annotations

import hmac

import pytest
from sqlalchemy import text

from noiseproof.errors import SettingError
from noiseproof.serve.ledger import Keys
from noiseproof.serve.ledger import keys as module


@pytest.fixture
def keys(database):
    return Keys(database)


def test_a_key_is_its_clients(keys):
    key = keys.create("ann", answers=5)
    caller = keys.check(key)
    assert (caller.client, caller.operator, caller.answers) == ("ann", False, 5)
    assert keys.check(keys.create("ops", operator=True)).operator


def test_wrong_unknown_and_garbled_keys_are_nobodys(keys):
    key = keys.create("ann")
    head, secret = key.rsplit("_", 1)[0], key.rsplit("_", 1)[1]
    other = keys.create("bob")
    for wrong in (
        "",
        "np",
        "np__",
        key[:-1],
        key + "x",
        f"{head}_",
        key.upper(),
        f"np_0000000000000000_{secret}",
        "ü\x00",
    ):
        assert keys.check(wrong) is None
    assert keys.check("_".join([*other.split("_")[:2], *key.split("_")[2:]])) is None


def test_a_revoked_key_is_nobodys_and_the_clients_other_key_still_works(keys):
    one, two = keys.create("ann"), keys.create("ann")
    keys.revoke(keys.check(one).id)
    assert keys.check(one) is None
    assert keys.check(two).client == "ann"
    assert [info.revoked_at is None for info in keys.list()] == [False, True]


def test_what_is_not_there_or_revoked_already_cannot_be_revoked(keys):
    key = keys.check(keys.create("ann")).id
    keys.revoke(key)
    for id in (key, "nonsense"):
        with pytest.raises(SettingError):
            keys.revoke(id)


def test_a_new_key_of_a_client_sets_its_rights_anew(keys):
    old = keys.create("ann", answers=5)
    keys.create("ann", answers=50)
    assert keys.check(old).answers == 50


def test_the_secret_is_not_in_the_database(keys, database):
    secret = keys.create("ann").split("_", 2)[2]
    with database.reading() as connection:
        rows = (
            connection.execute(text("SELECT * FROM keys")).all()
            + connection.execute(text("SELECT * FROM clients")).all()
        )
    assert secret not in str(rows)
    assert secret not in str(keys.list())


def test_every_check_hashes_once_and_compares_once_in_constant_time(keys, monkeypatch):
    key = keys.create("ann")
    revoked = keys.create("bob")
    keys.revoke(keys.check(revoked).id)
    work = []
    real_hash, real_compare = module._hash, hmac.compare_digest
    monkeypatch.setattr(module, "_hash", lambda *given: work.append("hash") or real_hash(*given))
    monkeypatch.setattr(module.hmac, "compare_digest", lambda *given: work.append("compare") or real_compare(*given))
    for given in (key, key[:-1] + "x", "np_0000000000000000_x", "garbage", revoked):
        work.clear()
        keys.check(given)
        assert work == ["hash", "compare"]


@pytest.mark.parametrize("name", ["", " ", "-a", "a b", "a/b", "a\n", "x" * 101, "<script>"])
def test_names_that_could_be_taken_for_something_else_are_refused(keys, name):
    with pytest.raises(SettingError):
        keys.create(name)
    assert keys.list() == []
