"""What does noise at the inputs cost: perturbing all of MNIST against drawing as many Laplace numbers?

60,000 x 784 features, a scale of its own for each, by seeded and by secure randomness; both take turns within one run,
medians. Drawing is adding Laplace(1) to zeros by the same randomness; torch's own Laplace stands beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from noiseproof.methods.inputs.perturbation import InputNoise
from noiseproof.methods.inputs.relevance import split
from noiseproof.privacy import Randomness, Reproducible, Secure

RECORDS, FEATURES = 60_000, 784


def rows(repeats: int = 5, records: int = RECORDS) -> list[dict[str, Any]]:
    """One row a comparison: what, milliseconds of ours and of theirs, and their ratio."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(records, FEATURES, generator=generator)
    zeros, out = torch.zeros(records, FEATURES), torch.empty(records, FEATURES)
    noise = InputNoise(9800.0, 0.075, 1800, split(torch.rand(FEATURES, generator=generator)))
    found = []
    for kind, rng in (("seeded", Reproducible(0)), ("secure", Secure())):
        drawn = _draw(rng, zeros, out)
        ours, theirs = _medians([_perturb(noise, features, rng, out), drawn], repeats)
        found.append(_row(f"{kind}: perturbing {records:,} x {FEATURES} inputs / drawing as many", ours, theirs))
    law = torch.distributions.Laplace(0.0, 1.0)
    ours, theirs = _medians([_perturb(noise, features, Reproducible(0), out), lambda: law.sample(zeros.shape)], repeats)
    return [*found, _row(f"seeded: perturbing {records:,} x {FEATURES} inputs / torch's Laplace", ours, theirs)]


def _perturb(noise: InputNoise, features: torch.Tensor, rng: Randomness, out: torch.Tensor) -> Callable[[], Any]:
    return lambda: noise.perturb(features, rng, out=out)


def _draw(rng: Randomness, zeros: torch.Tensor, out: torch.Tensor) -> Callable[[], Any]:
    return lambda: rng.add_laplace(zeros, 1.0, out=out)


def _medians(functions: list[Callable[[], Any]], repeats: int) -> tuple[float, float]:
    """Milliseconds of two functions, which take turns."""
    times: list[list[float]] = [[], []]
    for _ in range(repeats):
        for function, each in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            each.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[0]), statistics.median(times[1])


def _row(what: str, ours: float, theirs: float) -> dict[str, Any]:
    return {"what": what, "ours": ours, "theirs": theirs, "ratio": ours / theirs, "unit": "ms"}
