"""The experiment: every data set's repeats, on all cores, kept as they are finished."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from noiseproof.progress import SILENT, Progress
from noiseproof.scale import tasks
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
        for result in _run(missing, plan, store, seed, runner, workers):
            results[result.row, result.data, result.repeat] = result
            task.advance(data=result.data, repeat=result.repeat)
    return [results[key] for key in todo]


def _run(
    todo: Sequence[tuple[str, str, int]], plan: Plan, store: Store, seed: int, runner: Runner, workers: int | None
) -> Iterator[RunResult]:
    # Results are kept here, not where they were computed: that may be another machine.
    for _, result in tasks.run(_work, todo, common=(plan, seed, runner), jobs=workers):
        store.save(result)
        yield result


def _work(plan: Plan, seed: int, runner: Runner, key: tuple[str, str, int]) -> RunResult:
    return runner(*key, plan, seed)
