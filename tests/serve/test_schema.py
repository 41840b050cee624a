"""Schemathesis on the OpenAPI document: whatever is sent, nothing fails inside, and every answer is as documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
import torch

from noiseproof import load_bundle, train
from noiseproof.data import load
from noiseproof.methods import registry

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "ignored_auth",
    "unsupported_method",
    "missing_required_header",
]


@pytest.fixture
def real(trained):
    """Bundles of real releases: one whose answers cost, one that costs nothing."""
    return {"paid": load_bundle(trained(40)), "free": train("dp-sgd", "digits", epsilon=3, epochs=1)}


def fuzz(service, folder, key, examples, phases):
    """Statuses of all that Schemathesis sent, and what it found wrong."""
    report = folder / "report.ndjson"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.address}/openapi.json"]
    options = ["--checks", ",".join(CHECKS), "--max-examples", str(examples), "--seed", "1", "--continue-on-failure"]
    options += ["--phases", phases]
    options += ["--exclude-path-regex", "close$|retire$"]  # which leave nothing to be asked
    output = ["--report", "ndjson", "--report-ndjson-path", str(report), "--suppress-health-check", "all"]
    run = subprocess.run(
        [*command, *options, *output, "--header", f"Authorization:Bearer {key}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    statuses: Counter[int] = Counter()

    def look(node):
        if isinstance(node, dict):
            if isinstance(node.get("status_code"), int):
                statuses[node["status_code"]] += 1
            for value in node.values():
                look(value)
        elif isinstance(node, list):
            for value in node:
                look(value)

    for line in report.read_text().splitlines():
        look(json.loads(line))
    return statuses, run


def hold(service, statuses, run):
    assert run.returncode == 0, run.stdout[-6000:]
    assert not any(status >= 500 for status in statuses)
    assert all(result.holds for result in service.history.verify())


def test_a_few_hundred_requests(start, tmp_path, real):
    service = start(rate=1e6, releases=real)
    statuses, run = fuzz(service, tmp_path, service.operator, 5, "coverage,fuzzing,stateful")
    hold(service, statuses, run)
    assert statuses.total() > 100


@pytest.fixture
def every_kind(real):
    """A real bundle of every method that answers queries, and one that costs nothing."""
    records = load("digits").train.take(torch.arange(200))
    made = dict(real)
    for name, method in registry().items():
        if method.place == "predictions":
            quick = {"epochs": 1} if "epochs" in method.__dataclass_fields__ else {}
            made[name] = train(method(**quick), records, epsilon=3, queries=10_000)
    return made


@pytest.mark.slow
def test_ten_thousand_requests(start, tmp_path, capsys, every_kind):
    service = start(rate=1e6, releases=every_kind)
    statuses, run = fuzz(service, tmp_path, service.operator, 2500, "coverage,fuzzing")  # sequences take hours
    hold(service, statuses, run)
    with capsys.disabled():
        print(f"\nschemathesis: {statuses.total()} requests, {dict(statuses)}, answers spent {service.spent}")
    assert statuses.total() >= 10_000
