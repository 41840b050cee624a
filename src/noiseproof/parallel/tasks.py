"""One function over many independent tasks, on local processes or a Ray cluster, with the same outcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import SILENT, Progress, Task

T = TypeVar("T")
R = TypeVar("R")

Report = Callable[[int, str, int, int], None]
"""Hears which task (its index) is doing what, and how many of how many steps of it are done."""


class LostTaskError(NoiseproofError):
    """A task's process or machine died every time that it was tried."""


@dataclass(frozen=True)
class Lost:
    """Why a task has no result; `run` hands it to its `lost` function.

    Examples:
        >>> Lost("it gave no answer within 60 seconds.", hang=True).why
        'it gave no answer within 60 seconds.'
    """

    why: str
    """What happened at the last attempt, in words."""
    hang: bool = False
    """Whether the worker was alive and took longer than the timeout, rather than died."""


@dataclass(frozen=True)
class Options:
    """How workers run; see `run`."""

    threads: int = 1
    attempts: int = 3
    timeout: float | None = None
    log: Path | None = None
    fork: bool = False

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.threads < 1:
            raise SettingError(f"attempts and threads must be at least 1, not {self.attempts} and {self.threads}.")
        if self.timeout is not None and not self.timeout > 0:
            raise SettingError(f"the timeout must be more than 0 seconds, not {self.timeout}.")


def run(
    function: Callable[..., R],
    tasks: Sequence[T],
    *,
    common: tuple[Any, ...] = (),
    jobs: int | None = None,
    ray: str | None = None,
    threads: int = 1,
    attempts: int = 3,
    timeout: float | None = None,
    isolated: bool = False,
    fork: bool = False,
    log: Path | None = None,
    lost: Callable[[T, Lost], R] | None = None,
    report: Report | None = None,
    progress: Progress = SILENT,
    description: str = "tasks",
) -> Iterator[tuple[int, R]]:
    """Call `function(*common, task)` for every task, and give results as they come in.

    A task whose process or machine dies, or that takes too long, is run again. What the function raises is raised here,
    and the other tasks are stopped; so they are when the iterator is closed, and when this process ends, however it ends.
    Tasks within tasks run in their worker, so that the outcome does not depend on where anything ran; take random
    numbers from seeds in the tasks (`seeds`). On local processes what a task prints goes to stderr.

    Args:
        function: Importable by its module (or the script's own, if that has `if __name__ == "__main__":`).
        tasks: Picklable, as are `common` and the results. On Ray, nodes need the same version of noiseproof.
        common: Leading arguments that are sent once to each worker or node, for data that all tasks share.
        jobs: Local processes; 1 means this process, None one for each core. Where neither `jobs` nor `ray` is given, a
            `placed` block around the call decides.
        ray: `auto` or the address of a Ray cluster.
        threads: torch's threads in every worker.
        attempts: How often a task is tried.
        timeout: Seconds after which a task is lost; not counted on Ray.
        isolated: Whether tasks run in processes apart even if one process is enough, so that this one survives them.
        fork: Fork the workers, for functions that cannot be pickled. They must then not use OpenMP threads or CUDA that
            this process has used.
        log: A file that local workers' stdout and stderr are added to, instead of stderr.
        lost: Gives the result of a task that is lost; without it `LostTaskError` is raised.
        report: Hears of the progress that tasks report to `task_progress()`; not on Ray.
        progress: Shows how many tasks are done, as `description`.
        description: What the tasks are.

    Yields:
        The index of a task and its result.

    Raises:
        LostTaskError: If a task was lost and nothing stands in for it.
        SettingError: If the options make no sense, or no cluster answers.
        MissingPartError: If a cluster is asked for and Ray is not installed.

    Examples:
        >>> import math
        >>> for index, result in run(math.factorial, [3, 4, 5], jobs=1):
        ...     print(index, result)
        0 6
        1 24
        2 120
    """
    options = Options(threads, attempts, timeout, log, fork)
    where = Placement(jobs, ray) if jobs is not None or ray is not None else current() or Placement()
    heard = report or (lambda *_: None)
    if where.ray is not None:
        from noiseproof.parallel.cluster import run_on_cluster

        outcomes = run_on_cluster(function, tasks, common, where.ray, options)
    elif isolated or timeout is not None or (where.processes > 1 and len(tasks) > 1):
        from noiseproof.parallel.processes import run_in_processes

        outcomes = run_in_processes(function, tasks, common, where.processes, options, heard)
    else:
        outcomes = (
            (index, perform(function, common, task, threads, lambda *at, index=index: heard(index, *at)))
            for index, task in enumerate(tasks)
        )
    with progress.task(description, len(tasks)) as bar:
        for index, outcome in outcomes:
            if not isinstance(outcome, Lost):
                result = outcome
            elif lost is not None:
                result = lost(tasks[index], outcome)
            else:
                raise LostTaskError(f"task {index} of {len(tasks)} was lost {attempts} times: {outcome.why}")
            bar.advance()
            yield index, result


