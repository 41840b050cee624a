"""Cells come out the same in any order and on any number of workers, and finished ones are kept."""

from __future__ import annotations

import dataclasses

import pytest

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import Progress, Task
from papers.lin import Lin, design
from papers.lin.design import Cell
from papers.lin.results import Store, frame
from papers.lin.training import Train
from papers.study import Setup

CELLS = tuple(cell for cell in design.every_cell() if (cell.data, cell.model) == ("mnist", "cnn"))


def run_cells(cells, plan, out, train, **options):
    return Lin().results(cells, Setup(plan, out, runner=train, workers=1, resume=True, **options))


class Counting:
    """Counts its trainings, and stops after so many."""

    def __init__(self, train: Train, stop_after: int | None = None) -> None:
        self.train, self.stop_after = train, stop_after
        self.trained: list[Cell] = []

    def __call__(self, cell, plan, seed, reference):
        if self.stop_after is not None and len(self.trained) >= self.stop_after:
            raise KeyboardInterrupt
        self.trained.append(cell)
        return self.train(cell, plan, seed, reference)


def test_results_do_not_depend_on_the_order(tmp_path, plan, pretend):
    forwards = run_cells(CELLS, plan, tmp_path / "a", pretend)
    backwards = run_cells(CELLS[::-1], plan, tmp_path / "b", pretend)
    assert forwards == backwards
    assert list(forwards) == list(CELLS)


def test_another_seed_gives_other_results(tmp_path, plan, pretend):
    first = run_cells(CELLS[:1], plan, tmp_path / "a", pretend)
    second = run_cells(CELLS[:1], plan, tmp_path / "b", pretend, seed=1)
    assert first[CELLS[0]].accuracy != second[CELLS[0]].accuracy


def test_a_run_that_was_stopped_is_taken_up_where_it_was(tmp_path, plan, pretend):
    first, second = Counting(pretend, stop_after=5), Counting(pretend)
    with pytest.raises(KeyboardInterrupt):
        run_cells(CELLS, plan, tmp_path / "a", first)
    resumed = run_cells(CELLS, plan, tmp_path / "a", second)
    assert len(first.trained) == 5
    assert len(second.trained) == len(CELLS) - 5
    assert resumed == run_cells(CELLS, plan, tmp_path / "b", pretend)


def test_references_are_trained_first_and_handed_to_the_cells_measured_from_them(tmp_path, plan, pretend):
    train = Counting(pretend)
    results = run_cells(CELLS[::-1], plan, tmp_path, train)
    noised = [cell.sequence != "none" for cell in train.trained]
    assert noised == sorted(noised)
    for cell, result in results.items():
        if cell.sequence == "none":
            assert result.tpvd is None
        else:
            assert 0 <= result.tpvd - 4 * (cell.initial_seed(0) % 7) < 1


def test_a_reference_whose_weights_were_lost_is_trained_again_for_those_measured_from_it_and_for_nobody_else(
    tmp_path, plan, pretend
):
    ac = Cell("mnist", "cnn", "adam", "AC", 0.5, 1.4)
    whole = run_cells((ac.reference, ac), plan, tmp_path, pretend)
    for path in (tmp_path / "references").iterdir():
        path.unlink()
    train = Counting(pretend)
    assert run_cells((ac.reference, ac), plan, tmp_path, train) == whole
    assert train.trained == []
    (tmp_path / "cells" / f"{ac.key}.json").unlink()
    assert run_cells((ac.reference, ac), plan, tmp_path, train) == whole
    assert train.trained == [ac.reference, ac]


def test_cells_of_another_seed_or_plan_are_refused_not_mixed_in(tmp_path, plan, pretend):
    run_cells(CELLS[:1], plan, tmp_path, pretend)
    longer = dataclasses.replace(plan, steps=plan.steps + 1)
    for other, seed in ((plan, 1), (longer, 0)):
        with pytest.raises(SettingError, match="another scale or seed"):
            Store(tmp_path, other, seed).load(CELLS[0])
    reworded = dataclasses.replace(plan, notes=("other words",))
    assert Store(tmp_path, reworded, 0).load(CELLS[0]) is not None


def test_a_broken_file_is_named(tmp_path, plan):
    store = Store(tmp_path, plan, 0)
    (tmp_path / "cells" / f"{CELLS[0].key}.json").write_text("{")
    with pytest.raises(NoiseproofError, match="is not a finished cell; delete it and resume"):
        store.load(CELLS[0])


def test_clearing_forgets_everything(tmp_path, plan, pretend):
    store = Store(tmp_path, plan, 0)
    run_cells(CELLS, plan, tmp_path, pretend)
    store.clear()
    assert all(store.load(cell) is None for cell in CELLS)


def test_progress_counts_every_cell_also_those_that_were_finished(tmp_path, plan, pretend):
    class Bar(Progress, Task):
        done = 0

        def task(self, description, total):
            self.total = total
            return self

        def advance(self, steps=1, **status):
            self.done += steps

    run_cells(CELLS[:3], plan, tmp_path, pretend)
    bar = Bar()
    run_cells(CELLS, plan, tmp_path, pretend, progress=bar)
    assert bar.done == bar.total == len(CELLS)


def test_results_as_a_frame_have_the_factors_as_columns(tmp_path, plan, pretend):
    results = run_cells(CELLS[:4], plan, tmp_path, pretend)
    assert list(frame(results)["sequence"]) == [cell.sequence for cell in CELLS[:4]]
    assert list(frame(results)["accuracy"]) == [result.accuracy for result in results.values()]
