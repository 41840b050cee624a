"""A service says that it is ready when it can commit, and a worker that hangs ends itself."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from noiseproof.errors import LedgerError
from noiseproof.serve import health
from noiseproof.serve.ledger import Database, retirement


def test_a_ledger_that_can_be_read_but_not_written_is_not_ready(service, monkeypatch):
    """As on a full disk: every spend is refused, so nobody should be sent here."""

    @contextmanager
    def full(_):
        raise LedgerError("the disk is full")
        yield

    monkeypatch.setattr(Database, "writing", full)
    service.service.health.probe()
    assert service.http.get("/readyz").status_code == 503
    monkeypatch.undo()
    service.service.health.probe()
    assert service.http.get("/readyz").status_code == 200


def test_a_ledger_that_says_nothing_is_not_ready_and_readyz_does_not_wait_for_it(service, monkeypatch):
    silent, go_on = threading.Event(), threading.Event()

    @contextmanager
    def swallowing(_):
        silent.set()
        go_on.wait(30)
        raise LedgerError("nothing came back")
        yield

    monkeypatch.setattr(health, "_STALE_SECONDS", 0.2)
    monkeypatch.setattr(Database, "writing", swallowing)
    assert silent.wait(10)  # the prober waits for the ledger
    time.sleep(0.3)
    began = time.monotonic()
    assert service.http.get("/readyz").status_code == 503
    assert time.monotonic() - began < 5
    go_on.set()


def test_what_an_operator_retires_elsewhere_is_heard_of_also_while_answers_are_paid_for(service, rows):
    """A worker that committed spends all the time had never looked."""
    service.ask(rows(1))
    retirement.retire(service.database, "free")
    service.service.health.probe()
    assert service.ask(rows(1), model="free").status_code == 410


def test_a_spend_that_fails_makes_it_unready_at_once(service, rows, monkeypatch):
    def away(*_):
        raise LedgerError("away")

    monkeypatch.setattr("noiseproof.serve.ledger.Ledger.spend_together", away)
    monkeypatch.setattr(health, "_PROBE_SECONDS", 100.0)
    assert service.ask(rows(1)).status_code == 503
    assert not service.service.health.ready or service.http.get("/readyz").status_code == 503


def test_a_worker_whose_loop_or_batch_hangs_ends_itself(service, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(health, "_HANG_SECONDS", 0.2)
    watched = health.Health(service.service.connection, service.service.batcher, end=ended.set)
    watched._ticked = time.monotonic()  # and never again
    watched.start()
    assert ended.wait(10)
    watched.stop()


def test_a_retired_model_answers_no_more_and_its_budget_is_closed(service, rows):
    service.ask(rows(2))
    assert service.http.post("/v1/models/paid/retire").status_code == 401
    headers = {"Authorization": f"Bearer {service.ann}"}
    assert service.http.post("/v1/models/paid/retire", headers=headers).status_code == 403
    headers = {"Authorization": f"Bearer {service.operator}"}
    assert service.http.post("/v1/models/paid/retire", headers=headers).json()["retired"] is True
    response = service.ask(rows(1))
    assert (response.status_code, response.json()["type"]) == (410, "urn:noiseproof:problem:retired")
    assert service.get("/v1/models/paid/budget").json()["everyone"]["answers_left"] == 0
    assert service.ask(rows(1), model="free").status_code == 200
    assert service.spent == 2


def test_a_closed_budget_sells_nothing_more(service, rows):
    service.ask(rows(2))
    headers = {"Authorization": f"Bearer {service.operator}"}
    closed = service.http.post("/v1/models/paid/close", headers=headers).json()
    assert (closed["everyone"]["answers_limit"], closed["everyone"]["answers_left"]) == (2, 0)
    assert service.ask(rows(1)).status_code == 403
    assert service.http.post("/v1/models/free/close", headers=headers).status_code == 422
    assert all(result.holds for result in service.history.verify())


@pytest.mark.slow
def test_a_postgresql_that_is_stopped_and_not_gone_is_an_error_within_the_deadline(postgres):
    """It takes what is sent and never answers, which neither its own timeouts nor TCP's notice."""
    database = Database(postgres.url, deadline=2.0)
    database.probe()
    pid = postgres._server.get_pid()
    stopped = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    for one in stopped:
        os.kill(one, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(LedgerError):
            database.probe()
        assert time.monotonic() - began < 12
    finally:
        for one in stopped:
            os.kill(one, signal.SIGCONT)
    database.probe()
    database.close()
