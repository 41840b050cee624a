"""Synthetic tables: ours beside dpmm's AIM, MST and PrivBayes, on six tables, at five budgets, over three seeds.

`noiseproof bench --only synthetic` runs what is not yet under `runs/synthetic` and says how all of it compares. The peers
run in an environment of their own: `NOISEPROOF_PEERS` names its Python (`pip install dpmm` there); without it ours run alone.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.synthetic.measures import measure
from bench.synthetic.tables import TABLES, Table, named
from noiseproof.files import write_whole

EPSILONS = (0.1, 0.5, 1.0, 3.0, 10.0)
OURS = ("marginals", "dp-gan")
PEERS = ("aim", "mst", "mst-tree", "privbayes")
SEEDS = (0, 1, 2)
SHOWN = ("tv2", "trees_auc", "seconds")
PATIENCE = 1200.0
"""Seconds after which a peer is given up; that is said, and its row stays empty."""


def rows(folder: str | Path = "runs/synthetic", tables: tuple[str, ...] = tuple(TABLES)) -> list[dict[str, Any]]:
    """Our best method beside the best peer for every table, budget and shown measure: means over the seeds."""
    found: list[dict[str, Any]] = []
    for name in tables:
        for epsilon in EPSILONS:
            all_of = {way: _seeds(Path(folder), name, way, epsilon) for way in (*OURS, *_peers())}
            for what in SHOWN:
                means = {way: statistics.mean(one[what] for one in runs) for way, runs in all_of.items() if runs}
                # AUC is better if higher, the others if lower.
                pick = max if what == "trees_auc" else min
                ours, theirs = (
                    pick((means[way] for way in ways if way in means), default=None) for ways in (OURS, PEERS)
                )
                ratio = ours / theirs if ours is not None and theirs else None
                unit = "s" if what == "seconds" else ""
                what = f"{name}, epsilon {epsilon:g}: {what}"
                found.append({"what": what, "ours": ours, "theirs": theirs, "ratio": ratio, "unit": unit})
    return found


def _peers() -> tuple[str, ...]:
    return PEERS if os.environ.get("NOISEPROOF_PEERS") else ()


def _seeds(folder: Path, name: str, way: str, epsilon: float) -> list[dict[str, float]]:
    """The measures of one method over the seeds; of runs that were given up, nothing."""
    runs = (_once(folder / f"{name}-{way}-{epsilon:g}-{seed}.json", name, way, epsilon, seed) for seed in SEEDS)
    return [run for run in runs if run]


def _once(path: Path, name: str, way: str, epsilon: float, seed: int) -> dict[str, float]:
    """One run's measures, from its file or made now and kept there."""
    if path.exists():
        return dict(json.loads(path.read_text()))
    table = named(name)
    with tempfile.TemporaryDirectory() as scratch:
        found = (_peer if way in PEERS else _ours)(table, way, epsilon, seed, Path(scratch))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(found, indent=1))
    return found


def _ours(table: Table, method: str, epsilon: float, seed: int, scratch: Path) -> dict[str, float]:
    from noiseproof.data.schema import Schema
    from noiseproof.data.tables import code, decode
    from noiseproof.releases.release import DataRelease
    from noiseproof.run.training import train

    records = code(table.train, Schema.model_validate(table.schema), name=table.name)[0]
    started = time.perf_counter()
    release = train(method, records, epsilon=epsilon, delta=1e-5, seed=seed)
    seconds = time.perf_counter() - started
    assert isinstance(release, DataRelease)
    made = decode(records.public, release.dataset.features, release.dataset.labels)
    return {**measure(table, made), "seconds": seconds, "megabytes": _megabytes()}


def _peer(table: Table, method: str, epsilon: float, seed: int, scratch: Path) -> dict[str, float]:
    import pandas as pd

    table.train.to_csv(scratch / "train.csv", index=False)
    (scratch / "schema.json").write_text(json.dumps(table.schema))
    script = Path(__file__).with_name("peer.py")
    files = [str(scratch / part) for part in ("train.csv", "schema.json", "made.csv")]
    command = [os.environ["NOISEPROOF_PEERS"], str(script), method, str(epsilon), "1e-5", str(seed), *files]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        said = subprocess.run(
            command, env=environment, timeout=PATIENCE, check=True, text=True, stdout=subprocess.PIPE
        ).stdout
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return {}
    made = pd.read_csv(files[2], keep_default_na=False, na_values=[""])
    return {**measure(table, made), **json.loads(said.splitlines()[-1])}


def _megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
