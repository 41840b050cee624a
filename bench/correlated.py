"""Correlated noise: the error that strategies leave beside DP-SGD's and jax_privacy's, and what a step costs with 16 bands.

`python -m bench.correlated errors|steps|optimisation` prints a table; `errors` wants jax_privacy.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import torch

from bench.networks import NETWORKS
from bench.steps import CLIP, RATE, SIGMA, Setting, Step, _take_turns
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.privacy import Randomness, Reproducible, Secure
from noiseproof.privacy.factorization import Participation
from noiseproof.privacy.strategies import strategy

BANDS = 16


def errors(steps: int = 1000) -> None:
    """The root mean squared error of prefix sums at noise multiplier 1, with as many bands as participations are apart."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import banded, toeplitz  # type: ignore[import-untyped]

    print(
        "| times | bands | DP-SGD | tree | buffered | toeplitz | jax_privacy's | banded | jax_privacy's | largest ratio |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for times in (1, 5, 20):
        apart = steps // times
        participation = Participation(steps, times, apart)
        bands = min(apart, 64)
        independent = strategy("toeplitz", participation, bands=1).error()
        tree, buffered = (strategy(name, participation).error() for name in ("tree", "buffered"))
        ours = {name: strategy(name, participation, bands=bands).error() for name in ("toeplitz", "banded")}
        row = toeplitz.optimize_banded_toeplitz(steps, bands)
        squared = toeplitz.minsep_sensitivity_squared(row, min_sep=apart, max_participations=times, n=steps)
        theirs = {
            "toeplitz": math.sqrt(float(squared) * float(np.mean(toeplitz.per_query_error(strategy_coef=row, n=steps))))
        }
        peer = np.asarray(banded.optimize(steps, bands=bands).materialize())
        theirs["banded"] = float(np.linalg.norm(np.tri(steps) @ np.linalg.inv(peer)) * math.sqrt(times / steps))
        ratio = max(ours[name] / theirs[name] for name in ours)
        cells = [independent, tree, buffered, ours["toeplitz"], theirs["toeplitz"], ours["banded"], theirs["banded"]]
        print(f"| {times} | {bands} | {' | '.join(f'{cell:.3f}' for cell in cells)} | {ratio:.4f} |", flush=True)


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
    {"errors": errors, "steps": steps, "optimisation": optimisation}[sys.argv[1]]()
