"""The benchmark of ranks runs, and measures both ways."""

from __future__ import annotations

import pytest

from bench import growth, scaling
from noiseproof.engine.ranks import ALONE


def test_both_ways_are_timed_in_turn(monkeypatch):
    monkeypatch.setattr(scaling, "_BATCH", 4)
    monkeypatch.setattr(scaling, "_RECORDS", 16)
    waited = []
    times = scaling.measure(ALONE, lambda: waited.append(1), 2)
    assert {key: len(found) for key, found in times.items()} == {
        f"{way} {clock}": 2 for way in ("alone", "together") for clock in ("wall", "busy")
    }
    assert len(waited) == 6


@pytest.mark.slow
def test_two_processes_share_the_work():
    wall, busy = scaling.rows(repeats=3)
    assert wall["unit"] == "ms"
    # Not a time but a share of work, which other load on the machine does not change much.
    assert busy["ratio"] < 0.75


def test_growth_is_told_decade_by_decade():
    rows = growth.rows(largest=100)
    assert {row["what"].partition(":")[0] for row in rows} == {
        "records",
        "parameters",
        "classes",
        "queries",
        "networks",
        "checkpoint",
    }
    assert all(row["ratio"] > 0 and row["ours"] > 0 for row in rows)
