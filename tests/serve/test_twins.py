"""What a service says without being paid is the same for two neighbouring sets of records, byte for byte."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from noiseproof import train
from noiseproof.data import load
from noiseproof.methods import registry
from noiseproof.releases import load_bundle
from noiseproof.serve import logs, monitoring
from noiseproof.serve.ledger import Database, History, accounts, history

ANSWERING = [
    pytest.param(name, marks=pytest.mark.slow) if method.place == "gradients" and name != "dp-sgd" else name
    for name, method in registry().items()
    if method.place in ("predictions", "gradients")
]
RANDOM = re.compile(rb"[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{16}")
"""Ids of requests and receipts, and what is hashed from them or keyed by the ledger."""
CLOCK = re.compile(rb"_created|noiseproof_commit_seconds")
"""Lines of metrics that tell when a counter was made, or how long a commit took."""
NOW = time.time()
PATHS = [
    *("/", "/console.js", "/healthz", "/readyz", "/openapi.json", "/v1/models", "/v1/models/m", "/v1/models/m/budget"),
    *("/v1/models/m/clients", "/v1/models/m/spending", "/nothing", "/metrics"),
]


@pytest.fixture(scope="module")
def neighbours():
    """Two files' records, as many in both (their number is public): one record is another, unlike all others."""
    digits = load("digits").train.take(torch.arange(200))
    features, labels = digits.features.clone(), digits.labels.clone()
    features[7], labels[7] = 1.0, (labels[7] + 1) % 10
    return digits, replace(digits, features=features, labels=labels)


def heard_from(response):
    """A response without the clock's part in it; a length of what is compared anyway tells nothing more."""
    headers = sorted(item for item in response.headers.items() if item[0] not in ("date", "content-length"))
    content = response.content
    if b"noiseproof_requests" in content:  # in the order in which requests were first counted
        content = b"\n".join(sorted(line for line in content.splitlines() if not CLOCK.search(line)))
    return response.status_code, headers, content


def unpaid(service, model, caplog):
    """All that a service says before, around and after an answer, without the answer."""
    heard = {}
    inputs = torch.full((2, *model.public.shape), 0.5).tolist()
    wrong = [b"{", b'{"inputs": []}', json.dumps({"inputs": [inputs[0]] * 3000}).encode(), b'{"inputs": [[1e38]]}']
    for turn in ("before", "after"):
        for path in PATHS:
            heard[turn, path] = heard_from(service.get(path, service.operator))
        for body in wrong:
            heard[turn, body[:20]] = heard_from(service.ask(body, service.operator, "m"))
        answer = service.ask(inputs, service.operator, "m")
        assert answer.status_code == 200
        document = answer.json()
        assert len(document.pop("labels")) == len(document.pop("probabilities")) == 2
        heard[turn, "paid"] = document
    service.stop()  # which waits until all is written
    # A line is written after its response was sent, so that which of two comes first is the threads' affair.
    heard["log"] = sorted(
        RANDOM.sub(b"*", record.getMessage().encode()) for record in caplog.records if record.name == "noiseproof.serve"
    )
    with Database(service.url) as database:
        heard["export"] = list(History(database).export())
        heard["accounts"] = [account.to_json() for account in History(database).accounts()]
    return {str(name): RANDOM.sub(b"*", repr(value).encode()) for name, value in heard.items()}


class Unmuted(dict):
    """Forgets what was logged, so that no line is left out: which ones are is the clock's affair."""

    def __setitem__(self, event, muted):
        pass

    def setdefault(self, event, muted):
        return muted


@pytest.fixture
def stopped_clock(monkeypatch):
    clock = SimpleNamespace(
        time=lambda: NOW,
        time_ns=lambda: int((NOW - 60) * 1e9),
        perf_counter=lambda: NOW,
        monotonic=time.monotonic,
        gmtime=lambda: time.gmtime(NOW),
        strftime=time.strftime,
    )
    for module in (logs, monitoring, history, accounts):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(logs, "_muted", Unmuted())


@pytest.mark.parametrize("method", ANSWERING)
def test_nothing_that_a_service_says_unpaid_tells_two_neighbouring_files_apart(
    method, neighbours, tmp_path, start, caplog, stopped_clock
):
    heard = []
    for number, records in enumerate(neighbours):
        quick = {"epochs": 1} if "epochs" in registry()[method].__dataclass_fields__ else {}
        made = train(registry()[method](**quick), records, epsilon=3.0, queries=20, seed=7)
        made.card = made.card.model_copy(update={"randomness": "secure"})
        release = load_bundle(made.save(tmp_path / f"bundle-{number}"))
        caplog.clear()
        with caplog.at_level("INFO", "noiseproof.serve"):
            heard.append(unpaid(start(f"{number}.db", releases={"m": release}), release, caplog))
    assert [name for name in heard[0] if heard[0][name] != heard[1][name]] == []
