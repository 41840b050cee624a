"""The experiment: every cell, on all cores, kept as it is finished."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeAlias

import torch

from noiseproof.progress import SILENT, Progress
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
        for cell, result in _run(missing, plan, store, folder, seed, runner, workers or _cores()):
            results[cell] = result
            task.advance(cell=cell.key)
    return [results[cell] for cell in todo]


def _run(
    todo: Sequence[Cell], plan: Plan, store: Store, folder: Path, seed: int, runner: Runner, workers: int
) -> Iterator[tuple[Cell, CellResult]]:
    if workers == 1 or len(todo) < 2:
        threads = torch.get_num_threads()
        _one_thread()
        try:
            for cell in todo:
                yield cell, _work(cell, plan, store, folder, seed, runner)
        finally:
            torch.set_num_threads(threads)
        return
    # Not forked: torch's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=_one_thread) as pool:
        futures = {pool.submit(_work, cell, plan, store, folder, seed, runner): cell for cell in todo}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(cell: Cell, plan: Plan, store: Store, folder: Path, seed: int, runner: Runner) -> CellResult:
    result = runner(cell, plan, folder, seed)
    store.save(result)
    return result


def _one_thread() -> None:
    torch.set_num_threads(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