def collect(function: Callable[..., R], tasks: Sequence[T], **options: Any) -> list[R]:
    """Call `function(*common, task)` for every task, and return the results in the order of the tasks.

    Args:
        function: As for `run`.
        tasks: As for `run`.
        options: All others of `run`.

    Returns:
        One result for each task.

    Raises:
        LostTaskError: If a task was lost and nothing stands in for it.
        SettingError: If the options make no sense, or no cluster answers.

    Examples:
        >>> import math
        >>> collect(math.gcd, [18, 20, 21], common=(12,), jobs=1)
        [6, 4, 3]
    """
    results = dict(run(function, tasks, **options))
    return [results[index] for index in range(len(tasks))]


def seeds(seed: int, count: int) -> list[int]:
    """One seed for each task, from `seed` and the task's index alone.

    Args:
        seed: 0 or more.
        count: How many seeds.

    Returns:
        Whole numbers from 0 to below 2^63; more of them begin with the same ones.

    Raises:
        SettingError: If the seed is negative.

    Examples:
        >>> seeds(0, 2) == seeds(0, 3)[:2]
        True
    """
    if seed < 0:
        raise SettingError(f"a seed must be 0 or more, not {seed}.")
    return [
        int(np.random.SeedSequence(seed, spawn_key=(index,)).generate_state(1, np.uint64)[0] >> 1)
        for index in range(count)
    ]


def perform(
    function: Callable[..., R],
    common: tuple[Any, ...],
    task: T,
    threads: int,
    report: Callable[[str, int, int], None] | None = None,
) -> R:
    """Run one task in this process, with that many torch threads, and the tasks within it one after the other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    token = _REPORT.set(report)
    try:
        with placed(WITHIN):
            return function(*common, task)
    finally:
        _REPORT.reset(token)
        torch.set_num_threads(before)


_REPORT: ContextVar[Callable[[str, int, int], None] | None] = ContextVar("report", default=None)


def task_progress() -> Progress:
    """Within a task: progress that is passed on to the `report` of `run`, at most five times a second.

    Returns:
        What to call `task` on; outside a task it is silent.

    Examples:
        >>> def train(epochs):
        ...     with task_progress().task("epochs", epochs) as bar:
        ...         for _ in range(epochs):
        ...             bar.advance()
        >>> def report(index, description, done, total):
        ...     print(f"task {index}: {done} of {total} {description}")
        >>> _ = collect(train, [3], jobs=1, report=report)
        task 0: 1 of 3 epochs
    """
    report = _REPORT.get()
    return SILENT if report is None else _Reported(report)


class _Reported(Progress):
    def __init__(self, report: Callable[[str, int, int], None]) -> None:
        self._report = report

    def task(self, description: str, total: int | None) -> Task:
        return _ReportedTask(self._report, description, total or 0)


class _ReportedTask(Task):
    def __init__(self, report: Callable[[str, int, int], None], description: str, total: int) -> None:
        self._report, self._description, self._total = report, description, total
        self._done, self._last = 0, 0.0

    def advance(self, steps: int = 1, **status: float | str) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._last > 0.2:
            self._last = now
            self._report(self._description, self._done, self._total)


@dataclass(frozen=True)
class Placement:
    """Where tasks run: on local processes, or on a Ray cluster.

    Raises:
        SettingError: If there are fewer than one job, or both are given.

    Examples:
        >>> Placement(jobs=4).processes
        4
    """

    jobs: int | None = None
    """Local processes; one for each core that this process may use if None."""
    ray: str | None = None
    """The address of a Ray cluster, or `auto` for the one that this machine belongs to; None for local processes."""

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
    """Within the block, `run` and `collect` use this placement unless they are given `jobs` or `ray` themselves.

    A command's `--jobs` and `--ray` reach the tasks this way, through functions that know nothing of either.

    Args:
        placement: Where tasks run.

    Yields:
        Nothing.

    Examples:
        >>> import math
        >>> with placed(Placement(jobs=1)):
        ...     collect(math.isqrt, [16, 25])
        [4, 5]
    """
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
