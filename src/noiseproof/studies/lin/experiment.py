"""The experiment: every cell trained once, on all cores, kept as it is finished."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeAlias

import torch

from noiseproof.progress import SILENT, Progress
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
            for result in _run(wave, plan, store, seed, train, workers or _cores()):
                results[result.cell] = result
                task.advance(cell=result.cell.key, accuracy=result.accuracy)
    return {cell: results[cell] for cell in cells}


def _run(wave: Iterable[Cell], plan: Plan, store: Store, seed: int, train: Train, workers: int) -> Iterator[CellResult]:
    wave = list(wave)
    if workers == 1 or len(wave) < 2:
        threads = torch.get_num_threads()
        _one_thread()
        try:
            for cell in wave:
                yield _work(cell, plan, store, seed, train)
        finally:
            torch.set_num_threads(threads)
        return
    # Not forked: torch's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(wave)), mp_context=context, initializer=_one_thread) as pool:
        futures = [pool.submit(_work, cell, plan, store, seed, train) for cell in wave]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(cell: Cell, plan: Plan, store: Store, seed: int, train: Train) -> CellResult:
    reference = None if cell.sequence == "none" else store.reference(cell)
    result, weights = train(cell, plan, seed, reference)
    store.save(result, weights if cell.sequence == "none" else None)
    return result


def _one_thread() -> None:
    torch.set_num_threads(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
