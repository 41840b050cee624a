"""Correlated noise: the error that strategies leave beside DP-SGD's and jax_privacy's, and what a step costs with 16 bands.

`python -m bench.correlated errors|steps|memory|optimisation`; `errors` wants jax_privacy, goes on from the cells that are kept in
the repository, and `python docs/tools/figures.py errors bench/results/runs/errors.json` puts them into docs/methods/dp-mf.md.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.memory import added, alone
from bench.networks import NETWORKS
from bench.steps import CLIP, RATE, SIGMA, Setting, Step, _take_turns
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.files import write_whole
from noiseproof.privacy import Randomness, Reproducible, Secure
from noiseproof.privacy.factorization import Dense, Participation
from noiseproof.privacy.strategies import StrategyName, strategy

BANDS = 16
ERRORS = Path(__file__).parent / "results" / "runs" / "errors.json"
TIMES = (1, 5, 20)
MOST = 400
"""Iterations of jax_privacy's optimiser; it may take 10,000, at about half a second each."""


def errors(kept: Path = ERRORS, steps: int = 1000, times: Sequence[int] = TIMES) -> None:
    """The root mean squared error of prefix sums at noise multiplier 1; cells that `kept` holds are not computed again."""
    for (column, cell), k in product((OURS | THEIRS).items(), times):
        if column in _rows(kept)[k]:
            continue
        start = time.process_time()
        found = cell(steps, k)
        print(f"k = {k}, {column}: {found:.4f} in {time.process_time() - start:.0f} s", file=sys.stderr, flush=True)
        rows = _rows(kept)  # others may have added to it
        rows[k][column] = found
        ordered = [{name: row[name] for name in ("k", *OURS, *THEIRS) if name in row} for row in rows.values()]
        write_whole(kept, json.dumps({"steps": steps, "rows": ordered}, indent=1) + "\n")


def _rows(kept: Path) -> dict[int, dict[str, float]]:
    found: list[dict[str, float]] = json.loads(kept.read_text())["rows"] if kept.exists() else [{"k": k} for k in TIMES]
    return {int(row["k"]): row for row in found}


