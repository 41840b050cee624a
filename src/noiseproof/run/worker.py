"""A worker process: computes rows one after another, and tells its parent how it goes.

It reads lines of JSON from stdin (the plan, then tasks) and writes lines of JSON to what was its stdout. A crash takes
one row with it, and the parent starts another worker.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.progress import Progress
from noiseproof.progress import Task as Work
from noiseproof.run.plan import Plan, Task

if TYPE_CHECKING:
    from noiseproof.data.splits import Split


_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""How torch's allocators, which raise plain RuntimeErrors, say it."""


class _Wire:
    """Messages to the parent; when it is gone, so is this process."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def send(self, **message: Any) -> None:
        try:
            self._stream.write(json.dumps(message) + "\n")
            self._stream.flush()
        except BrokenPipeError:
            os._exit(1)


class _WireProgress(Progress):
    """Progress that is told to the parent, a few times a second at most."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire

    def task(self, description: str, total: int) -> Work:
        return _WireTask(self._wire, description, total)


class _WireTask(Work):
    def __init__(self, wire: _Wire, description: str, total: int) -> None:
        self._wire, self._description, self._total = wire, description, total
        self._done, self._told = 0, 0.0

    def advance(self, steps: int = 1, **status: float | str) -> None:
        self._done += steps
        now = time.monotonic()
        if now - self._told > 0.2:
            self._told = now
            self._wire.send(at=self._description, done=self._done, total=self._total)


def words(error: BaseException) -> str:
    """What happened, as a sentence without private values: of foreign errors only the kind is told."""
    import errno

    if isinstance(error, NoiseproofError):
        return str(error)
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)
    ):
        return "ran out of memory; try fewer records, a smaller batch or a smaller network."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full."
    if isinstance(error, OSError):
        return f"the operating system says: {error.strerror or type(error).__name__}."
    return f"something unforeseen went wrong ({type(error).__name__}); errors.log says where."


def load_for(plan: Plan) -> tuple[Split, tuple[str, ...]]:
    """The plan's records and the names of all methods; what the plan cannot run is refused before records are read."""
    from noiseproof import methods
    from noiseproof.attacks import attack_names
    from noiseproof.data import load
    from noiseproof.methods import recipes

    for module in plan.imports:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            raise SettingError(f"there is no module {module!r} to import methods from.") from None
    if plan.attack not in attack_names("answers"):
        known = ", ".join(attack_names("answers"))
        raise SettingError(f"--attack must be one of {known}, not {plan.attack!r}.")
    registered = tuple(methods.registry())
    plan.tasks(registered)
    recipes.check(plan.recipe)
    return load(plan.data, target=plan.target, schema=plan.schema, seed=plan.seed), registered


def introduce(split: Split, registered: tuple[str, ...]) -> dict[str, Any]:
    """What a comparison says of its data, its methods and its software, as JSON."""
    import hashlib

    import numpy
    import torch

    import noiseproof

    public = split.train.public
    both = split.train.fingerprint() + split.test.fingerprint()
    return {
        "registered": registered,
        "data": {
            "name": split.train.name,
            "records": len(split.train),
            "test_records": len(split.test),
            "shape": public.shape,
            "classes": len(public.classes),
            "kind": public.kind,
            "bounds": public.bounds,
            "notes": public.notes,
        },
        "remarks": split.remarks,
        "fingerprint": hashlib.sha256(both.encode()).hexdigest(),
        "versions": {
            "noiseproof": noiseproof.__version__,
            "python": ".".join(map(str, sys.version_info[:3])),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
        },
    }


def _leave_with(parent: int) -> None:
    """End this process when its parent is gone: a killed comparison leaves nothing running."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Serve one parent until it closes stdin."""
    # What a method prints must not get between the messages.
    wire = _Wire(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    asked = json.loads(sys.stdin.readline())
    threading.Thread(target=_leave_with, args=(asked["parent"],), daemon=True).start()
    plan, bundles = Plan.from_json(asked["plan"]), Path(asked["bundles"])
    import torch

    # One thread: sums then do not depend on the number of cores, and workers do not fight over them.
    torch.set_num_threads(1)
    try:
        split, registered = load_for(plan)
    except NoiseproofError as error:
        wire.send(refused=str(error), setting=isinstance(error, SettingError))
        return
    except Exception as error:
        traceback.print_exc()
        wire.send(refused=words(error), setting=False)
        return
    wire.send(hello=introduce(split, registered))
    for line in sys.stdin:
        task = Task(**json.loads(line))
        started = time.perf_counter()
        try:
            from noiseproof.run.row import compute_row

            row = compute_row(plan, task, split, bundles, _WireProgress(wire))
        except Exception as error:
            traceback.print_exc()
            row = failed(task, plan, words(error), time.perf_counter() - started)
        wire.send(row=row)


def failed(task: Task, plan: Plan, what: str, seconds: float) -> dict[str, Any]:
    """The row of a method that came to no result: it says what happened."""
    return {
        "method": task.method,
        "epsilon": task.epsilon,
        "delta": plan.delta,
        "status": "failed",
        "error": what,
        "accuracy": None,
        "card": None,
        "attack": None,
        "audit": None,
        "verdict": None,
        "bundle": None,
        "seconds": round(seconds, 3),
    }
