"""The study runs from one call, writes what it found, and takes up a run that was stopped."""

from __future__ import annotations

import json

import pytest

from noiseproof.errors import SettingError
from papers import lin as study
from papers.lin import Lin
from papers.study import Setup


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


def test_tables_are_made_of_what_is_finished_without_training(tmp_path, pretend):
    def refuse(*_):
        raise AssertionError("trained")

    with pytest.raises(SettingError, match="holds no finished cells"):
        Lin().run("effect", tmp_path, finished=True)
    mnist, plan = Lin(["mnist"]), Lin.plans["effect"]
    cells = [cell for cell in mnist.cells(plan) if cell.model == "cnn" and cell.repeat < 2]
    mnist.results(cells, Setup(plan, tmp_path, runner=pretend, workers=1, resume=True))
    (tmp_path / "cells" / "mnist-cnn-adam-CA-0.5-0.04-glorot-run1.json").unlink()
    found = {table.name: table for table in mnist.run("effect", tmp_path, runner=refuse, finished=True).tables}
    names = [column.name for column in found["sequences"].columns]
    seeds = {
        tuple(row[names.index(name)] for name in ("optimizer", "rate", "start", "steps", "C")): row[
            names.index("AC over CA, points of each seed")
        ].count(",")
        + 1
        for row in found["sequences"].rows
    }
    # A seed that lacks one of its three trainings does not count.
    assert seeds["adam", 0.001, "glorot", 120, 0.04] == 1
    assert seeds["adam", 0.001, "glorot", 120, 1.4] == 2
    assert len(found["table-7"].rows) == 5 + 3
