"""The study runs from one call, writes what it found, and takes up a run that was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from papers import lin as study
from papers.lin import Lin
from papers.lin.results import Store


@pytest.fixture(autouse=True)
def _quick_figures(monkeypatch):
    """Drawing is tested by itself, and slow."""

    def draw(results, folder):
        (folder / "fig-1.png").write_bytes(b"")
        return (folder / "fig-1.png",)

    monkeypatch.setattr(study, "every_figure", draw)


def test_one_call_writes_every_table_and_figure(tmp_path, pretend):
    result = Lin().run("small", tmp_path / "out", runner=pretend, workers=1)
    assert result.out == tmp_path / "out"
    assert all((result.out / f"{table.name}.csv").exists() for table in result.tables)
    assert all(path.exists() for path in result.figures)
    json.dumps(result.to_json(), allow_nan=False)


def test_resuming_trains_nothing_twice_and_not_resuming_starts_anew(tmp_path, pretend):
    def refuse(*_):
        raise AssertionError("trained again")

    first = Lin().run("small", tmp_path, runner=pretend, workers=1)
    assert Lin().run("small", tmp_path, runner=refuse, workers=1, resume=True).to_json() == first.to_json()
    with pytest.raises(AssertionError, match="trained again"):
        Lin().run("small", tmp_path, runner=refuse, workers=1)


def test_the_stored_trainings_are_those_of_todays_plan():
    """Whoever resumes from the repository trains nothing twice."""
    stored = Path(__file__).parents[3] / "papers/results/lin-effect"
    plan = Lin().plans["effect"]
    cells = {cell.key: cell for cell in Lin().cells(plan)}
    store = Store(stored, plan, 0)
    files = sorted((stored / "cells").glob("*.json"))
    assert files
    for file in files:
        cell = cells[file.stem]
        result = store.load(cell)
        assert result is not None
        assert result.cell == cell
        assert result.ran["steps"] == plan.steps_of(cell)
        assert result.ran["parameters"] == (3_274_634 if cell.model == "cnn" else 82_186)
