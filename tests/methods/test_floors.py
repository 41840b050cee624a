"""What `make results` must show, on real records: one seed of the quick rows (three seeds are in docs/results.md)."""

from __future__ import annotations

import pytest

from bench.results.measure import Bench
from bench.results.rows import ROWS

FILES = {"mnist": "mnist.npz", "adult": "adult-train.csv", "cifar10": "cifar10.npz"}
ROWS_WITH_FLOORS = [row for row in ROWS if row.floor is not None]


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS_WITH_FLOORS, ids=lambda row: row.key)
def test_a_recipe_reaches_its_floor_at_the_proven_epsilon(row, real_data, monkeypatch):
    monkeypatch.setenv("NOISEPROOF_DATA", str(real_data(FILES[row.data]).parent))
    run = Bench(row).run(seed=0)
    assert 0.97 * row.epsilon < run["epsilon"] <= row.epsilon
    # The floor is for the mean of three seeds; each of them is above it by more than seeds differ.
    assert run["accuracy"] >= row.floor
