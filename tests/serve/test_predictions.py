"""Answers are paid for before they are given, whole or not at all; a retry costs once; what is wrong costs nothing."""

from __future__ import annotations

import json
import math
import queue
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from noiseproof.errors import LedgerError
from noiseproof.serve.batcher import PredictionRequest
from noiseproof.serve.client import Client, ServiceError
from noiseproof.serve.ledger import Ledger, LedgerAwayError, LedgerUnsureError, database

PROBLEM = "application/problem+json"


def refused(response, status, kind):
    """Whether a response is that problem, as RFC 9457 has it, and shows nothing of what is inside."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    document = response.json()
    assert document["type"] == f"urn:noiseproof:problem:{kind}"
    assert document["status"] == status
    assert document["title"]
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    return document


def test_an_answer_has_probabilities_labels_cost_remaining_and_a_receipt(service, rows):
    response = service.ask(rows(3))
    assert response.status_code == 200
    document = response.json()
    assert [math.isclose(sum(row), 1, abs_tol=1e-5) for row in document["probabilities"]] == [True] * 3
    best = [document["classes"][row.index(max(row))] for row in document["probabilities"]]
    assert document["labels"] == best
    assert document["cost"] == {"measure": "gdp", "amounts": ["0.03"], "answers": 3, "memoised": 0}
    assert document["remaining"] == {"answers": 17}
    assert document["receipt"]["answers"] == 3
    assert document["receipt"]["client"] == "ann"
    (entry,) = [line for line in service.history.export() if line["kind"] == "spend"]
    assert (entry["receipt"], entry["hash"]) == (document["receipt"]["id"], document["receipt"]["hash"])


def test_the_budget_is_answered_to_the_last_and_not_one_more(service, rows):
    assert [service.ask(rows(6)).status_code for _ in range(3)] == [200] * 3
    problem = refused(service.ask(rows(3)), 403, "budget-exhausted")
    assert problem["remaining"] == {"answers": 2}
    assert service.ask(rows(2)).json()["remaining"] == {"answers": 0}
    refused(service.ask(rows(1)), 403, "budget-exhausted")
    assert service.spent == 20


def test_a_model_release_costs_nothing_and_leaves_nothing_in_the_ledger(service, rows):
    document = service.ask(rows(30), model="free").json()
    assert (document["cost"], document["remaining"], document["receipt"]) == (None, None, None)
    assert len(document["labels"]) == 30
    assert [account.model for account in service.history.accounts()] == ["paid"]
    expected = service.service.models["free"].release.predict(torch.tensor(rows(30)))
    torch.testing.assert_close(torch.tensor(document["probabilities"]), expected)


def test_a_client_has_its_own_limit_under_the_models(service, rows):
    assert service.ask(rows(2), service.bob).json()["remaining"] == {"answers": 1}
    problem = refused(service.ask(rows(2), service.bob), 403, "budget-exhausted")
    assert "your budget" in problem["detail"]
    assert service.ask(rows(2), service.ann).status_code == 200


def test_clients_of_whom_nothing_is_said_have_the_services_limit(start, rows):
    service = start(client_answers=4)
    assert service.ask(rows(4)).json()["remaining"] == {"answers": 0}
    refused(service.ask(rows(1)), 403, "budget-exhausted")
    assert service.ask(rows(3), service.bob).status_code == 200  # of whom something is said


WRONG = [
    (b"", 400, "bad-request"),
    (b"{", 400, "bad-request"),
    (b"\xff\xfe", 400, "bad-request"),
    (b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "bad-request"),
    (b'{"inputs": [[NaN, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[Infinity, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[-Infinity, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[1e999, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[1e300, 0, 0, 0]]}', 422, "unprocessable"),  # finite, but not in float32
    (b'{"inputs": [[' + b"9" * 400 + b", 0, 0, 0]]}", 422, "unprocessable"),
    (b'{"inputs": [[' + b"9" * 5000 + b", 0, 0, 0]]}", 400, "bad-request"),
    (b'{"inputs": [[3.3e38, 0, 0, 0]]}', 422, "unprocessable"),  # finite, but outside the public bounds
    (b'{"inputs": [[-0.001, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[0, 0, 0, 1.001]]}', 422, "unprocessable"),
    (b'{"inputs": [["0", 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[true, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[null, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[0, 0, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[0, 0, 0, 0], [0]]}', 422, "unprocessable"),
    (b'{"inputs": [0, 0, 0, 0]}', 422, "unprocessable"),
    (b'{"inputs": [[[0, 0, 0, 0]]]}', 422, "unprocessable"),
    (b'{"inputs": []}', 422, "unprocessable"),
    (b'{"inputs": {}}', 422, "unprocessable"),
    (b'{"input": [[0, 0, 0, 0]]}', 422, "unprocessable"),
    (b'{"inputs": [[0, 0, 0, 0]], "debug": true}', 422, "unprocessable"),
    (b"[[0, 0, 0, 0]]", 422, "unprocessable"),
    (b"null", 422, "unprocessable"),
    (json.dumps({"inputs": [[0, 0, 0, 0]] * 1025}).encode(), 422, "unprocessable"),
]


def test_what_is_no_batch_of_inputs_is_refused_and_costs_nothing(service):
    for body, status, kind in WRONG:
        refused(service.ask(body), status, kind)
    assert service.spent == 0
    assert service.noisy.calls == 0


def test_a_refusal_shows_nothing_of_what_was_sent(service):
    response = service.ask(b'{"inputs": [["Jane Doe", 0, 0, 0]], "secret field": 1}')
    assert response.status_code == 422
    assert "Jane" not in response.text
    assert "secret" not in response.text


def test_a_body_that_is_too_large_is_refused_before_it_is_read(start):
    service = start(body=1000)
    refused(service.ask(b"x" * 1001), 413, "too-large")

    def chunks():
        yield from [b"x" * 100] * 11

    headers = {"Authorization": f"Bearer {service.ann}", "Content-Type": "application/json"}
    response = service.http.post("/v1/models/paid/predictions", content=chunks(), headers=headers)
    refused(response, 413, "too-large")
    assert service.spent == 0


def test_a_body_of_another_type_is_refused(service, rows):
    for kind in ("text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data"):
        refused(service.ask(rows(1), **{"Content-Type": kind}), 415, "unsupported-media-type")
    assert service.spent == 0


def test_there_is_no_such_model(service, rows):
    for name in ("none", "PAID", "..", "paid%00", "a" * 5000):
        refused(service.ask(rows(1), model=name), 404, "not-found")


def test_a_retry_gets_the_same_answer_and_costs_once(service, rows):
    first, second = (service.ask(rows(2), **{"Idempotency-Key": "again"}) for _ in range(2))
    assert first.content == second.content
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert service.spent == 2


def test_the_same_key_with_other_inputs_is_refused(service, rows):
    service.ask(rows(2), **{"Idempotency-Key": "again"})
    refused(service.ask(rows(3), **{"Idempotency-Key": "again"}), 422, "idempotency-mismatch")
    assert service.spent == 2


def test_another_clients_idempotency_key_is_another_key(service, rows):
    one = service.ask(rows(2), service.ann, **{"Idempotency-Key": "again"}).json()
    two = service.ask(rows(2), service.bob, **{"Idempotency-Key": "again"}).json()
    assert one["receipt"]["id"] != two["receipt"]["id"]
    assert one["probabilities"] != two["probabilities"]


def test_an_idempotency_key_that_is_none_is_refused(service, rows):
    for key in ("", "a b", "x" * 201):
        refused(service.ask(rows(1), **{"Idempotency-Key": key}), 422, "unprocessable")
    assert service.spent == 0


def test_a_retry_of_what_was_paid_for_but_never_answered_is_answered_once_and_for_nothing(service, rows, monkeypatch):
    with monkeypatch.context() as crash:
        crash.setattr(type(service.noisy), "_answer", lambda *_: 1 / 0)
        refused(service.ask(rows(2), **{"Idempotency-Key": "again"}), 500, "internal")
    assert service.spent == 2
    first, second = (service.ask(rows(2), **{"Idempotency-Key": "again"}) for _ in range(2))
    assert first.status_code == 200
    assert first.content == second.content
    assert service.spent == 2


def test_no_answer_is_released_that_could_not_be_kept_for_a_retry(service, rows, monkeypatch):
    def away(*_):
        raise LedgerError("away")

    with monkeypatch.context() as crash:
        crash.setattr("noiseproof.serve.ledger.answers.Answers.keep", away)
        refused(service.ask(rows(2), **{"Idempotency-Key": "again"}), 503, "ledger-unavailable")
    assert service.ask(rows(2), **{"Idempotency-Key": "again"}).status_code == 200
    assert service.spent == 2


def test_repeats_cost_again_and_get_new_noise_where_the_operator_does_not_allow_otherwise(service, rows):
    one, two = (service.ask(rows(1)).json()["probabilities"] for _ in range(2))
    assert one != two
    assert service.spent == 2


def test_repeats_are_free_and_get_the_same_noise_where_the_operator_allows_it(start, rows):
    service = start(memoise=True)
    first = service.ask(rows(3)).json()
    second = service.ask(rows(3)).json()
    assert second["probabilities"] == first["probabilities"]
    assert second["cost"]["answers"] == 0
    assert second["cost"]["memoised"] == 3
    assert second["receipt"] is None
    assert service.spent == 3


def test_only_new_rows_are_paid_for_and_a_row_that_comes_twice_is_one(start, rows):
    service = start(memoise=True)
    known = service.ask(rows(2)).json()["probabilities"]
    new = rows(3)[:1]
    document = service.ask([*rows(2), *new, *new]).json()
    assert document["probabilities"][:2] == known
    assert document["probabilities"][2] == document["probabilities"][3]
    assert (document["cost"]["answers"], document["cost"]["memoised"]) == (1, 3)
    assert service.spent == 3


def test_repeats_are_each_clients_own_because_a_free_answer_would_tell_what_others_asked(start, rows):
    service = start(memoise=True)
    one = service.ask(rows(1), service.ann).json()
    two = service.ask(rows(1), service.bob).json()
    assert two["cost"]["answers"] == 1
    assert one["probabilities"] != two["probabilities"]


def test_repeats_are_answered_when_the_budget_is_gone(start, rows):
    service = start(memoise=True)
    service.ask(rows(20))
    refused(service.ask(rows(1)), 403, "budget-exhausted")
    assert service.ask(rows(20)).status_code == 200


def test_what_fails_inside_is_a_problem_without_details_and_a_line_without_values(service, rows, monkeypatch, caplog):
    def broken(*_):
        raise ValueError("the record of Jane Doe")

    monkeypatch.setattr(type(service.noisy), "_answer", broken)
    with caplog.at_level("INFO", "noiseproof.serve"):
        response = service.ask(rows(2))
    refused(response, 500, "internal")
    assert "Jane" not in response.text + caplog.text
    assert "ValueError" in caplog.text
    # The others are not taken down with it.
    assert service.ask(rows(1), model="free").status_code == 200


@pytest.mark.parametrize("poison", ["raises", "nan"])
def test_one_clients_inputs_cost_no_other_client_its_answer(service, rows, monkeypatch, poison, caplog):
    """A forward pass that all share fails, or gives no number, for one record; the others are answered."""
    real = type(service.noisy)._answer

    def fragile(release, features, rng):
        bad = features[:, 0] == 1
        if poison == "raises" and bad.any():
            raise ArithmeticError("scores overflow")
        return real(release, features, rng).masked_fill(bad[:, None], float("nan"))

    monkeypatch.setattr(type(service.noisy), "_answer", fragile)
    model, caller = service.service.models["paid"], service.keys.check(service.ann)
    inputs = [torch.tensor(rows(2)), torch.tensor([[1.0, 0, 0, 0]]), torch.tensor(rows(3))]
    requests = [PredictionRequest(model, caller, features, b"secret") for features in inputs]
    service.service.batcher.answer(requests)
    first, poisoned, last = (request.outcome for request in requests)
    assert (first.answers, last.answers) == (2, 3)
    assert poisoned.receipt.entry.answers == 1
    with caplog.at_level("INFO", "noiseproof.serve"):
        problem = refused(service.ask([[1, 0, 0, 0]]), 500, "internal")
        service.stop()
    assert "1 answers were spent" in problem["detail"]
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if '"request"' in record.getMessage()]
    assert (line["status"], line["answers"], line["receipt"]) == (500, 1, problem["receipt"]["id"])


def test_the_client_sends_again_what_failed_inside_and_pays_once(service, rows, monkeypatch):
    real, calls = type(service.noisy)._answer, []

    def fails_once(*given):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError
        return real(*given)

    monkeypatch.setattr(type(service.noisy), "_answer", fails_once)
    with Client(service.address, service.ann, retries=1) as client:
        assert len(client.predict("paid", rows(2))["labels"]) == 2
    assert (len(calls), service.spent) == (2, 2)


def test_nothing_is_answered_while_the_ledger_is_away_and_all_is_well_when_it_is_back(service, rows, monkeypatch):
    def away(*_):
        raise LedgerError("away")

    with monkeypatch.context() as outage:
        outage.setattr("noiseproof.serve.ledger.Ledger.spend_together", away)
        response = service.ask(rows(2))
        refused(response, 503, "ledger-unavailable")
        assert response.headers["retry-after"] == "1"
        assert service.noisy.calls == 0
    assert service.ask(rows(2)).status_code == 200


def test_a_ledger_that_is_back_within_seconds_costs_nobody_an_answer(service, rows, monkeypatch):
    """It was a 503 for everybody who asked meanwhile."""
    real, tries = Ledger.spend_together, []

    def away_twice(*given):
        tries.append(1)
        if len(tries) <= 2:
            raise LedgerAwayError("away")
        return real(*given)

    monkeypatch.setattr(Ledger, "spend_together", away_twice)
    assert service.ask(rows(2)).status_code == 200
    assert (len(tries), service.spent) == (3, 2)


def test_who_asks_in_a_long_outage_is_told_at_once(start, rows, monkeypatch):
    service = start(patience=1.0)
    tries = []

    def away(*_):
        tries.append(None)
        raise LedgerAwayError("away")

    with monkeypatch.context() as outage:
        outage.setattr(Ledger, "spend_together", away)
        outage.setattr("noiseproof.serve.health._PROBE_SECONDS", 100.0)
        refused(service.ask(rows(1)), 503, "ledger-unavailable")
        assert len(tries) > 1
        tries.clear()
        refused(service.ask(rows(1)), 503, "ledger-unavailable")
        assert len(tries) == 1
        assert service.noisy.calls == 0
    assert service.ask(rows(1)).status_code == 200


@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_of_which_nobody_knows_whether_it_was_made_is_made_once(service, rows, monkeypatch, landed):
    """A database that ended in the middle of it; who asked had a 503, and had paid or not."""
    real, breaks = database._flush, [True]

    def break_once(*given):
        if breaks.pop() if breaks else False:
            if not landed:  # as if the commit had never arrived
                with service.database.writing() as connection:
                    for name in ("entries_no_update", "entries_no_delete", "entries_no_replace"):
                        connection.exec_driver_sql(f"DROP TRIGGER {name}")
                    connection.exec_driver_sql("DELETE FROM entries WHERE kind = 'spend'")
                    connection.exec_driver_sql("DELETE FROM entries WHERE client = 'ann'")
                    connection.exec_driver_sql("DELETE FROM balances WHERE client = 'ann'")
                    connection.exec_driver_sql("UPDATE balances SET spent = 0")
                    first = "SELECT sequence, hash FROM entries WHERE model = models.model"
                    connection.exec_driver_sql(f"UPDATE models SET (sequence, head) = ({first})")
            raise sqlite3.OperationalError("gone")
        return real(*given)

    monkeypatch.setattr(database, "_flush", break_once)
    answer = service.ask(rows(2))
    assert (answer.status_code, answer.json()["receipt"]["sequence"]) == (200, 3)
    assert (service.spent, service.noisy.calls) == (2, 2)  # what was worked out at first is thrown away
    (line,) = [line for line in service.history.export() if line["kind"] == "spend"]
    assert line["receipt"] == answer.json()["receipt"]["id"]


def test_answers_are_worked_out_while_their_spend_is_brought_to_disk_and_wait_for_it(service, rows, monkeypatch):
    """A disk that takes its time cost every batch that time, with idle processors."""
    answer, flush, worked_out, on_disk = (
        type(service.noisy)._answer,
        database._flush,
        threading.Event(),
        threading.Event(),
    )

    def tell(*given):
        worked_out.set()
        return answer(*given)

    def wait(*given):
        assert on_disk.wait(60)
        flush(*given)

    monkeypatch.setattr(type(service.noisy), "_answer", tell)
    monkeypatch.setattr(database, "_flush", wait)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(service.ask, rows(2))
        early = worked_out.wait(10)
        with pytest.raises(TimeoutError):
            asked.result(0.3)
        on_disk.set()
        assert asked.result().status_code == 200
    assert early


def test_what_was_worked_out_is_thrown_away_if_its_spend_cannot_be_brought_to_disk(service, rows, monkeypatch):
    def broken(*_):
        raise LedgerError("the disk is gone")

    with monkeypatch.context() as outage:
        outage.setattr(database, "_flush", broken)
        response = service.ask(rows(2), **{"Idempotency-Key": "k"})
        refused(response, 503, "ledger-unavailable")
        assert (service.noisy.calls, "probabilities" in response.text) == (1, False)
    with service.database.reading() as connection:
        assert connection.exec_driver_sql("SELECT answer FROM retries").scalars().all() == [None]
    assert service.ask(rows(2), **{"Idempotency-Key": "k"}).status_code == 200
    assert (service.noisy.calls, service.spent) == (2, 2)


def test_a_commit_that_may_have_been_made_is_not_made_again(service, rows, monkeypatch):
    """The connection broke when the commit was sent: nobody knows whether it was; a second one might charge twice."""
    real, commits = Ledger.spend_together, []

    def broken(*given):
        commits.append(1)
        real(*given)
        raise LedgerError("the connection broke")

    with monkeypatch.context() as outage:
        outage.setattr(Ledger, "spend_together", broken)
        refused(service.ask(rows(2)), 503, "ledger-unavailable")
    assert (len(commits), service.spent) == (1, 2)


def test_what_was_read_while_a_commit_failed_is_paid_for_after_it_and_once(service, rows, monkeypatch):
    """The next batch waits already, with a retry of the one whose commit broke in it; whose commit arrived is still first."""
    real, batches, began = Ledger.spend_together, [], threading.Event()

    def waiting_are(count):
        until = time.monotonic() + 20
        while service.service.batcher.waiting < count and time.monotonic() < until:
            time.sleep(0.005)

    def breaks_once(ledger, spends, meanwhile):
        batches.append([(spend.client, spend.tried is not None) for spend in spends])
        outcomes = real(ledger, spends, meanwhile)
        if len(batches) == 1:
            began.set()
            waiting_are(2)
            error = LedgerUnsureError("the server ended")
            error.outcomes = outcomes
            raise error
        return outcomes

    monkeypatch.setattr(Ledger, "spend_together", breaks_once)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(service.ask, rows(2), **{"Idempotency-Key": "k"})
        assert began.wait(20)
        again = pool.submit(service.ask, rows(2), **{"Idempotency-Key": "k"})
        waiting_are(1)
        other = pool.submit(service.ask, rows(1), service.bob)
    answers = [asked.result() for asked in (first, again, other)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert batches == [[("ann", False)], [("ann", True), ("ann", False), ("bob", False)]]
    assert answers[0].content == answers[1].content
    assert service.spent == 3
    assert all(result.holds for result in service.history.verify())


def test_too_many_that_wait_are_told_to_come_back(service, rows, monkeypatch):
    async def full(*_):
        raise queue.Full

    monkeypatch.setattr(service.service.batcher, "submit", full)
    refused(service.ask(rows(1)), 503, "overloaded")


def test_each_request_has_one_line_in_the_log_without_inputs_answers_or_keys(service, caplog):
    with caplog.at_level("INFO", "noiseproof.serve"):
        document = service.ask([[0.1234, 0.5678, 0.9, 0.3333]]).json()
        service.stop()  # which waits until all is written
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == "noiseproof.serve"]
    assert line["client"] == "ann"
    assert line["model"] == "paid"
    assert line["status"] == 200
    assert line["answers"] == 1
    assert line["receipt"] == document["receipt"]["id"]
    assert service.ann not in caplog.text
    assert "0.1234" not in caplog.text
    assert str(document["probabilities"][0][0]) not in caplog.text


def test_the_python_client_asks_retries_and_says_what_was_wrong(service, rows):
    with Client(service.address, service.ann, retries=0) as client:
        assert len(client.predict("paid", rows(2))["labels"]) == 2
        assert {model["name"] for model in client.models()} == {"paid", "free"}
        assert client.card("paid")["card"]["method"] == "test"
        assert client.budget("paid")["own"]["answers_spent"] == 2
        with pytest.raises(ServiceError, match="the model's budget covers 18 more") as caught:
            client.predict("paid", rows(19))
    assert caught.value.status == 403


@pytest.mark.parametrize("least", [-1e-30, -1e-45, 1.0000001])
def test_an_input_that_lies_outside_by_next_to_nothing_is_refused_like_any_other(service, least):
    """Seen from 0.5, it is as far as 0 is; it was a 500."""
    refused = service.ask([[0.5, 0.5, least, 0.5]])
    assert (refused.status_code, service.spent) == (422, 0)
