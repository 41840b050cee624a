"""The experiment: every data set's repeats, on all cores, kept as they are finished."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeAlias

import torch

from noiseproof.progress import SILENT, Progress
from noiseproof.studies.lu.plans import Plan
from noiseproof.studies.lu.run import RunResult
from noiseproof.studies.lu.store import Store

Runner: TypeAlias = Callable[[str, str, int, Plan, int], RunResult]
"""Runs one repeat: the paper's row, the data set, the repeat, the plan and the seed."""


def run_all(
    sets: Sequence[tuple[str, str]],
    plan: Plan,
    store: Store,
    *,
    seed: int,
    runner: Runner,
    progress: Progress = SILENT,
    workers: int | None = None,
) -> list[RunResult]:
    """Every repeat of every (row, data set) that `store` does not hold yet; all of them, in that order.

    Each worker is a process with one thread, so that what comes out depends neither on the order nor on the number of
    cores.
    """
    todo = [(row, data, repeat) for row, data in sets for repeat in range(plan.repeats)]
    results = {key: found for key in todo if (found := store.load(key[1], key[2])) is not None}
    missing = [key for key in todo if key not in results]
    with progress.task("study lu", len(todo)) as task:
        task.advance(len(results))
        for result in _run(missing, plan, store, seed, runner, workers or _cores()):
            results[result.row, result.data, result.repeat] = result
            task.advance(data=result.data, repeat=result.repeat)
    return [results[key] for key in todo]


def _run(
    todo: Sequence[tuple[str, str, int]], plan: Plan, store: Store, seed: int, runner: Runner, workers: int
) -> Iterator[RunResult]:
    if workers == 1 or len(todo) < 2:
        threads = torch.get_num_threads()
        _one_thread()
        try:
            for key in todo:
                yield _work(key, plan, store, seed, runner)
        finally:
            torch.set_num_threads(threads)
        return
    # Not forked: torch's threads do not survive that.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(todo)), mp_context=context, initializer=_one_thread) as pool:
        futures = [pool.submit(_work, key, plan, store, seed, runner) for key in todo]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(key: tuple[str, str, int], plan: Plan, store: Store, seed: int, runner: Runner) -> RunResult:
    result = runner(*key, plan, seed)
    store.save(result)
    return result


def _one_thread() -> None:
    torch.set_num_threads(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
