"""Audit whole runs that let one record show in 0.1, there and here, by the end-to-end audit of this version.

python docs/tools/refuted.py --old WORKTREE_OF_0.1/src [ITEM ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

from noiseproof.audits import AuditError, audit_end_to_end
from noiseproof.audits.observed import PROVEN, WEIGHTS, Observed, numbers
from noiseproof.audits.worlds import World
from noiseproof.errors import NoiseproofError
from tests.regressions import leaks

ROOT = Path(__file__).parents[2]


class Worker:
    """A process that runs scenarios with the package in a folder."""

    def __init__(self, source: Path) -> None:
        environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "tests.regressions.leaks"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, item: int, world: World, _: Path) -> Observed:
        """One whole run, as numbers."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"item": item, "data": str(world.data)}) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        if "refused" in said:
            raise NoiseproofError(said["refused"])
        proven = said["card"].get("proven")
        promised = {} if proven is None else {PROVEN: np.array([proven["epsilon"], proven["delta"]])}
        weights = {WEIGHTS: np.array(said["weights"])} if said["weights"] else {}
        card = {name: np.array([value]) for name, value in numbers("card", said["card"])}
        return {**card, **promised, **weights, "answer": np.array([said["answer"]])}

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def main() -> None:
    """Print for each item the bound on either version."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", type=int, nargs="*", default=list(leaks.RUNS))
    parser.add_argument("--old", type=Path, required=True, help="the folder src of a worktree of 0.1")
    parser.add_argument("--trials", type=int, default=40)
    given = parser.parse_args()
    for name, source in (("0.1", given.old), ("now", ROOT / "src")):
        worker = Worker(source)
        for item in given.items:
            try:
                found = audit_end_to_end(
                    leaks.records(item),
                    partial(worker, item),
                    name=leaks.RUNS[item].__name__,
                    delta=1e-5,
                    canary=leaks.canary(item),
                    records=10**6,
                    trials=given.trials,
                    jobs=1,
                )
                said = f"bound {found.epsilon:.2f}, proven {found.proven and round(found.proven.epsilon, 3)}"
            except AuditError as error:
                said = f"refused: {error}"
            print(f"{name}  item {item}: {said}", flush=True)
        worker.close()


if __name__ == "__main__":
    main()
