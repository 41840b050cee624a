"""The benchmark of noise at the inputs measures what it says."""

from __future__ import annotations

from bench import inputs


def test_rows_are_ratios_of_what_was_measured():
    found = inputs.rows(repeats=1, records=50)
    assert [row["what"].split(":")[0] for row in found] == ["seeded", "secure", "seeded"]
    for row in found:
        assert row["ratio"] == row["ours"] / row["theirs"] > 0
        assert "50 x 784" in row["what"]
