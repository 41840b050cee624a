"""Tasks: one function over many independent pieces of work, on local processes or a Ray cluster, with the same outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress
from noiseproof.scale.placement import WITHIN, Placement, current, placed

T = TypeVar("T")
R = TypeVar("R")


class LostTaskError(NoiseproofError):
    """A task's process or machine died every time that it was tried."""


def run(
    function: Callable[..., R],
    tasks: Sequence[T],
    *,
    common: tuple[Any, ...] = (),
    jobs: int | None = None,
    ray: str | None = None,
    threads: int = 1,
    attempts: int = 3,
    lost: Callable[[T, str], R] | None = None,
    progress: Progress = SILENT,
    description: str = "tasks",
) -> Iterator[tuple[int, R]]:
    """`function(*common, task)` for every task; yields (place of the task, result) as results come in.

    `ray` is `auto` or the address of a Ray cluster; without it `jobs` local processes work (1: this process; None: one
    a core). Where neither is given, a `placed` block around the call decides. Every worker has `threads` torch
    threads, and tasks within tasks run in their worker, so that the outcome does not depend on where anything ran;
    take random numbers from seeds in the tasks (`seeds`). `common` are leading arguments that are sent once to each
    worker or node, for data that all tasks share.

    A task whose process or machine dies is run again, up to `attempts` times; then `lost(task, why)` stands in for its
    result, or `LostTaskError` is raised. What the function raises is raised here, and the other tasks are stopped.
    The function must be importable by its module (a script needs `if __name__ == "__main__":`), its arguments and
    results must be picklable; on Ray, nodes need the same version of noiseproof.
    """
    if attempts < 1 or threads < 1:
        raise SettingError(f"attempts and threads must be at least 1, not {attempts} and {threads}.")
    where = Placement(jobs, ray) if jobs is not None or ray is not None else current() or Placement()
    with progress.task(description, len(tasks)) as bar:
        for place, outcome in _outcomes(function, tasks, common, where, threads, attempts):
            if isinstance(outcome, Died):
                if lost is None:
                    raise LostTaskError(f"task {place} of {len(tasks)} was lost {attempts} times: {outcome.why}")
                result = lost(tasks[place], outcome.why)
            else:
                result = outcome
            bar.advance()
            yield place, result


def collect(function: Callable[..., R], tasks: Sequence[T], **options: Any) -> list[R]:
    """The results of `run` as a list in the order of the tasks."""
    results = dict(run(function, tasks, **options))
    return [results[place] for place in range(len(tasks))]


def seeds(seed: int, count: int) -> list[int]:
    """One seed a task, each from `seed` and the task's place alone; below 2^63."""
    if seed < 0:
        raise SettingError(f"a seed must be 0 or more, not {seed}.")
    return [
        int(np.random.SeedSequence(seed, spawn_key=(place,)).generate_state(1, np.uint64)[0] >> 1)
        for place in range(count)
    ]


class Died:
    """What came of a task whose worker died at every attempt."""

    def __init__(self, why: str) -> None:
        self.why = why


def perform(function: Callable[..., R], common: tuple[Any, ...], task: T, threads: int) -> R:
    """Run one task in this process, with that many torch threads, and the tasks within it one after the other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return perform_alone(function, common, task)
    finally:
        torch.set_num_threads(before)


def perform_alone(function: Callable[..., R], common: tuple[Any, ...], task: T) -> R:
    """Run one task in this process, and the tasks within it one after the other."""
    with placed(WITHIN):
        return function(*common, task)


def _outcomes(
    function: Callable[..., R],
    tasks: Sequence[T],
    common: tuple[Any, ...],
    where: Placement,
    threads: int,
    attempts: int,
) -> Iterator[tuple[int, R | Died]]:
    if where.ray is not None:
        from noiseproof.scale.cluster import run_on_cluster

        yield from run_on_cluster(function, tasks, common, where.ray, threads, attempts)
    elif where.processes == 1 or len(tasks) < 2:
        for place, task in enumerate(tasks):
            yield place, perform(function, common, task, threads)
    else:
        from noiseproof.scale.processes import run_in_processes

        yield from run_in_processes(function, tasks, common, where.processes, threads, attempts)