def _ours(name: StrategyName, bands: int | None = None) -> Callable[[int, int], float]:
    return lambda steps, times: strategy(
        name, Participation(steps, times, steps // times, fixed=True), bands=bands
    ).error()


def _theirs_toeplitz(steps: int, times: int) -> float:
    toeplitz = _theirs("toeplitz")
    row = toeplitz.optimize_banded_toeplitz(steps, steps // times)
    squared = toeplitz.minsep_sensitivity_squared(row, min_sep=steps // times, max_participations=times, n=steps)
    return math.sqrt(float(squared) * float(np.mean(toeplitz.per_query_error(strategy_coef=row, n=steps))))


def _theirs_dense(steps: int, times: int, banded: bool) -> float:
    """Their dense optimisation, to where it stops by itself or after `MOST`; its banded strategies differ by the structure."""
    structure = {"bands": steps // times, "equal_norm": True} if banded else {"epochs": times}
    matrix = np.asarray(_theirs("dense").optimize(steps, max_optimizer_steps=MOST, **structure))
    columns = np.linalg.norm(matrix, axis=0) ** 2
    # Columns of steps that one record takes part in are orthogonal, in either kind.
    sensitivity = math.sqrt(columns.reshape(times, -1).sum(0).max())
    return sensitivity * float(np.linalg.norm(np.tri(steps) @ np.linalg.inv(matrix))) / math.sqrt(steps)


def _least(steps: int, times: int) -> float:
    found = strategy("dense", Participation(steps, times, steps // times, fixed=True))
    assert isinstance(found, Dense)
    return found.least_error()


def _theirs(module: str) -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    return import_module(f"jax_privacy.matrix_factorization.{module}")


OURS: dict[str, Callable[[int, int], float]] = {
    "DP-SGD": _ours("toeplitz", bands=1),
    "tree": _ours("tree"),
    "buffered": _ours("buffered"),
    "toeplitz": _ours("toeplitz"),
    "banded": _ours("banded"),
    "dense": _ours("dense"),
    "least of all dense": _least,
}
THEIRS: dict[str, Callable[[int, int], float]] = {
    "jax_privacy's toeplitz": _theirs_toeplitz,
    "jax_privacy's dense": lambda steps, times: _theirs_dense(steps, times, False),
    "jax_privacy's banded": lambda steps, times: _theirs_dense(steps, times, True),
}


def steps(repeats: int = 20) -> None:
    """A step of dp-mf with 16 bands over one of dp-sgd, on Lin et al.'s CNN; both draw from 16 batches of records."""
    setting = Setting("cnn", BANDS * NETWORKS["cnn"].batch)
    turns: dict[str, Step] = {}
    for kind, rng in (("seeded", Reproducible(0)), ("secure", Secure())):
        turns |= {f"dp-mf, {kind}": _step(setting, rng, True), f"dp-sgd, {kind}": _step(setting, rng, False)}
    times = _take_turns(turns, repeats)
    for kind in ("seeded", "secure"):
        mine, theirs = times[f"dp-mf, {kind}"], times[f"dp-sgd, {kind}"]
        print(f"{kind}: {mine:.1f} ms over {theirs:.1f} ms, {mine / theirs:.3f}", flush=True)


def memory() -> None:
    """Megabytes that 20 steps of dp-mf with 16 bands add to a process at its peak beyond dp-sgd's, and what is stated."""
    mine, theirs = alone(_peak, True), alone(_peak, False)
    module, _ = Setting("cnn", NETWORKS["cnn"].batch).copy()
    vectors = strategy("toeplitz", Participation(100 * BANDS, 100, BANDS), bands=BANDS).vectors
    stated = vectors * 4 * sum(one.numel() for one in module.parameters()) / 2**20
    print(
        f"{mine:.0f} MiB over {theirs:.0f} MiB, {mine - theirs:.0f} more; {vectors} vectors are {stated:.0f} MiB",
        flush=True,
    )


def _peak(correlated: bool) -> float:
    step = _step(Setting("cnn", BANDS * NETWORKS["cnn"].batch), Reproducible(0), correlated)

    def twenty() -> None:
        for _ in range(20):
            step()

    return added(twenty)


def _step(setting: Setting, rng: Randomness, correlated: bool) -> Step:
    module, optimizer = setting.copy()
    engine: PrivateGradients
    if correlated:
        plan = strategy("toeplitz", Participation(100 * BANDS, 100, BANDS), bands=BANDS)
        engine = CorrelatedGradients(module, plan, max_grad_norm=CLIP, noise_multiplier=SIGMA, sample_rate=1.0, rng=rng)
        engine.most_steps = None
    else:
        engine = PrivateGradients(module, max_grad_norm=CLIP, noise_multiplier=SIGMA, sample_rate=1 / BANDS, rng=rng)
    optimizer.param_groups[0]["lr"] = RATE
    batches = engine.batches(setting.features, setting.labels, steps=10**9)

    def step() -> None:
        features, labels = next(batches)
        engine.backward(setting.losses(module, features, labels))
        optimizer.step()

    return step


def optimisation(count: int = 10_000) -> None:
    """Seconds of the search for a strategy of so many steps."""
    participation = Participation(count, 10, count // 10)
    for name in ("toeplitz", "buffered", "banded"):
        start = time.perf_counter()
        found = strategy(name, participation, bands=BANDS)
        print(f"{name}: {time.perf_counter() - start:.1f} s, error {found.error():.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    commands: dict[str, Callable[[], None]] = {
        "errors": errors,
        "steps": steps,
        "optimisation": optimisation,
        "memory": memory,
    }
    commands[sys.argv[1]]()
