"""Tasks for tests, importable by worker processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from noiseproof.errors import SettingError
from noiseproof.parallel import tasks
from noiseproof.parallel.tasks import current

if TYPE_CHECKING:
    import torch


def square(number: int) -> int:
    return number * number


def add(first: int, second: int, number: int) -> int:
    return first + second + number


def where(_: int) -> tuple[int, int]:
    import torch

    return os.getpid(), torch.get_num_threads()


def within(number: int) -> list[int]:
    assert current() is not None
    return tasks.collect(square, [number, number + 1])


def draw(seed: int) -> torch.Tensor:
    import torch

    return torch.randn(1000, generator=torch.Generator().manual_seed(seed)).cumsum(0)


def die_once(folder: Path, number: int) -> int:
    """Task 2 kills its process the first time."""
    mark = folder / str(number)
    if number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_always(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    if number == 1:
        raise SettingError("one is refused.")
    return number


class OddError(Exception):
    """It can be written as a pickle but not read back."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def raise_odd(number: int) -> int:
    raise OddError("a", "b")


def unsendable(number: int) -> object:
    return lambda: number


def sleep(seconds: int) -> int:
    time.sleep(seconds)
    return seconds


def prints(line: str) -> None:
    print(line)


def progresses(total: int) -> None:
    with tasks.task_progress().task("counting", total) as bar:
        for _ in range(total):
            bar.advance()
