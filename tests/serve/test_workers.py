"""Workers share one budget: as many clients as there are, exactly what is allowed is answered, never one more."""

from __future__ import annotations

import os
import signal

import httpx
import pytest


def hold(cluster, told, budget):
    """What must hold after any load: nothing answered without a committed spend, nothing overspent."""
    spent = cluster.spent()  # which also verifies the history
    assert sum(told.receipts.values()) <= spent <= budget
    return spent


def test_workers_share_a_budget_and_one_that_is_killed_is_started_again(cluster, bundle, tmp_path, clients):
    url = str(tmp_path / "ledger.db")
    service = cluster(bundle(40), url, workers=2)
    keys = clients(url, 8)
    os.kill(service.workers[0], signal.SIGKILL)
    told = service.load(keys, requests=10, retry=True)
    assert (told.statuses.count(200), told.statuses.count(403)) == (40, 40)
    assert sum(told.receipts.values()) == hold(service, told, 40) == 40
    assert len(service.workers) == 2
    metrics = httpx.get(f"{service.address}/metrics").text
    assert 'noiseproof_answers_total{model="model"} 40.0' in metrics  # over all workers
    service.stop()
    assert service.process.returncode == 0


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
