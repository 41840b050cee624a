"""Memory: what some work adds to a process at its peak."""

from __future__ import annotations

import multiprocessing
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_PEAK = Path("/proc/self/clear_refs")


def alone(measure: Callable[..., T], *arguments: object) -> T:
    """What `measure` (of a module) finds in a new process, where no earlier work has left memory lying about."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def measurable() -> bool:
    """Whether the system lets a process forget its peak so far; else an earlier, higher one hides what comes."""
    return _PEAK.exists()


def added(work: Callable[[], Any]) -> float:
    """Megabytes that `work` adds to the process at its peak; memory that was freed before and kept is not seen."""
    if not measurable():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        work()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    _PEAK.write_text("5")  # forget the peak so far
    before = _resident("VmRSS")
    work()
    return (_resident("VmHWM") - before) / 1024


def _resident(field: str) -> int:
    """A field of the process's memory, in kilobytes."""
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])
