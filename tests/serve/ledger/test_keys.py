"""Keys open what they should, are kept only as hashes, and wrong ones all take the same work."""

from __future__ import annotations

import hmac
import time
from datetime import UTC, datetime

import pytest
from sqlalchemy import text

from noiseproof.errors import BudgetError, SettingError
from noiseproof.serve.ledger import Amount, History, Keys, Ledger, Paid, Refused, Spend
from noiseproof.serve.ledger import keys as module
from noiseproof.serve.ledger.keys import split


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


def test_one_key_more_leaves_a_clients_rights_as_they_are_and_only_a_flag_changes_them(keys):
    old = keys.create("ann", answers=5)
    assert keys.check(keys.create("ann")).answers == 5
    for other in ({"answers": 50}, {"answers": None}, {"operator": True}, {"answers": 5, "period": "day"}):
        with pytest.raises(SettingError, match="--change-rights"):
            keys.create("ann", **other)
    assert keys.check(keys.create("ann", answers=5, operator=False)).answers == 5
    keys.create("ann", answers=50, change_rights=True)
    assert keys.check(old).answers == 50


def test_a_rotated_key_has_the_same_rights_and_the_old_one_ends_at_once_or_after_a_while(keys, monkeypatch):
    first = keys.create("ann", answers=5, operator=True)
    second = keys.rotate(keys.check(first).id)
    assert keys.check(first) is None
    third = keys.rotate(keys.check(second).id, grace=60)
    assert (keys.check(second).client, keys.check(third).answers, keys.check(third).operator) == ("ann", 5, True)
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 61 * 10**9)
    assert keys.check(second) is None
    with pytest.raises(SettingError, match="no live key"):
        keys.rotate(split(second)[0])
    assert keys.check(third) is not None


def test_a_key_expires_for_checks_and_for_spends(keys, database, monkeypatch):
    each = Amount.cost("pure", 0.01)
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=each * 10)
    key = keys.create("ann", expires_at=time.time() + 60)
    id = keys.check(key).id
    ledger.spend(Spend("m", "ann", each, key=id))
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + 61 * 10**9)
    assert keys.check(key) is None
    with pytest.raises(BudgetError, match="expired"):
        ledger.spend(Spend("m", "ann", each, key=id))
    with pytest.raises(SettingError, match="in the future"):
        keys.create("bob", expires_at=1.0)


def test_answers_are_granted_by_client_and_model_and_the_ledger_itself_holds_clients_to_them(keys, database):
    each = Amount.cost("pure", 0.01)
    ledger = Ledger(database)
    for model in ("m", "n"):
        ledger.open(model, release=model, capacity=each * 10)
    ledger.open("alias", release="n", capacity=each * 10)
    keys.create("ann", answers=2)
    with pytest.raises(SettingError, match="--change-rights"):
        keys.create("ann", answers=4, model="alias")
    keys.create("ann", answers=4, model="alias", change_rights=True)
    with pytest.raises(SettingError, match="no model 'x'"):
        keys.create("ann", answers=4, model="x", change_rights=True)
    for model, answers in (("m", 2), ("n", 4)):
        outcomes = ledger.spend_together([Spend(model, "ann", each, limit=each * 9)] * 6)
        assert [type(one) for one in outcomes] == [Paid] * answers + [Refused] * (6 - answers)
        assert ledger.share(model, "ann", each=each)[1].left == each * 0
    assert ledger.share("m", "bob", each=each, limit=each)[1].left == each
    assert all(result.holds for result in History(database).verify())


def test_answers_by_the_month_come_again_and_cost_the_models_budget_all_the_same(keys, database, monkeypatch):
    each = Amount.cost("pure", 0.01)
    ledger, history = Ledger(database), History(database)
    ledger.open("m", release="r", capacity=each * 7)
    keys.create("ann", answers=3, period="month")
    moments = [datetime(2031, month, 28, tzinfo=UTC).timestamp() for month in (1, 2, 3)]
    granted = []
    for moment in moments:
        monkeypatch.setattr(time, "time_ns", lambda moment=moment: int(moment * 1e9))
        outcomes = ledger.spend_together([Spend("m", "ann", each)] * 5)
        granted.append(sum(isinstance(one, Paid) for one in outcomes))
        last = outcomes[-1]
    assert granted == [3, 3, 1]  # the model has no more, whatever the month
    assert last.reason == "model"
    assert ledger.balance("m").left == each * 0
    assert all(result.holds for result in history.verify())


def test_a_refusal_says_that_this_months_answers_are_used_up(keys, database):
    each = Amount.cost("pure", 0.01)
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=each * 7)
    keys.create("ann", answers=2, period="month")
    with pytest.raises(BudgetError, match="your budget of this month covers 2 more"):
        ledger.spend(Spend("m", "ann", each * 3, 3))


def test_the_secret_of_a_clients_inputs_is_the_same_for_all_of_its_keys_and_no_others(keys):
    one, two, other = keys.create("ann"), keys.create("ann"), keys.create("bob")
    secrets = [keys.check(key).secret for key in (one, two, other)]
    assert secrets[0] == secrets[1] != secrets[2]
    assert len(secrets[0]) == 32
    assert "secret" not in keys.check(one).to_json()
    assert str(secrets[0]) not in repr(keys.check(one))


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
