"""Placement: where independent tasks run, on local processes or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass

from noiseproof.errors import SettingError


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
