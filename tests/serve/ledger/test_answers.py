"""One spend never buys two answers: the first that is kept is the one that everybody gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, insert, select, text
from sqlalchemy.exc import DBAPIError

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger import Amount, Answers, History, Ledger, Refused, Retry, Spend
from noiseproof.serve.ledger.database import parse_url
from noiseproof.serve.ledger.records import Entry
from noiseproof.serve.ledger.tables import balances, entries, models, retries

EACH = Amount.cost("pure", 0.01)
RETRY = Retry("k", "what?")


@pytest.fixture
def ledger(database):
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=EACH * 10)
    return ledger


@pytest.fixture
def answers(database):
    return Answers(database)


def paid(ledger):
    return ledger.spend_together([Spend("m", "ann", EACH, 1, retry=Retry(RETRY.key, RETRY.digest))])[0]


def test_a_retry_gets_the_answer_that_was_kept(ledger, answers):
    assert paid(ledger).answer is None
    assert answers.keep("m", "ann", "k", "first") == "first"
    assert paid(ledger).answer == "first"


def test_whoever_comes_second_releases_the_first_ones_answer(ledger, answers):
    paid(ledger)
    answers.keep("m", "ann", "k", "first")
    assert answers.keep("m", "ann", "k", "second") == "first"


def test_two_that_are_kept_at_once_release_one(ledger, answers):
    paid(ledger)
    with ThreadPoolExecutor(2) as pool:
        kept = list(pool.map(lambda answer: answers.keep("m", "ann", "k", answer), ["first", "second"]))
    assert kept in (["first"] * 2, ["second"] * 2)


def test_a_retry_that_was_swept_away_is_paid_for_again(ledger, answers):
    first = paid(ledger)
    answers.keep("m", "ann", "k", "first")
    answers.sweep(older_than=3600)
    assert paid(ledger).repeated
    answers.sweep(older_than=-1)
    again = paid(ledger)
    assert not again.repeated
    assert again.receipt.id != first.receipt.id
    assert ledger.balance("m").spent == EACH * 2


def test_a_repeated_question_gets_the_first_answer_of_the_same_client(ledger, answers):
    assert answers.remember("m", "ann", {"q": "first"}) == {"q": "first"}
    assert answers.remember("m", "ann", {"q": "second", "p": "new"}) == {"q": "first", "p": "new"}
    assert answers.known("m", "ann", ["q", "p", "x"]) == {"q": "first", "p": "new"}
    # Whether another client has asked the same is nobody's business.
    assert answers.known("m", "bob", ["q", "p"]) == {}


def plant(database, receipt, retry=RETRY):
    row = {"model": "m", "client": "ann", "retry_key": retry.key, "question": retry.digest, "nonce": retry.nonce}
    with database.writing() as connection:
        connection.execute(insert(retries).values(**row, receipt=receipt, made_at=0))


def problems(database):
    return [problem for result in History(database).verify() for problem in result.problems]


def test_a_retry_that_somebody_planted_for_what_was_paid_for_something_else_is_answered_by_nobody_and_found(
    ledger, database
):
    other = ledger.spend(Spend("m", "ann", EACH, 1, retry=Retry("other", "something else")))
    plant(database, other.id)
    refused = paid(ledger)
    assert isinstance(refused, Refused)
    assert "another request" in refused.sentence(Spend("m", "ann", EACH))
    assert any("a retry of ann was planted" in problem for problem in problems(database))


def test_a_planted_retry_with_a_well_made_entry_that_cost_nothing_is_answered_by_nobody(ledger, database):
    with database.writing() as connection:
        row = connection.execute(select(models)).one()
        sealed = f"{0:014x}{Spend('m', 'ann', EACH, 1, retry=RETRY).seal}"
        entry = Entry("m", row.sequence + 1, sealed, "spend", "ann", 1, (EACH * 0).units, 0)
        hash = entry.hash_after(row.head)
        connection.execute(insert(entries).values(**entry.row(hash)))
        connection.execute(models.update().values(sequence=entry.sequence, head=hash))
        whole = {"model": "m", "client": "ann", "coordinate": 0, "capacity": 0, "spent": 0}
        connection.execute(insert(balances).values(**whole))
    plant(database, sealed)
    assert isinstance(paid(ledger), Refused)


@pytest.mark.parametrize("again", ["wiped", "planted anew"])
def test_a_paid_request_whose_answer_somebody_took_away_gets_no_other(ledger, answers, database, again):
    """Each would have other noise: their mean would be worth more than was paid."""
    first = paid(ledger)
    answers.keep("m", "ann", "k", "first")
    with database.writing() as connection:
        connection.execute(text("UPDATE retries SET answer = NULL" if again == "wiped" else "DELETE FROM retries"))
    if again == "planted anew":
        plant(database, first.receipt.id)
    assert isinstance(paid(ledger), Refused)
    with pytest.raises(LedgerError):
        answers.keep("m", "ann", "k", "second")
    assert ledger.balance("m").spent == EACH


def test_a_paid_request_that_was_never_answered_is_answered_for_its_receipt(ledger, answers):
    first = paid(ledger)
    again = paid(ledger)
    assert again.repeated
    assert again.receipt.id == first.receipt.id
    assert answers.keep("m", "ann", "k", "late") == "late"


@pytest.mark.parametrize("statement", ["DELETE FROM answered", "UPDATE answered SET receipt = 'x'"])
def test_the_database_itself_refuses_to_forget_what_was_answered(ledger, answers, url, statement):
    paid(ledger)
    answers.keep("m", "ann", "k", "first")
    engine = create_engine(parse_url(url))
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))
    engine.dispose()


def test_a_receipt_does_not_tell_what_was_asked_to_whoever_can_guess_it(ledger):
    """The digest of a question is forgotten after some hours; its receipt is kept for good."""
    retries = [Retry("k", "what?") for _ in range(2)]
    assert retries[0] == retries[1]
    assert Spend("m", "ann", EACH, 1, retry=retries[0]).seal != Spend("m", "ann", EACH, 1, retry=retries[1]).seal
