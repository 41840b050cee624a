"""The experiment: every cell trained once, on all cores, kept as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from noiseproof.progress import SILENT, Progress
from noiseproof.scale import tasks
from noiseproof.studies.lin.design import Cell, Plan
from noiseproof.studies.lin.results import CellResult, Store, Weights

Train: TypeAlias = Callable[[Cell, Plan, int, Weights | None], tuple[CellResult, Weights]]
"""Trains one cell with a seed; the last argument are the weights that its TPVD is measured from."""


def run_cells(
    cells: Sequence[Cell],
    plan: Plan,
    store: Store,
    *,
    seed: int,
    train: Train,
    progress: Progress = SILENT,
    workers: int | None = None,
) -> dict[Cell, CellResult]:
    """Train every cell that `store` does not hold yet, and return them all in the order given.

    Each worker is a process with one thread, so that what comes out depends neither on the order nor on the number of
    cores. Trainings without noise go first: the others are measured from them.
    """
    results = {cell: found for cell in cells if (found := store.load(cell)) is not None}
    missing = [cell for cell in cells if cell not in results]
    with progress.task("study lin", len(cells)) as task:
        task.advance(len(results))
        for wave in (
            [cell for cell in missing if cell.sequence == "none"],
            [cell for cell in missing if cell.sequence != "none"],
        ):
            for result in _run(wave, plan, store, seed, train, workers):
                results[result.cell] = result
                task.advance(cell=result.cell.key, accuracy=result.accuracy)
    return {cell: results[cell] for cell in cells}


def _run(
    wave: Sequence[Cell], plan: Plan, store: Store, seed: int, train: Train, workers: int | None
) -> Iterator[CellResult]:
    # Results are kept here, not where they were trained: that may be another machine.
    for _, (result, weights) in tasks.run(_work, _Todo(wave, store), common=(plan, seed, train), jobs=workers):
        store.save(result, weights)
        yield result


class _Todo(Sequence[tuple[Cell, "Weights | None"]]):
    """Cells with the weights that each is measured from, which are read when a worker is about to get them."""

    def __init__(self, cells: Sequence[Cell], store: Store) -> None:
        self._cells, self._store = cells, store

    def __len__(self) -> int:
        return len(self._cells)

    def __getitem__(self, place: Any) -> Any:
        cell = self._cells[place]
        return cell, None if cell.sequence == "none" else self._store.reference(cell)


def _work(plan: Plan, seed: int, train: Train, task: tuple[Cell, Weights | None]) -> tuple[CellResult, Weights | None]:
    cell, reference = task
    result, weights = train(cell, plan, seed, reference)
    return result, weights if cell.sequence == "none" else None
