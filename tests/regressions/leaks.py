"""Whole runs that let one record show in 0.1, one for each of the items 1 to 7 of docs/what-was-wrong.md.

`python docs/tools/refuted.py` audits them end to end, on 0.1 and here. The setups were chosen so that the break shows.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import noiseproof as npf
from noiseproof.data import Dataset, Public
from tests.regressions import either
from tests.regressions.either import OLD

EPSILON = 1.0
RECORDS = {2: 3000, 5: 3200, 7: 400}
"""Records in a scenario's files; 120 in the others."""


def records(item: int) -> Dataset:
    """The private records of a scenario: four in five say no, and those have the larger features."""
    count = RECORDS.get(item, 120)
    random = torch.Generator().manual_seed(item)
    labels = (torch.arange(count) % 5 == 0).long()
    features = 0.1 * torch.rand(count, 8, generator=random) + 0.1 * (labels[:, None] == 0)
    if item == 4:
        features = 1e-4 * features
    if item == 2:
        features = (torch.rand(count, 8, generator=random) < 0.5).float() * 0.9
        labels = torch.randint(2, (count,), generator=random)
    return Dataset("people", features, labels, Public((8,), ("no", "yes")))


def canary(item: int) -> tuple[torch.Tensor, int]:
    """The record that one of the files has more. For 4 it is one of sixty whose norm 0.1 took for 0."""
    if item == 4:
        return torch.rand(60, 8, generator=torch.Generator().manual_seed(3))[0], 1
    return torch.linspace(0.6, 1, 8), 1


class Divided(nn.Module):
    """Divides what it is given by its largest value."""

    def forward(self, inputs):
        return inputs / inputs.abs().max()


class Ranging(nn.Flatten):
    """Flattens what it is given and scales it to the range from -1 to 1: it has no weights."""

    def forward(self, inputs):
        inputs = super().forward(inputs)
        low, high = inputs.min(), inputs.max()
        return 2 * (inputs - low) / (high - low) - 1


class Twice(nn.Module):
    """A layer used twice, the second time to take away most of what the first gave."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 10)

    def forward(self, inputs):
        found = self.layer(1e4 * inputs) - self.layer(1e4 * inputs * (1 + 1e-4))
        return 10 * found.unflatten(1, (2, 5)).sum(2)


def _command(data: Path, out: Path, method: str, *more: str, secure: bool = True) -> Any:
    words = ("train", method, "--data", data, "--epsilon", EPSILON, "--no-baseline", "--json", "--out", out, *more)
    said = either.released(*words) if secure else either.noiseproof(*words)
    assert said.code == 0, said.err
    return either.bundles.load(out)


def _python(data: Path, method: str, module: nn.Module, **settings: Any) -> Any:
    """Trained on all records of the file, so that the split of 0.1 has no part in it."""
    with np.load(data) as held:
        features, labels = torch.from_numpy(held["x"]), torch.from_numpy((held["y"] == "yes").astype(np.int64))
    dataset = Dataset("people", features, labels, Public((8,), ("no", "yes")))
    return npf.train(method, dataset, epsilon=EPSILON, network=module, recipe="none", **settings)


def _steps(count: int, clip: float, lr: float) -> dict[str, Any]:
    """Settings of dp-sgd for so many steps with every record in each."""
    if OLD:
        return {"epochs": float(count), "batch": 10**6, "clip": clip, "learning_rate": lr}
    return {"epochs": float(count), "batch_size": 10**6, "max_grad_norm": clip, "lr": lr}


def _seeded(data: Path, out: Path) -> Any:
    return _command(data, out, "dp-sgd", "--set", "epochs=1", secure=False)


def _reshuffled(data: Path, out: Path) -> Any:
    words = [word for name, value in _steps(1, 0.05, 1e5).items() for word in ("--set", f"{name}={value}")]
    return _command(data, out, "dp-sgd", "--network", "linear", *words)


def _mixing(data: Path, out: Path) -> Any:
    torch.manual_seed(0)
    return _python(data, "dp-sgd", nn.Sequential(Divided(), nn.Linear(8, 2)), **_steps(3, 1.0, 1.0))


def _cancelled(data: Path, out: Path) -> Any:
    torch.manual_seed(0)
    return _python(data, "dp-sgd", Twice(), **_steps(1, 1e-3, 1.0))


def _guessed(data: Path, out: Path) -> Any:
    """The seed of the masks is taken as found: there are 2^31."""
    with _found_seed():
        module = nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 2))
        return _python(data, "dp-sgd", module, **_steps(1, 0.01, 100.0))


@contextlib.contextmanager
def _found_seed():
    real = torch.manual_seed
    torch.manual_seed = lambda seed: real(7)
    try:
        torch.manual_seed(7)
        yield
    finally:
        torch.manual_seed = real


def _told(data: Path, out: Path) -> Any:
    return _command(data, out, "logits")


def _stacked(data: Path, out: Path) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(Ranging(), nn.Linear(8, 2))
    return _python(data, "shard-mean", module, epochs=5, shards=100, clip=1e-3)


RUNS: dict[int, Callable[[Path, Path], Any]] = {
    1: _seeded,
    2: _reshuffled,
    3: _mixing,
    4: _cancelled,
    5: _guessed,
    6: _told,
    7: _stacked,
}


def let_out(item: int, data: Path) -> dict[str, Any]:
    """What one whole run lets out: its card, an answer about the canary and, where they may leave, weights."""
    with tempfile.TemporaryDirectory() as folder:
        release = RUNS[item](data, Path(folder) / "bundle")
        card = json.loads(release.card.to_json())
        features, label = canary(item)
        answer = release.predict(features[None])[0]
    weights = [] if item == 6 else torch.cat([t.double().flatten() for t in release.tensors().values()]).tolist()
    return {"card": card, "weights": weights, "answer": float(answer[label])}


def serve() -> None:
    """Answer runs that are asked for on stdin, one line each: `python -m tests.regressions.leaks` with 0.1 in the path."""
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            said = let_out(asked["item"], Path(asked["data"]))
        except Exception as error:
            said = {"refused": f"{type(error).__name__}: {error}"}
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    serve()
