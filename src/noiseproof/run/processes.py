"""The parent's side of worker processes: start them, hand out rows, notice deaths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from noiseproof.errors import DataError, SettingError
from noiseproof.run.plan import Plan, Task
from noiseproof.run.worker import failed

Message = dict[str, Any]


class Worker:
    """One process and what it is at. Its messages go, with itself, into a queue that all workers share."""

    def __init__(self, plan: Plan, bundles: Path, log: IO[bytes] | None, inbox: SimpleQueue[tuple[Worker, Message]]):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from noiseproof.run.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log if log is not None else subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.task: Task | None = None
        self.since = time.perf_counter()
        self.introduced = False
        self._write({"plan": plan.to_json(), "bundles": str(bundles), "parent": os.getpid()})
        self._listener = threading.Thread(target=self._listen, args=(inbox,), daemon=True)
        self._listener.start()

    def _write(self, message: Message) -> None:
        assert self.process.stdin is not None
        # A worker that died is noticed by its listener, which sees the end of its messages.
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _listen(self, inbox: SimpleQueue[tuple[Worker, Message]]) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                try:
                    message = json.loads(line)
                except ValueError:  # cut off in the middle: the process died while writing
                    break
                inbox.put((self, message))
        code = self.process.wait()
        self._hang_up()
        inbox.put((self, {"died": code}))

    def _hang_up(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def give(self, task: Task) -> None:
        """Let it compute a row."""
        self.task, self.since = task, time.perf_counter()
        self._write({"method": task.method, "epsilon": task.epsilon})

    def stop(self) -> None:
        """End it, whatever it is at."""
        self._hang_up()
        if self.task is not None:
            self.process.kill()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join(timeout=5)


def death(code: int) -> str:
    """How a process ended, in words."""
    if code == -signal.SIGKILL:
        return "its process was killed, as systems do when memory runs out; try fewer records or a smaller network."
    if code < 0:
        return f"its process crashed ({signal.Signals(-code).name})."
    return f"its process ended without an answer (exit code {code})."


def run_tasks(
    plan: Plan,
    tasks: Sequence[Task],
    *,
    first: Worker,
    start: Callable[[], Worker],
    inbox: SimpleQueue[tuple[Worker, Message]],
    jobs: int,
    told: Callable[[Task, Message], None],
) -> Iterator[Message]:
    """Rows as they are finished, each computed by one of at most `jobs` workers; a dead worker is replaced."""
    waiting = list(reversed(tasks))
    workers = {first}
    left = len(waiting)
    try:
        if waiting:
            first.give(waiting.pop())
        while len(workers) < min(jobs, left):
            workers.add(start())
        while left:
            worker, message = inbox.get()
            if "at" in message and worker.task is not None:
                told(worker.task, message)
            elif "row" in message:
                left -= 1
                worker.task = None
                yield message["row"]
                if waiting:
                    worker.give(waiting.pop())
            elif "hello" in message:
                if waiting:
                    worker.give(waiting.pop())
            elif "died" in message or "refused" in message:
                if worker not in workers:
                    continue
                workers.discard(worker)
                if worker.task is not None:
                    left -= 1
                    seconds = time.perf_counter() - worker.since
                    yield failed(worker.task, plan, death(message.get("died", 1)), seconds)
                    worker.task = None
                elif not workers and waiting:
                    # It never came so far as to take a row, and no other is left that could.
                    task = waiting.pop()
                    left -= 1
                    yield failed(task, plan, death(message.get("died", 1)), 0.0)
                if waiting and len(workers) < jobs:
                    workers.add(start())
    finally:
        for worker in workers:
            worker.stop()


def introduction(worker: Worker, inbox: SimpleQueue[tuple[Worker, Message]]) -> Message:
    """What the first worker says of the data and the methods, or the error that kept it from loading them."""
    while True:
        _, message = inbox.get()
        if "hello" in message:
            return dict(message["hello"])
        if "refused" in message:
            worker.stop()
            raise (SettingError if message["setting"] else DataError)(message["refused"])
        if "died" in message:
            raise DataError(f"the records could not be loaded: {death(message['died'])}")
