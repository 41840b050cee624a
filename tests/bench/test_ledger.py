"""What a spend costs as a ledger and its clients grow is measured on small ones as on large ones."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
from bench import ledger


def test_a_spend_is_timed_at_both_sizes_of_entries_and_of_clients(monkeypatch):
    monkeypatch.setattr(ledger, "ENTRIES", (20, 200))
    monkeypatch.setattr(ledger, "CLIENTS", (10, 50))
    entries, *clients = ledger.rows(batches=2, repeats=1)
    assert entries["what"].startswith("a spend at 200 entries / at 20,")
    assert all(row["what"].startswith("a spend at 50 clients / at 10, batches of ") for row in clients)
    assert [row["what"].partition("each ")[2] for row in clients] == [
        *("spend another client's", "spend's client drawn anew"),
        "spend's client drawn anew, by a process that has seen nobody",
    ]
    assert all(row["ours"] > 0 and row["ratio"] > 0 for row in (entries, *clients))
