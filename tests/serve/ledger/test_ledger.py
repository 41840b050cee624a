"""A ledger cannot be overdrawn: by one or by many, at once or in turn, in SQLite or in PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import threading

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from noiseproof.errors import BudgetError, LedgerError, SettingError
from noiseproof.serve.ledger import (
    Amount,
    Balance,
    Database,
    History,
    Keys,
    Ledger,
    Paid,
    Promise,
    Refused,
    Retry,
    Spend,
)
from noiseproof.serve.ledger.database import parse_url

EACH = Amount.cost("pure", 0.01)


@pytest.fixture
def ledger(database):
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=EACH * 10)
    return ledger


def spend(answers=1, client="ann", **more):
    return Spend("m", client, EACH * answers, answers, **more)


def test_spends_add_up_and_the_last_that_fits_is_granted(ledger):
    for answers in (3, 6, 1):
        ledger.spend(spend(answers))
    assert ledger.balance("m").spent == EACH * 10
    with pytest.raises(BudgetError, match="1 answers were asked for and the model's budget covers 0 more"):
        ledger.spend(spend(1))
    assert ledger.balance("m").spent == EACH * 10


def test_what_does_not_fit_is_refused_whole_and_what_fits_after_it_is_granted(ledger):
    ledger.spend(spend(7))
    with pytest.raises(BudgetError, match="covers 3 more"):
        ledger.spend(spend(4))
    ledger.spend(spend(3))


def test_clients_spend_from_one_budget_together_because_they_may_collude(ledger):
    ledger.spend(spend(6, "ann"))
    with pytest.raises(BudgetError, match="the model's budget covers 4 more"):
        ledger.spend(spend(5, "bob"))
    ledger.spend(spend(4, "bob"))
    assert {client: balance.spent for client, balance in ledger.balances("m").items()} == {
        "": EACH * 10,
        "ann": EACH * 6,
        "bob": EACH * 4,
    }


def test_a_client_never_spends_more_than_its_own_limit(ledger):
    ledger.spend(spend(2, limit=EACH * 3))
    with pytest.raises(BudgetError, match="your budget covers 1 more"):
        ledger.spend(spend(2, limit=EACH * 3))
    assert ledger.balance("m", "ann").left == EACH


def test_a_limit_can_be_raised_and_lowered_and_lowering_takes_nothing_back(ledger):
    ledger.spend(spend(3, limit=EACH * 3))
    ledger.spend(spend(2, limit=EACH * 6))
    with pytest.raises(BudgetError, match="your budget covers 0 more"):
        ledger.spend(spend(1, limit=EACH * 2))
    ledger.spend(spend(1, limit=EACH * 7))
    assert ledger.balance("m", "ann").capacity == EACH * 7
    assert [result.problems for result in History(ledger.database).verify()] == [[]]


def test_spends_made_together_are_granted_or_refused_each_on_its_own_in_order(ledger):
    outcomes = ledger.spend_together([spend(6, "ann"), spend(5, "bob"), spend(4, "cid"), spend(1, "dan")])
    assert [type(outcome) for outcome in outcomes] == [Paid, Refused, Paid, Refused]
    assert [outcome.everyone.left for outcome in outcomes] == [EACH * 4, EACH * 4, EACH * 0, EACH * 0]


def test_a_spend_is_committed_and_keeps_nobody_waiting_while_its_answer_is_worked_out(ledger, url):
    """A server must have been told to commit, and to flush, before anything else is done."""
    others = []

    def work_out(outcomes):
        assert [type(outcome) for outcome in outcomes] == [Paid]
        with Database(url) as database:
            others.append(Ledger(database).spend(spend(2, client="bob")))

    (paid,) = ledger.spend_together([spend(1)], work_out)
    assert others[0].entry.sequence == paid.receipt.entry.sequence + 2  # bob's limit is an entry too
    assert ledger.balance("m").spent == EACH * 3


def test_several_models_have_budgets_of_their_own(ledger):
    ledger.open("n", release="s", capacity=Amount("rdp", (5, 50), (2.0, 8.0)))
    cost = Amount("rdp", (1, 11), (2.0, 8.0))
    outcomes = ledger.spend_together([Spend("n", "ann", cost, 1), spend(10)] + [Spend("n", "ann", cost, 1)] * 4)
    assert [type(outcome) for outcome in outcomes] == [Paid] * 5 + [Refused]
    assert ledger.balance("n").spent.units == (4, 44)
    assert [account.model for account in History(ledger.database).accounts()] == ["m", "n"]


def test_receipts_tell_what_was_spent_and_are_in_the_history(ledger):
    receipts = [ledger.spend(spend(answers)) for answers in (1, 2)]
    history = {line["receipt"]: line for line in History(ledger.database).export()}
    for receipt in receipts:
        line = history[receipt.id]
        assert line["hash"] == receipt.hash
        assert line["answers"] == receipt.entry.answers == receipt.to_json()["answers"]
    assert sum((receipt.amount for receipt in receipts), start=EACH * 0) == ledger.balance("m").spent


def test_an_account_that_is_there_keeps_what_was_spent(ledger, url):
    ledger.spend(spend(4))
    with Database(url) as again:
        assert Ledger(again).open("m", release="r", capacity=EACH * 10) == "m"
        assert Ledger(again).balance("m").left == EACH * 6
        # Not even a larger capacity is taken over: the release's promise is for the first one.
        Ledger(again).open("m", release="r", capacity=EACH * 99)
        assert Ledger(again).balance("m").left == EACH * 6


def test_a_release_has_one_account_under_whatever_names_and_the_smaller_capacity(ledger):
    assert ledger.open("again", release="r", capacity=EACH * 10) == "m"
    ledger.spend(spend(4))
    ledger.open("other", release="r", capacity=EACH * 6)
    assert ledger.balance("m").left == EACH * 2
    ledger.open("third", release="r", capacity=EACH * 3)  # less than was spent: nothing is left, nothing taken back
    assert ledger.balance("m") == Balance(EACH * 4, EACH * 4)
    assert [account.model for account in History(ledger.database).accounts()] == ["m"]
    assert [result.problems for result in History(ledger.database).verify()] == [[]]


def test_a_name_is_not_taken_over_by_another_release_nor_an_account_by_another_measure(ledger):
    with pytest.raises(LedgerError, match="another release"):
        ledger.open("m", release="other", capacity=EACH * 10)
    ledger.open("n", release="other", capacity=EACH * 10)
    with pytest.raises(LedgerError, match="another release"):
        ledger.open("n", release="r", capacity=EACH * 10)
    with pytest.raises(LedgerError, match="another measure"):
        ledger.open("m", release="r", capacity=Amount.capacity("gdp", 1))


def test_only_a_keyed_digest_of_a_fingerprint_is_kept_shown_exported_or_hashed(ledger, tmp_path):
    """Whoever guesses the records, and so the fingerprint, finds nothing to compare the guess with."""
    ledger.spend(spend(1))
    history = History(ledger.database)
    shown = json.dumps([*history.export(), *(account.to_json() for account in history.accounts())])
    chain = {"model": "m", "release": "r", "measure": "pure", "orders": []}
    origin = hashlib.sha256(json.dumps(chain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert origin not in shown
    with Database(str(tmp_path / "other.db")) as other:
        Ledger(other).open("m", release="r", capacity=EACH * 10)
        assert History(other).accounts()[0].release != history.accounts()[0].release


def test_releases_of_a_data_set_add_up_and_are_refused_beyond_its_limit(ledger):
    for release in ("one", "one", "two"):  # one is served twice
        balance = ledger.draw("d", release=release, promise=Promise(1.0, 1e-5, "add-or-remove"))
    assert balance.total == pytest.approx((2.0, 2e-5))
    warning = balance.to_json()["warning"]
    assert "2 releases of the data set d promise epsilon 2 at delta 2e-05 for one record together" in warning
    with pytest.raises(BudgetError, match="no limit was set"):
        ledger.limit_data_set("d", 1.5, 1e-3)
    ledger.limit_data_set("d", 3.0, 1e-3)
    ledger.draw("d", release="three", promise=Promise(1.0, 1e-5, "add-or-remove"))
    for promise in (Promise(0.1, 0.0, "add-or-remove"), Promise(None, 0.0, "add-or-remove")):
        with pytest.raises(BudgetError, match="of a budget of epsilon 3"):
            ledger.draw("d", release="four", promise=promise)
    assert ledger.data_set("d").total == pytest.approx((3.0, 3e-5))
    assert ledger.data_set("other").total == (0.0, 0.0)


def test_promises_for_a_record_and_for_a_person_never_add_up_silently(ledger):
    balance = ledger.draw("d", release="one", promise=Promise(1.0, 1e-5, "add-or-remove", "person"))
    assert (balance.unit, balance.total) == ("person", (1.0, 1e-5))
    balance = ledger.draw("d", release="two", promise=Promise(1.0, 1e-5, "add-or-remove"))
    assert balance.unit is None
    assert balance.to_json()["epsilon"] is None
    assert "some are for one record and others for one person" in balance.to_json()["warning"]
    ledger.draw("limited", release="three", promise=Promise(1.0, 1e-5, "add-or-remove", "person"))
    ledger.limit_data_set("limited", 100.0, 1e-3)
    with pytest.raises(BudgetError, match="others for one person"):
        ledger.draw("limited", release="four", promise=Promise(1.0, 1e-5, "add-or-remove"))
    assert ledger.data_set("limited").total == (1.0, 1e-5)


def test_promises_for_exchanged_and_for_added_records_are_stated_for_exchanged_ones(ledger):
    ledger.draw("d", release="one", promise=Promise(1.0, 1e-5, "add-or-remove"))
    balance = ledger.draw("d", release="two", promise=Promise(1.0, 1e-5, "replace-one"))
    assert balance.neighbours == "replace-one"
    assert balance.total == pytest.approx((3.0, 1e-5 * (2 + math.e)))
    with pytest.raises(SettingError, match="finite epsilon"):
        ledger.limit_data_set("d", math.inf, 0.0)


def test_a_budget_beyond_counting_is_refused(ledger):
    with pytest.raises(SettingError, match="no promise"):
        ledger.open("big", release="big", capacity=Amount.capacity("pure", 1e7))


def test_an_account_that_is_not_there_is_said_so(ledger):
    with pytest.raises(SettingError, match="no account 'x'"):
        ledger.spend(Spend("x", "ann", EACH))
    with pytest.raises(SettingError, match="no account 'x'"):
        ledger.balance("x")


def test_a_revoked_key_spends_nothing(ledger):
    keys = Keys(ledger.database)
    key = keys.check(keys.create("ann")).id
    ledger.spend(spend(1, key=key))
    keys.revoke(key)
    with pytest.raises(BudgetError, match="revoked"):
        ledger.spend(spend(1, key=key))
    assert ledger.balance("m").spent == EACH


def test_a_retry_is_paid_for_once(ledger):
    retry = Retry("k", "what?")
    first, second = (ledger.spend_together([spend(2, retry=retry)])[0] for _ in range(2))
    assert second.repeated
    assert second.receipt == first.receipt
    assert ledger.balance("m").spent == EACH * 2


def test_a_retry_within_one_transaction_is_paid_for_once(ledger):
    retry = Retry("k", "what?")
    first, second = ledger.spend_together([spend(2, retry=retry), spend(2, retry=retry)])
    assert (first.repeated, second.repeated) == (False, True)
    assert ledger.balance("m").spent == EACH * 2


def test_a_retry_key_is_its_clients_own_and_for_one_question(ledger):
    ledger.spend(spend(1, retry=Retry("k", "what?")))
    with pytest.raises(BudgetError, match="another request"):
        ledger.spend(spend(1, retry=Retry("k", "why?")))
    assert not ledger.spend_together([spend(1, "bob", retry=Retry("k", "why?"))])[0].repeated
    assert ledger.balance("m").spent == EACH * 2


def test_a_refused_request_can_be_retried_when_there_is_budget(ledger):
    retry = Retry("k", "what?")
    with pytest.raises(BudgetError):
        ledger.spend(spend(2, limit=EACH, retry=retry))
    ledger.spend(spend(2, limit=EACH * 2, retry=retry))
    assert ledger.balance("m").spent == EACH * 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE balances SET spent = capacity + 1",
        "UPDATE balances SET spent = -1",
        "UPDATE entries SET answers = 0",
        "DELETE FROM entries",
    ],
)
def test_the_database_itself_refuses_to_overdraw_and_to_rewrite(ledger, url, statement):
    ledger.spend(spend(1))
    engine = create_engine(parse_url(url))
    with pytest.raises(DBAPIError), engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()
    assert ledger.balance("m").spent == EACH


def test_threads_that_spend_at_once_get_exactly_the_budget(ledger):
    ledger.open("t", release="t", capacity=EACH * 40)
    granted = []

    def ask(client):
        for _ in range(10):
            (outcome,) = ledger.spend_together([Spend("t", client, EACH)])
            granted.append(isinstance(outcome, Paid))

    threads = [threading.Thread(target=ask, args=(f"c{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(granted), sum(granted)) == (80, 40)
    assert all(result.holds for result in History(ledger.database).verify())


def _ask_from_another_process(url, client, results):
    with Database(url) as database:
        ledger = Ledger(database)
        outcomes = [ledger.spend_together([Spend("p", client, EACH * 2, 2)])[0] for _ in range(20)]
        results.put([outcome.receipt.id for outcome in outcomes if isinstance(outcome, Paid)])


def test_processes_that_spend_at_once_get_exactly_the_budget(ledger, url):
    ledger.open("p", release="p", capacity=EACH * 61)
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    workers = [spawn.Process(target=_ask_from_another_process, args=(url, f"c{i}", results)) for i in range(3)]
    for worker in workers:
        worker.start()
    receipts = [receipt for _ in workers for receipt in results.get(timeout=60)]
    for worker in workers:
        worker.join()
    assert len(set(receipts)) == 30
    assert ledger.balance("p").left == EACH
    assert all(result.holds for result in History(ledger.database).verify())
