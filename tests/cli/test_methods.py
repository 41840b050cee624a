"""`methods` lists every method with what it claims and proves."""

from __future__ import annotations

from noiseproof.methods import registry


def test_every_method_is_listed_with_the_contracts_keys(noiseproof):
    rows = noiseproof("methods", "--json").document
    assert [row["name"] for row in rows] == list(registry())
    for row in rows:
        assert {"name", "place", "published", "proven", "summary"} <= row.keys()
        assert row["summary"].endswith(".") or row["summary"]


def test_people_see_a_table(noiseproof):
    outcome = noiseproof("methods")
    assert outcome.code == 0
    assert "dp-sgd" in outcome.out
