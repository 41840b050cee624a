"""Schemathesis on the OpenAPI document: whatever is sent, nothing fails inside, and every answer is as documented."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pandas as pd
import pytest
import torch

from noiseproof import load_bundle, train
from noiseproof.data import Schema, load
from noiseproof.data.tables import code
from noiseproof.methods import get, registry

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


def fuzz(service, folder, key, examples, phases, seed=1):
    """Statuses of all that Schemathesis sent, and what it found wrong."""
    report = folder / "report.ndjson"
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.address}/openapi.json"]
    options = [
        "--checks",
        ",".join(CHECKS),
        "--max-examples",
        str(examples),
        "--seed",
        str(seed),
        "--continue-on-failure",
    ]
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


WARDS = Schema.model_validate(
    {
        "columns": {
            "age": {"low": 0, "high": 100, "missing": True},
            "ward": {"categories": ["a", "b"]},
            "day": {"low": "2020-01-01", "high": "2020-12-31"},
        },
        "target": {"name": "ill", "classes": ["no", "yes"]},
    }
)
STAYS = Schema.model_validate(
    {**WARDS.model_dump(exclude={"target"}), "target": {"name": "days", "low": 0, "high": 30}}
)
"""The same table with a number to predict."""

KINDS = {
    # A release of every class that answers queries, made by a method; pictures once, and tables otherwise.
    "pictures": ("dp-sgd", None),
    "table": ("dp-sgd", WARDS),
    "regression": ("dp-sgd", STAYS),
    **{name: (name, WARDS) for name in ("functional", "adlm", "logits", "neuron-gaussian", "neuron-laplace")},
    **{name: (name, WARDS) for name in ("teachers", "votes")},
}
EACH = -(-10_000 // len(KINDS))


def records_of(schema):
    if schema is None:
        return load("digits").train.take(torch.arange(200))
    rows = [
        {"age": 7 * i % 100, "ward": "ab"[i % 2], "day": f"2020-{1 + i % 12:02}-01", "ill": ("no", "yes")[i % 3 == 0]}
        for i in range(200)
    ]
    frame = pd.DataFrame([{**row, "days": i % 30} for i, row in enumerate(rows)])
    return code(frame.drop(columns="days" if schema is WARDS else "ill"), schema, name="wards")[0]


def test_a_release_of_every_class_that_answers_is_among_the_kinds():
    served = {method.name for method in registry().values() if method.place == "predictions"}
    assert served <= {name for name, _ in KINDS.values()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_requests(start, tmp_path, capsys, kind):
    """A share of them for each kind, in all phases; `-k` chooses one."""
    name, schema = KINDS[kind]
    method = get(name)
    quick = {"epochs": 1} if "epochs" in method.__dataclass_fields__ else {}
    asked = {"queries": 10**6} if method.place == "predictions" else {}
    release = train(method(**quick), records_of(schema), epsilon=3, **asked)
    service = start(rate=1e6, releases={"paid": release})
    statuses: Counter[int] = Counter()
    # Sequences of requests take a second each: fewer of them.
    for phases, examples in (("examples,coverage,fuzzing", 200), ("stateful", 50)):
        sent, run = fuzz(service, tmp_path, service.operator, examples, phases, seed=[*KINDS].index(kind))
        hold(service, sent, run)
        assert sent
        statuses += sent
    with capsys.disabled():
        print(f"\nschemathesis, {kind}: {statuses.total()} requests, {dict(sorted(statuses.items()))}")
    assert statuses.total() >= EACH
