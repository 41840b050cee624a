"""Memory: what some work adds to a process at its peak."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_PEAK = Path("/proc/self/clear_refs")
_GIVE_BACK = "MALLOC_MMAP_THRESHOLD_"
"""The size from which on glibc asks the system for memory, and gives it back; settings of other systems' libraries differ."""


def alone(measure: Callable[..., T], *arguments: object) -> T:
    """What `measure` (of a module) finds in a new process, where no earlier work has left memory lying about.

    The C library is told to give back at once what is freed there. Left to itself it keeps pieces for later, so that one step's
    peak came out as 300 MB or as 440, depending on what had been freed before.
    """
    before = os.environ.get(_GIVE_BACK)
    os.environ[_GIVE_BACK] = str(2**16)
    try:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            return pool.apply(measure, arguments)
    finally:
        if before is None:
            del os.environ[_GIVE_BACK]
        else:
            os.environ[_GIVE_BACK] = before


def give_back() -> None:
    """Hand memory that is free back to the system, so that it is seen when it is used again."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)


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
