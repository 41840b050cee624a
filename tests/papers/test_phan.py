"""The study of Phan et al.: every cell once, resumable, ours beside theirs, AdLM above ILM where the paper says so."""

from __future__ import annotations

import dataclasses
import json

import pytest

import papers
from noiseproof.errors import DataError, NoiseproofError, SettingError
from papers import phan as study
from papers.phan.cells import TRAINED, Cell, CellResult, Point, every_cell, method, records, run
from papers.phan.lemma7 import measure
from papers.phan.plans import PLANS, Plan, Setting, printed_accuracy
from papers.phan.tables import last
from papers.study import Setup

DIGITS = Setting(
    "digits",
    "mlp",
    {"hidden": [16, 8], "activation": "relu"},
    sensitivity=200.0,
    batch_size=300,
    epochs=4.0,
    relevance_epochs=2,
    epsilons=(0.5, 2.0),
    over_epochs=(0.5,),
    dp_sgd_epochs=(1.0, 2.0),
    dp_sgd_batch=256,
)
TINY = Plan("small", (DIGITS,), points=2, lemma_records=300)


@pytest.fixture
def digits(monkeypatch):
    """Only the digits are there, which need no file."""
    monkeypatch.setattr(study, "_there", lambda setting: setting.data == "digits")


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes longer than all else that is tested."""
    for name in ("accuracy_figure", "relevance_figure"):
        monkeypatch.setattr(study, name, lambda *arguments: arguments[-1] / "drawn.png")


def invented(cell: Cell, plan: Plan, folder, seed: int) -> CellResult:
    """A cell whose accuracy is made up: it rises with epsilon and with epochs."""
    epsilons = plan.settings[0].epsilons if cell.epsilon is None else (cell.epsilon,)
    points = [
        Point(cell.data, cell.curve, epsilon, epochs, epsilon / (1 + epsilon) * epochs / 4, epsilon, None)
        for epsilon in epsilons
        for epochs in (1.0, 4.0)
    ]
    return CellResult(cell.key, tuple(points), 0.1)


def run_invented(out, runner=invented, **options):
    return papers.get("phan").run("small", out, runner=runner, workers=1, plan=TINY, **options)


@pytest.mark.slow
def test_the_whole_study_runs_on_the_digits(digits, tmp_path):
    result = papers.get("phan").run("small", tmp_path, workers=1, plan=TINY)
    tables = {table.name: table for table in result.tables}
    assert set(tables) == {"accuracy-digits", "gains-digits", "epochs-digits", "promises", "audits", "lemma-7"}
    for table in result.tables:
        assert (tmp_path / f"{table.name}.csv").stat().st_size > 0
        assert table.render().row_count == len(table.rows)
    assert [path.name for path in result.figures] == ["accuracy-digits.png", "relevances-digits.png"]
    assert all(path.stat().st_size > 10_000 for path in result.figures)
    promises = {(row[1], row[2]): row for row in tables["promises"].rows}
    assert len(promises) == len(TRAINED) * 2
    for curve in TRAINED:
        assert promises[curve, 2.0][3] == pytest.approx(2.0 if curve.startswith("adlm") else 1.5)
        if curve.endswith("program"):
            assert promises[curve, 2.0][-1] == "nothing proven"
        else:
            assert promises[curve, 2.0][-1] > promises[curve, 2.0][3]
    verdicts = {row[0]: row[-1] for row in tables["audits"].rows}
    assert set(verdicts.values()) == {"refuted"}
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.slow
def test_finished_cells_are_kept_and_not_run_again(digits, no_figures, tmp_path):
    run_invented(tmp_path)

    def never(*arguments):
        raise AssertionError("a finished cell was run again")

    again = run_invented(tmp_path, runner=never, resume=True)
    assert again.tables[0].rows == run_invented(tmp_path).tables[0].rows
    with pytest.raises(SettingError, match="another scale or seed"):
        run_invented(tmp_path, resume=True, seed=1)
    next((tmp_path / "cells").glob("*.json")).write_text("{}")
    with pytest.raises(NoiseproofError, match="not a finished cell"):
        run_invented(tmp_path, resume=True)


def test_without_data_it_says_where_to_get_them(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "_there", lambda setting: False)
    with pytest.raises(DataError, match="NOISEPROOF_DATA"):
        run_invented(tmp_path)


def test_every_cell_is_run_once_and_has_its_own_file():
    for plan in (*PLANS.values(), TINY):
        found = every_cell(plan, [setting.data for setting in plan.settings])
        assert len({cell.key for cell in found}) == len(found)
        curves = {cell.curve for cell in found}
        assert set(TRAINED if plan.rivals else TRAINED[:2]) <= curves
        assert ("dp-sgd" in curves) == plan.rivals
    assert all(cell.data == "mnist" for cell in every_cell(PLANS["small"], ["mnist"]))
    assert PLANS["small"].settings[0].records is None  # all 60,000 of MNIST


@pytest.mark.slow
def test_the_papers_numbers_stand_beside_ours(digits, no_figures, tmp_path):
    assert printed_accuracy("mnist", 0.25, "adlm") == 0.902
    assert printed_accuracy("mnist", 0.25, "ilm") == 0.8846
    assert printed_accuracy("mnist", 0.5, "adlm") == 0.9366
    assert printed_accuracy("mnist", 0.5, "ilm") == 0.9239
    assert printed_accuracy("mnist", 2.0, "ilm") is None
    table = run_invented(tmp_path).tables[0]
    theirs = [column.name for column in table.columns if column.theirs]
    assert theirs == ["adlm, theirs", "ilm, theirs", "dp-sgd, theirs"]


def test_the_last_accuracy_is_that_of_the_longest_training():
    points = [Point("d", "c", 1.0, epochs, epochs / 10) for epochs in (1.0, 3.0, 2.0)]
    assert last(points, "d", "c", 1.0) == 0.3
    assert last(points, "d", "c", 2.0) is None


def test_readings_are_what_their_names_say(tmp_path):
    program, algorithm = (method(f"adlm, {reading}", DIGITS, tmp_path) for reading in ("program", "algorithm 1"))
    assert (program.draw, program.coefficients) == ("batch", "matrix")
    assert program.relevance == str(tmp_path / "relevance-digits")
    assert (algorithm.draw, algorithm.coefficients, algorithm.relevance) == ("record", "first-order", "functional")


def test_one_pass_of_functional_serves_all_epsilons(tmp_path):
    points = run(Cell("digits", "functional, raw", None, 0), TINY, tmp_path, 0).points
    assert [point.epsilon for point in points] == [0.5, 2.0]
    for point in points:
        assert point.proven == pytest.approx(point.epsilon)
    assert points[1].accuracy > points[0].accuracy > 0.2


def test_lemma_7_holds_where_it_was_measured():
    found = measure(records(DIGITS)[0], 1000)
    assert 0 <= found.error < found.bound
    assert found.exact < found.taylor
    assert found.largest > 1  # beyond where the lemma's proof looks


@pytest.mark.slow
def test_on_mnist_adlm_comes_out_above_ilm_and_both_above_nothing(real_data, tmp_path):
    real_data("mnist.npz")
    setting = dataclasses.replace(PLANS["small"].settings[0], epsilons=(0.5,), over_epochs=())
    plan = Plan("small", (setting,), points=1)
    study._train_network(setting, Setup(plan, tmp_path))
    found = {
        curve: run(Cell("mnist", curve, 0.5, 0), plan, tmp_path, 0).points[-1].accuracy
        for curve in ("adlm, program", "ilm, program")
    }
    assert found["adlm, program"] > found["ilm, program"] > 0.5
