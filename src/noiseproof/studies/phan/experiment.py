"""The experiment: every cell, on all cores, kept as it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from noiseproof.progress import SILENT, Progress
from noiseproof.scale import tasks
from noiseproof.studies.phan.cells import Cell, CellResult
from noiseproof.studies.phan.plans import Plan
from noiseproof.studies.phan.store import Store

Runner: TypeAlias = Callable[[Cell, Plan, Path, int], CellResult]
"""Runs one cell: the cell, the plan, the folder with relevance networks, the seed."""


def run_all(
    todo: Sequence[Cell],
    plan: Plan,
    store: Store,
    folder: Path,
    *,
    seed: int,
    runner: Runner,
    progress: Progress = SILENT,
    workers: int | None = None,
) -> list[CellResult]:
    """Every cell that `store` does not hold yet; all of them, in that order.

    Each worker is a process with one thread, so that what comes out depends neither on the order nor on the number of
    cores.
    """
    results = {cell: found for cell in todo if (found := store.load(cell)) is not None}
    missing = [cell for cell in todo if cell not in results]
    with progress.task("study phan", len(todo)) as task:
        task.advance(len(results))
        for place, result in tasks.run(_work, missing, common=(plan, folder, seed, runner), jobs=workers):
            store.save(result)
            results[missing[place]] = result
            task.advance(cell=result.key)
    return [results[cell] for cell in todo]


def _work(plan: Plan, folder: Path, seed: int, runner: Runner, cell: Cell) -> CellResult:
    return runner(cell, plan, folder, seed)
