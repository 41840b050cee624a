"""How does the cost grow with records, parameters, classes, queries and networks? Decade by decade, on one thread.

Each row compares a size with the one ten times smaller: a ratio of 10 is linear growth, 1 is none. Times are the
processor's, so that other load on the machine matters little; least of some repeats.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from noiseproof.data.dataset import Dataset, Public
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.networks import Network, Training, fit_stack
from noiseproof.privacy import Budget, Randomness, Reproducible, Secure

_UNIT = "ms of processor time"
_FEATURES, _BATCH = 64, 256


def rows(largest: int | None = None) -> list[dict[str, Any]]:
    """Rows of all growths, each up to its own largest size, or to `largest` where that is smaller."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(_rows(largest))
    finally:
        torch.set_num_threads(threads)


def _rows(largest: int | None) -> Iterator[dict[str, Any]]:
    def sizes(first: int, last: int) -> list[int]:
        if largest is not None:
            first, last = min(first, largest // 10), min(last, largest)
        found = [first]
        while found[-1] * 10 <= last:
            found.append(found[-1] * 10)
        return found

    for rng in (Reproducible(0), Secure()):
        what = f"records: a Poisson sample of {_BATCH} of them ({rng.kind})"
        yield from _decades(what, sizes(10_000, 10_000_000), partial(_sampling, rng))
    yield from _decades("records: an epoch of private steps of 9,610 parameters", sizes(100, 100_000), _epoch)
    for rng in (Reproducible(0), Secure()):
        what = f"parameters: a private step with a batch of {_BATCH} ({rng.kind})"
        yield from _decades(what, sizes(10_000, 10_000_000), partial(_step, rng))
    yield from _decades("classes: a private step of 64-128-classes", sizes(10, 10_000), _classes)
    yield from _decades("queries: noisy answers of a network (teachers)", sizes(10, 10_000), _answers)
    yield from _decades("networks: trained as one, 64-32-10, an epoch of 200 records", sizes(1, 1000), _collection)
    yield from _decades("checkpoint: written and read, by parameters", sizes(10_000, 10_000_000), _checkpoint)


def _decades(what: str, sizes: list[int], make: Callable[[int], Callable[[], object]]) -> Iterator[dict[str, Any]]:
    before: float | None = None
    for size in sizes:
        now = 1e3 * _busy(make(size))
        if before is not None:
            yield {
                "what": f"{what}: {size:,} / {size // 10:,}",
                "ours": now,
                "theirs": before,
                "ratio": now / before,
                "unit": _UNIT,
            }
        before = now


def _busy(work: Callable[[], object], seconds: float = 0.5) -> float:
    """Processor seconds of a call: the least of up to 20, or of those that fit into `seconds`."""
    work()
    least, total = float("inf"), 0.0
    for _ in range(20):
        began = time.process_time()
        work()
        spent = time.process_time() - began
        least, total = min(least, spent), total + spent
        if total > seconds:
            break
    return max(least, 1e-9)


def _sampling(rng: Randomness, records: int) -> Callable[[], object]:
    return lambda: rng.poisson_sample(records, min(1.0, _BATCH / records))


def _records(count: int, classes: int = 10) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    public = Public((_FEATURES,), tuple(map(str, range(classes))))
    labels = torch.randint(classes, (count,), generator=generator)
    return Dataset("growth", torch.rand(count, _FEATURES, generator=generator), labels, public)


def _private_step(hidden: int, classes: int, data: Dataset, rng: Randomness, rate: float) -> Callable[[], object]:
    module = Network("mlp", (_FEATURES,), classes, {"hidden": hidden}).build(0)
    gradients = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=rate, rng=rng)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batches = gradients.batches(data.features, data.labels, steps=1 << 30)

    def step() -> None:
        inputs, targets = next(batches)
        losses = functional.cross_entropy(module(inputs), targets, reduction="none") if len(targets) else None
        gradients.backward(losses)
        optimizer.step()

    return step


def _epoch(records: int) -> Callable[[], object]:
    rate = min(1.0, _BATCH / records)
    step = _private_step(128, 10, _records(records), Reproducible(0), rate)

    def epoch() -> None:
        for _ in range(max(1, round(1 / rate))):
            step()

    return epoch


def _step(rng: Randomness, parameters: int) -> Callable[[], object]:
    hidden = max(1, parameters // (_FEATURES + 11))
    return _private_step(hidden, 10, _records(4 * _BATCH), rng, 0.25)


def _classes(classes: int) -> Callable[[], object]:
    return _private_step(128, classes, _records(4 * _BATCH, classes), Reproducible(0), 0.25)


def _answers(queries: int) -> Callable[[], object]:
    from noiseproof.methods.predictions import Teachers
    from noiseproof.releases.release import PredictionRelease

    data = _records(500)
    network = Network("mlp", (_FEATURES,), 10, {"hidden": 32})
    method = Teachers(teachers=20, epochs=1)
    release = method.fit(network, data, Budget(3.0, 1e-5, queries=queries), rng=Reproducible(0))
    assert isinstance(release, PredictionRelease)
    asked = _records(queries).features
    return lambda: release.answer_paid(asked, Reproducible(1))


def _collection(networks: int) -> Callable[[], object]:
    data = _records(200)
    network = Network("mlp", (_FEATURES,), 10, {"hidden": 32})
    members = [torch.arange(len(data))] * networks
    training = Training(epochs=1, batch_size=100)
    return lambda: fit_stack(network, data.features, data.labels, members, training, seeds=list(range(networks)))


def _checkpoint(parameters: int) -> Callable[[], object]:
    from noiseproof.files import write_whole
    from noiseproof.run.checkpoints import pack, unpack

    tensors = {"weights": torch.rand(parameters), "momentum": torch.rand(parameters)}

    def both() -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint"
            write_whole(path, pack(tensors, {}))
            unpack(path.read_bytes(), path.name)

    return both
