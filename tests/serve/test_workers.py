"""Workers share one budget: as many clients as there are, exactly what is allowed is answered, never one more."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import httpx
import pytest


def hold(cluster, told, budget):
    """What must hold after any load: nothing answered without a committed spend, nothing overspent."""
    spent = cluster.spent()  # which also verifies the history
    assert sum(told.receipts.values()) <= spent <= budget
    return spent


def test_workers_share_a_budget_and_one_that_is_killed_is_started_again(cluster, bundle, tmp_path, clients):
    url = str(tmp_path / "ledger.db")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    service = cluster(bundle(40), url, workers=2, options=["--metrics-port", str(port)])
    keys = clients(url, 8)
    os.kill(service.workers[0], signal.SIGKILL)
    told = service.load(keys, requests=10, retry=True)
    assert (told.statuses.count(200), told.statuses.count(403)) == (40, 40)
    assert sum(told.receipts.values()) == hold(service, told, 40) == 40
    wait_until(lambda: len(service.workers) == 2)
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    assert 'noiseproof_answers_total{model="model"} 40.0' in metrics  # over all workers
    assert "noiseproof_worker_restarts_total 1.0" in metrics
    assert httpx.get(f"{service.address}/metrics").status_code == 401  # elsewhere they are for operators
    service.stop()
    assert service.process.returncode == 0


def test_a_worker_that_hangs_is_replaced_and_workers_end_with_their_parent(cluster, bundle, tmp_path):
    quick = "from noiseproof.serve import server; server._HANG_SECONDS = 4"
    service = cluster(bundle(40), str(tmp_path / "ledger.db"), workers=1, first=quick)
    (hung,) = service.workers
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: service.workers not in ([hung], []))
    service.wait_until_ready()
    (worker,) = service.workers
    service.process.kill()
    wait_until(lambda: not is_running(worker))


def wait_until(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def is_running(pid):
    """Whether a process exists and is not just waiting to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_64_clients_over_4_workers_that_ask_for_twice_the_budget_get_exactly_the_budget(cluster, bundle, url, clients):
    budget = 1600
    service = cluster(bundle(budget), url, workers=4)
    told = service.load(clients(url, 64), requests=50)
    assert len(told.statuses) == 2 * budget
    assert told.statuses.count(200) == budget
    assert told.statuses.count(403) == budget
    assert len(told.receipts) == budget
    assert sum(told.receipts.values()) == hold(service, told, budget) == budget
