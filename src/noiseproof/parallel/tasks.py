"""Tasks: one function over many independent pieces of work, on local processes or a Ray cluster, with the same outcome."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress

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
        from noiseproof.parallel.cluster import run_on_cluster

        yield from run_on_cluster(function, tasks, common, where.ray, threads, attempts)
    elif where.processes == 1 or len(tasks) < 2:
        for place, task in enumerate(tasks):
            yield place, perform(function, common, task, threads)
    else:
        from noiseproof.parallel.processes import run_in_processes

        yield from run_in_processes(function, tasks, common, where.processes, threads, attempts)


# Placement: where independent tasks run, on local processes or on a Ray cluster.


@dataclass(frozen=True)
class Placement:
    """So many local processes (`jobs`, one a core if None), or a Ray cluster (`ray`: `auto` or its address)."""

    jobs: int | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        if self.jobs is not None and self.jobs < 1:
            raise SettingError(f"jobs must be at least 1, not {self.jobs}.")
        if self.jobs is not None and self.ray is not None:
            raise SettingError("give --jobs for local processes or --ray for a cluster, not both.")

    @property
    def processes(self) -> int:
        """How many local processes are meant."""
        return cores() if self.jobs is None else self.jobs


WITHIN = Placement(jobs=1)
"""Where the tasks within a task run: in its own process, one after the other."""

_CURRENT: ContextVar[Placement | None] = ContextVar("placement", default=None)


@contextmanager
def placed(placement: Placement) -> Iterator[None]:
    """While it lasts, tasks that are not told otherwise run there: how a command's `--jobs` and `--ray` reach them."""
    token = _CURRENT.set(placement)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def asked(jobs: int | None, ray: str | None) -> AbstractContextManager[None]:
    """The `placed` block that a command's `--jobs` and `--ray` ask for; nothing if neither was given."""
    return nullcontext() if jobs is None and ray is None else placed(Placement(jobs, ray))


def current() -> Placement | None:
    """The placement of the `placed` block around the caller; None outside any."""
    return _CURRENT.get()


def spread_out() -> bool:
    """Whether a `placed` block asks for tasks to be spread over processes or machines, and this is none of them."""
    where = _CURRENT.get()
    return where is not None and where is not WITHIN


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
