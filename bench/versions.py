"""Steps of an earlier version beside those of this one and of plain torch.

`python -m bench.versions --old WORKTREE/src [--networks mlp cnn lstm] [--turns 15] [--out FILE]`

Two versions of one package do not fit into one process, so that each contender has its own and they take turns: one steps
for a fifth of a second while the others wait. Medians over all turns; a ratio is over plain torch's in the same run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CONTENDERS = {
    "plain": ("new", "plain"),
    "old": ("old", "seeded"),
    "new": ("new", "seeded"),
    "old, secure": ("old", "secure"),
    "new, secure": ("new", "secure"),
}
WARM, SECONDS = 80, 0.2
"""Steps before the first turn, in which the new engine checks itself, and how long a turn lasts."""


def work(network: str, version: str, kind: str) -> None:
    """Build one contender's step; then answer every line of stdin with the milliseconds of a turn's steps."""
    import torch
    from torch.nn import functional as F

    from bench.networks import NETWORKS

    features, labels = NETWORKS[network].records(None)
    torch.manual_seed(0)
    module = NETWORKS[network].build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def losses(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        found = F.cross_entropy(module(inputs), targets, reduction="none")
        return found if found.ndim == 1 else found.mean(1)

    if kind == "plain":

        def step() -> None:
            order = torch.randperm(len(labels))
            optimizer.zero_grad()
            losses(features.index_select(0, order), labels.index_select(0, order)).mean().backward()
            optimizer.step()

    else:
        engine = _engine(module, version, secure=kind == "secure")
        batches = engine.batches(features, labels, steps=10**9)

        def step() -> None:
            engine.backward(losses(*next(batches)))
            optimizer.step()

    begun = time.monotonic()
    for _ in range(WARM):
        step()
        if time.monotonic() - begun > 10:
            break
    for _ in sys.stdin:
        taken: list[float] = []
        begun = time.monotonic()
        while len(taken) < 3 or time.monotonic() - begun < SECONDS:
            start = time.perf_counter()
            step()
            taken.append(1000 * (time.perf_counter() - start))
        print(json.dumps(taken[1:]), flush=True)


def _engine(module: Any, version: str, *, secure: bool) -> Any:
    """The version's engine; module names and argument names are its own: those of 0.1, or of any version since."""
    old = version == "old" and importlib.util.find_spec("noiseproof.engine") is None
    engine = import_module("noiseproof.gradients" if old else "noiseproof.engine.private_gradients")
    privacy = import_module("noiseproof.guarantees" if old else "noiseproof.privacy")
    names = ("clip", "sigma", "rate") if old else ("max_grad_norm", "noise_multiplier", "sample_rate")
    rng = privacy.Secure() if secure else privacy.Reproducible(0)
    return engine.PrivateGradients(module, rng=rng, **dict.fromkeys(names, 1.0))


def measure(network: str, old: Path, turns: int) -> dict[str, float]:
    """Each contender's median milliseconds a step."""
    workers = {}
    for name, (version, kind) in CONTENDERS.items():
        source = old if version == "old" else ROOT / "src"
        workers[name] = subprocess.Popen(
            [sys.executable, "-m", "bench.versions", "--worker", network, version, kind],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    times: dict[str, list[float]] = {name: [] for name in workers}
    try:
        for turn in range(turns + 1):
            for name, worker in workers.items():
                assert worker.stdin is not None
                assert worker.stdout is not None
                worker.stdin.write("go\n")
                worker.stdin.flush()
                taken = json.loads(worker.stdout.readline())
                times[name] += taken if turn else []
    finally:
        for worker in workers.values():
            worker.kill()
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure, print a row a contender, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--old", type=Path, help="the folder src of a worktree of the earlier version, kernels built")
    parser.add_argument("--networks", nargs="*", default=["mlp", "cnn", "lstm"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.worker:
        work(*given.worker)
        return
    if given.old is None:
        parser.error("give --old, the folder src of a worktree of the earlier version.")
    rows = []
    for network in given.networks:
        times = measure(network, given.old.resolve(), given.turns)
        rows += [
            {"network": network, "contender": name, "ms": value, "over plain": value / times["plain"]}
            for name, value in times.items()
        ]
        print(
            "\n".join(f"{network:8} {r['contender']:12} {r['ms']:9.3f} ms  {r['over plain']:.3f}" for r in rows[-5:]),
            flush=True,
        )
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
