"""Processes: tasks on this machine's cores, each worker a process of its own, and a dead one replaced."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from noiseproof.errors import NoiseproofError
from noiseproof.parallel.tasks import Died, perform_alone

T = TypeVar("T")
R = TypeVar("R")


def run_in_processes(
    function: Callable[..., R], tasks: Sequence[T], common: tuple[Any, ...], jobs: int, threads: int, attempts: int
) -> Iterator[tuple[int, R | Died]]:
    """(place, result) as tasks finish, on `jobs` processes; see `tasks.run`."""
    # Pickled once, whatever the number of workers; and never through shared memory, which containers have little of.
    work = pickle.dumps((function, common), pickle.HIGHEST_PROTOCOL)
    setup = pickle.dumps((threads, os.getpid(), work), pickle.HIGHEST_PROTOCOL)
    waiting = deque((place, 1) for place in range(len(tasks)))
    workers: dict[Connection, _Worker] = {}
    left = len(tasks)
    try:
        while left:
            while waiting and len(workers) < jobs:
                worker = _Worker(setup)
                workers[worker.connection] = worker
                worker.give(tasks, *waiting.popleft())
            for connection in wait(list(workers)):
                assert isinstance(connection, Connection)
                worker = workers[connection]
                try:
                    outcome = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    why = worker.death()
                    del workers[connection]
                    if worker.attempt < attempts:
                        waiting.append((worker.place, worker.attempt + 1))
                    else:
                        left -= 1
                        yield worker.place, Died(why)
                    continue
                if isinstance(outcome, _Raised):
                    raise outcome.error
                left -= 1
                yield worker.place, outcome
                if waiting:
                    worker.give(tasks, *waiting.popleft())
                else:
                    worker.stop()
                    del workers[connection]
    finally:
        for worker in workers.values():
            worker.stop()


class _Worker:
    """The parent's side of one process."""

    def __init__(self, setup: bytes) -> None:
        # Not forked: torch's threads do not survive that.
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.place, self.attempt = -1, 0
        self._send(setup)

    def give(self, tasks: Sequence[Any], place: int, attempt: int) -> None:
        """Let it perform a task."""
        self.place, self.attempt = place, attempt
        self._send(pickle.dumps(tasks[place], pickle.HIGHEST_PROTOCOL))

    def _send(self, message: bytes) -> None:
        # If it died, whoever waits for its answer sees the end of the pipe and runs the task again.
        with suppress(OSError):
            self.connection.send_bytes(message)

    def death(self) -> str:
        """How it ended, in words, once its pipe is closed."""
        self.process.join()
        code = self.process.exitcode or 0
        self.connection.close()
        if code == -signal.SIGKILL:
            return "its process was killed, as systems do when memory runs out; try fewer jobs."
        return (
            f"its process ended without an answer ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})."
        )

    def stop(self) -> None:
        """End it, whatever it is at."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class _Raised:
    """What a task raised, on its way to the parent."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _serve(connection: Connection) -> None:
    """A worker's life: the setup, then tasks until it is stopped."""
    # A terminal's Ctrl-C goes to every process of the group; the parent stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        setup = connection.recv_bytes()
        while True:
            connection.send_bytes(_answer(setup, connection.recv_bytes()))


def _answer(setup: bytes, message: bytes) -> bytes:
    outcome: Any
    try:
        function, common = _read(setup)
        outcome = perform_alone(function, common, pickle.loads(message))
    except Exception as error:
        outcome = _Raised(error)
    try:
        answer = pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
        if isinstance(outcome, _Raised):
            # Some exceptions can be written but not read back.
            pickle.loads(answer)
        return answer
    except Exception:
        what = type(outcome.error if isinstance(outcome, _Raised) else outcome).__name__
        return pickle.dumps(_Raised(NoiseproofError(f"a task ended with a {what}, which cannot be sent back.")))


@lru_cache(maxsize=1)
def _read(setup: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and what all tasks share, read at the first task: if that fails, the task says why."""
    threads, parent, work = pickle.loads(setup)
    # For a torch that is yet to be imported; one that is here already is told.
    os.environ["OMP_NUM_THREADS"] = str(threads)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    function, common = pickle.loads(work)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    return function, common


def _leave_with(parent: int) -> None:
    """End this process when its parent is gone: what was killed leaves nothing running."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
