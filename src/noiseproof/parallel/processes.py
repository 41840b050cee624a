"""Tasks on this machine's cores: each worker is a process, one that dies or hangs is replaced."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, TypeVar

from noiseproof.errors import NoiseproofError
from noiseproof.parallel.tasks import Lost, Options, Report, perform

T = TypeVar("T")
R = TypeVar("R")


def run_in_processes(
    function: Callable[..., R], tasks: Sequence[T], common: tuple[Any, ...], jobs: int, options: Options, report: Report
) -> Iterator[tuple[int, R | Lost]]:
    """(index, result) as tasks finish, on `jobs` processes; see `tasks.run`."""
    # Pickled once, whatever the number of workers; and never through shared memory, which containers have little of.
    work: Any = (function, common) if options.fork else pickle.dumps((function, common), pickle.HIGHEST_PROTOCOL)
    waiting = deque((index, 1) for index in range(len(tasks)))
    workers: dict[Connection, _Worker] = {}
    left = len(tasks)
    try:
        while left:
            while waiting and len(workers) < jobs:
                worker = _Worker(work, options, script=function.__module__ == "__main__")
                workers[worker.connection] = worker
                worker.give(tasks, *waiting.popleft())
            heard = wait(list(workers), _patience(workers.values(), options.timeout))
            lost: list[tuple[_Worker, Lost]] = []
            for connection in heard:
                assert isinstance(connection, Connection)
                worker = workers[connection]
                try:
                    kind, content = pickle.loads(connection.recv_bytes())
                except (EOFError, OSError):
                    lost.append((worker, Lost(_ending(worker.stop()))))
                    continue
                if kind == "raised":
                    raise content
                if kind == "ready":
                    worker.since = time.monotonic()
                elif kind == "progress":
                    report(worker.index, *content)
                else:
                    left -= 1
                    yield worker.index, content
                    if waiting:
                        worker.give(tasks, *waiting.popleft())
                        worker.since = time.monotonic()
                    else:
                        worker.stop(kill=True)
                        del workers[connection]
            if options.timeout is not None and not heard:
                slowest = min(workers.values(), key=lambda worker: worker.since)
                slowest.stop(kill=True)
                lost.append((slowest, Lost(f"it gave no answer within {options.timeout:g} seconds.", hang=True)))
            for worker, loss in lost:
                del workers[worker.connection]
                if worker.attempt < options.attempts:
                    waiting.append((worker.index, worker.attempt + 1))
                else:
                    left -= 1
                    yield worker.index, loss
    finally:
        for worker in workers.values():
            worker.stop(kill=True)


def _patience(workers: Any, timeout: float | None) -> float | None:
    """How long to wait before the first worker has taken too long; what it takes to start does not count."""
    if timeout is None:
        return None
    since = min(worker.since for worker in workers)
    return None if since == float("inf") else max(0.0, since + timeout - time.monotonic())


class _Worker:
    """The parent's side of one process."""

    def __init__(self, work: Any, options: Options, *, script: bool) -> None:
        self.index, self.attempt, self.since = -1, 0, float("inf")
        self.connection, theirs = multiprocessing.Pipe()
        self._process: ForkProcess | subprocess.Popen[bytes]
        if options.fork:
            context = multiprocessing.get_context("fork")
            self._process = context.Process(target=_serve, args=(theirs, os.getpid(), options, work), daemon=True)
            with warnings.catch_warnings():
                # Python warns of forking beside threads; the worker keeps to one thread for that reason.
                warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
                self._process.start()
        else:
            # Neither forked, which torch's threads do not survive, nor a `multiprocessing` process, which would run the
            # user's script again: only where the function is the script's own is that needed.
            descriptor = theirs.fileno()
            code = f"import sys; sys.path[:] = {sys.path!r}; from noiseproof.parallel.processes import main; main({descriptor})"
            log = options.log.open("ab") if options.log is not None else None
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                # What a task prints must not get into a command's output.
                stdout=log or 2,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": str(options.threads), "PYTHONUNBUFFERED": "1"},
                pass_fds=(descriptor,),
            )
            if log is not None:
                log.close()
            found = spawn.get_preparation_data("worker") if script else {}
            main_module = {key: value for key, value in found.items() if key.startswith("init_main")}
            self._send(pickle.dumps((main_module, os.getpid(), options)))
            self._send(work)
        theirs.close()

    def give(self, tasks: Sequence[Any], index: int, attempt: int) -> None:
        """Let it perform a task."""
        self.index, self.attempt = index, attempt
        self._send(pickle.dumps(tasks[index], pickle.HIGHEST_PROTOCOL))

    def _send(self, message: bytes) -> None:
        # If it died, whoever waits for its answer sees the end of the pipe and runs the task again.
        with suppress(OSError):
            self.connection.send_bytes(message)

    def stop(self, *, kill: bool = False) -> int:
        """The exit code of a process that has ended, or that is ended here whatever it is doing."""
        if kill:
            self._process.kill()
        if isinstance(self._process, subprocess.Popen):
            code = self._process.wait()
        else:
            self._process.join()
            code = self._process.exitcode or 0
        self.connection.close()
        return code


def _ending(code: int) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed, as systems do when memory runs out; try fewer jobs, fewer records or a smaller network."
    return f"its process ended without an answer ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})."


def main(descriptor: int) -> None:
    """A fresh worker's life; `descriptor` is its end of the pipe."""
    connection = Connection(descriptor)
    main_module, parent, options = pickle.loads(connection.recv_bytes())
    spawn.prepare(main_module)
    _serve(connection, parent, options, connection.recv_bytes())


def _serve(connection: Connection, parent: int, options: Options, work: Any) -> None:
    """Perform tasks until the parent is gone or ends this process."""
    # A terminal's Ctrl-C goes to every process of the group; the parent stops its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()

    def report(description: str, done: int, total: int) -> None:
        connection.send_bytes(pickle.dumps(("progress", (description, done, total))))

    with suppress(EOFError, OSError):
        import torch  # noqa: F401  (here, since what a worker takes to start does not count as a task's time)

        connection.send_bytes(pickle.dumps(("ready", None)))
        while True:
            message = connection.recv_bytes()
            try:
                if isinstance(work, bytes):
                    # At the first task, so that it can say why if this fails.
                    work = pickle.loads(work)
                function, common = work
                outcome = "result", perform(function, common, pickle.loads(message), options.threads, report)
            except Exception as error:
                outcome = "raised", error
            connection.send_bytes(_pickled(*outcome))


def _pickled(kind: str, content: Any) -> bytes:
    try:
        answer = pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL)
        if kind == "raised":
            # Some exceptions can be written but not read back.
            pickle.loads(answer)
        return answer
    except Exception:
        what = type(content).__name__
        return pickle.dumps(("raised", NoiseproofError(f"a task ended with a {what}, which cannot be sent back.")))


def _end_with(parent: int) -> None:
    """End this process when its parent is gone, so that a killed command leaves nothing running."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
