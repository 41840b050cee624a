"""Synthetic tables: ours beside private-pgm's, dpmm's and smartnoise-synth's, on six tables, at five budgets, three seeds.

Every run is kept as a small file in `bench/synthetic/results`, so that what is there is never run again; a file that is
deleted is. `noiseproof bench --only synthetic` runs what is missing and says how all of it compares; `python -m
bench.synthetic run` does so for a part of it or for some minutes, and `python -m bench.synthetic page` writes the page.
The peers run in environments of their own: `NOISEPROOF_PEERS` names the Python of dpmm's (`pip install dpmm`),
`NOISEPROOF_PGM_PYTHON` that of private-pgm's and `NOISEPROOF_PGM` its folder, `NOISEPROOF_SMARTNOISE` that of
smartnoise-synth's (`docs/synthetic.md` has the versions); without them, what was kept of them is read and nothing of theirs
is run.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from bench.synthetic.measures import measure
from bench.synthetic.tables import TABLES, named
from noiseproof.files import write_whole

EPSILONS = (0.1, 0.5, 1.0, 3.0, 10.0)
OURS = ("marginals", "dp-gan")
DPMM = ("mst", "mst-64", "mst-tree", "privbayes", "privbayes-tree", "aim", "aim-tree")
PGM = ("pgm-mst", "pgm-mst-64", "pgm-mst-halved", "pgm-mst-halved-64", "pgm-aim", "pgm-aim-halved")
SMARTNOISE = ("dp-ctgan", "pate-gan")
PEERS = (*PGM, *DPMM, *SMARTNOISE)
SEEDS = (0, 1, 2)
SHOWN = ("tv2", "trees_auc", "seconds")
HIGHER = ("trees_auc", "trees_accuracy", "logistic_auc", "logistic_accuracy")
"""Measures that are better if higher; of the others lower is better."""
RESULTS = Path(__file__).with_name("results")
"""Where runs are kept."""
PATIENCE = 240
"""Seconds of processor time after which a run is given up; that is kept, and its row stays empty."""

Runs = list[dict[str, float]]


def rows(folder: str | Path = RESULTS, tables: tuple[str, ...] = tuple(TABLES)) -> list[dict[str, Any]]:
    """Our best method beside the best peer for every table, budget and shown measure: means over the seeds."""
    found: list[dict[str, Any]] = []
    for name in tables:
        for epsilon in EPSILONS:
            all_of = {way: seeds(Path(folder), name, way, epsilon) for way in (*OURS, *PEERS)}
            for what in SHOWN:
                ours, theirs = best(all_of, OURS, what), best(all_of, PEERS, what)
                ratio = ours[1] / theirs[1] if ours and theirs and theirs[1] else None
                found.append(
                    {
                        "what": f"{name}, epsilon {epsilon:g}: {what}",
                        "ours": ours and ours[1],
                        "theirs": theirs and theirs[1],
                        "ratio": ratio,
                        "unit": "s" if what == "seconds" else "",
                    }
                )
    return found


def best(runs: dict[str, Runs], ways: tuple[str, ...], what: str) -> tuple[str, float] | None:
    """Which of some methods is best in a measure over the seeds, and that measure; None if none ran."""
    found = [(way, over_seeds(runs[way], what)) for way in ways if runs.get(way)]
    sign = -1 if what in HIGHER else 1
    return min(found, key=lambda one: sign * one[1], default=None)


def over_seeds(runs: Runs, what: str) -> float:
    """A measure's mean; of seconds the least, which work beside a run disturbs least."""
    return (min if what == "seconds" else mean)(one[what] for one in runs)


def seeds(folder: Path, name: str, way: str, epsilon: float, *, run: bool = True) -> Runs:
    """The measures of one method over the seeds, kept or (with `run`) made now; of runs that were given up, nothing."""
    found = (kept(folder, name, way, epsilon, seed, run=run) for seed in SEEDS)
    return [one for one in found if one]


def kept(
    folder: Path, name: str, way: str, epsilon: float, seed: int, *, run: bool = True, patience: int = PATIENCE
) -> dict[str, float] | None:
    """One run's measures from its file, or made now and kept there; empty if it was given up, None if it never ran."""
    path = folder / f"{name}-{way}-{epsilon:g}-{seed}.json"
    if not path.exists():
        if not run or _program(way)[0] is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(_made(name, way, epsilon, seed, patience), indent=1) + "\n")
    found = json.loads(path.read_text())
    return {} if "given up after" in found else dict(found)


_named = cache(named)


def _program(way: str) -> tuple[str | None, str]:
    """The Python that a method runs with, None where there is none, and the program."""
    if way in PGM:
        return os.environ.get("NOISEPROOF_PGM_PYTHON"), "pgm.py"
    if way in SMARTNOISE:
        return os.environ.get("NOISEPROOF_SMARTNOISE"), "smartnoise.py"
    return (os.environ.get("NOISEPROOF_PEERS"), "peer.py") if way in DPMM else (sys.executable, "ours.py")


def _made(name: str, way: str, epsilon: float, seed: int, patience: int) -> dict[str, float]:
    """One run in a process of its own with one thread, so that seconds of processor time are those of a core."""
    import pandas as pd

    table = _named(name)
    python, script = _program(way)
    environment = {key: value for key, value in os.environ.items() if way not in PEERS or key != "PYTHONPATH"}
    environment |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    with tempfile.TemporaryDirectory() as scratch:
        files = [str(Path(scratch, part)) for part in ("train.csv", "schema.json", "made.csv")]
        table.train.to_csv(files[0], index=False)
        Path(files[1]).write_text(json.dumps(table.schema))
        command = [str(python), str(Path(__file__).with_name(script)), way, str(epsilon), "1e-5", str(seed), *files]
        said = subprocess.run(
            command,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (patience, patience)),
        )
        if said.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
            return {"given up after": patience}
        said.check_returncode()
        made = pd.read_csv(files[2], keep_default_na=False, na_values=[""])
    found = {**measure(table, made), **json.loads(said.stdout.splitlines()[-1])}
    return {what: float(f"{value:.5g}") for what, value in found.items()}
