"""One spend never buys two answers: the first that is kept is the one that everybody gets."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from noiseproof.serve.ledger import Amount, Answers, Ledger, Retry, Spend

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
    return ledger.spend_together([Spend("m", "ann", EACH, 1, retry=RETRY)])[0]


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
