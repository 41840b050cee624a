"""What does noise at the predictions cost: an answer of `neuron-gaussian` against the network's plain forward pass?

784-128-10, as the paper's network for MNIST, in batches of 256. Both take turns within one run; medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from bench import memory
from noiseproof.data.dataset import Public
from noiseproof.methods.predictions import NeuronGaussian, Sensitivity
from noiseproof.methods.predictions.neuron import NeuronRelease
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Card, Randomness, Reproducible, Secure

FEATURES, CLASSES, BATCH = 784, 10, 256
MILLION = 1_000_000


def rows(repeats: int = 30) -> list[dict[str, Any]]:
    """One row a comparison: what, milliseconds of ours and of theirs, and their ratio; then memory in megabytes."""
    module = Network("lu-mlp", (FEATURES,), CLASSES).build(0).eval()
    features = torch.rand(BATCH, FEATURES, generator=torch.Generator().manual_seed(0))
    seeded, secure = (_release(module, rng) for rng in (Reproducible(0), Secure()))

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return module(features)

    def probabilities() -> torch.Tensor:
        return torch.softmax(forward(), dim=1)

    def answer() -> torch.Tensor:
        return seeded.predict(features)

    def secure_answer() -> torch.Tensor:
        return secure.predict(features)

    times = _medians([forward, probabilities, answer, secure_answer], 40 * repeats)
    name = f"{FEATURES}-128-{CLASSES}, batch {BATCH}: neuron-gaussian"
    found = [
        _row(f"{name}, seeded / forward", times[answer], times[forward]),
        _row(f"{name}, seeded / forward and softmax", times[answer], times[probabilities]),
        _row(f"{name}, secure / forward", times[secure_answer], times[forward]),
    ]
    grown, size = memory.alone(_memory)
    found.append(
        {"what": "1,000,000 answers: memory / the answers", "ours": grown, "theirs": size, "ratio": grown / size}
    )
    return [{"unit": "ms", **row} if row is not found[-1] else {"unit": "MB", **row} for row in found]


def _release(module: torch.nn.Module, rng: Randomness) -> NeuronRelease:
    """A release of that network for as many answers as anybody asks; its training does not matter here."""
    width = next(module.parameters()).shape[1]
    method, budget = NeuronGaussian(), Budget(1.0)
    card = Card(
        method=method.name,
        place=method.place,
        neighbours=budget.neighbours,
        randomness=rng.kind,
        why="an untrained network, to measure time with",
    )
    public = Public((width,), tuple(str(label) for label in range(CLASSES)))
    noise = method.noise(Sensitivity((width, 128, CLASSES), 10_000), budget)
    network = Network("lu-mlp", (width,), CLASSES)
    return NeuronRelease(module, network, noise, card, public, method.settings(), queries=10**12, rng=rng)


def _medians(functions: list[Callable[[], Any]], repeats: int) -> dict[Callable[[], Any], float]:
    """Milliseconds of each, which take turns; each runs once unmeasured first, so that none inherits another's caches."""
    times: dict[Callable[[], Any], list[float]] = {function: [] for function in functions}
    for turn in range(repeats + 20):
        for function in functions:
            function()
            start = time.perf_counter()
            function()
            if turn >= 20:
                times[function].append(time.perf_counter() - start)
    return {function: 1000 * statistics.median(each) for function, each in times.items()}


def _row(what: str, ours: float, theirs: float) -> dict[str, Any]:
    return {"what": what, "ours": ours, "theirs": theirs, "ratio": ours / theirs}


def _memory() -> tuple[float, float]:
    """Megabytes that a million answers add to the process's peak, and those of the answers alone."""
    release = _release(Network("lu-mlp", (FEATURES,), CLASSES).build(0).eval(), Reproducible(0))
    # One record a million times, which takes the memory of one.
    features = torch.rand(1, FEATURES).expand(MILLION, FEATURES)
    release.predict(features[:4096])
    return memory.added(lambda: release.predict(features)), MILLION * CLASSES * 4 / 2**20
