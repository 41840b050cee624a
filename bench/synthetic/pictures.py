"""Synthetic pictures: classifiers that they teach, tested on real ones, and a distance of fixed public features.

`python -m bench.synthetic.pictures METHOD EPSILON SEED` trains on MNIST and keeps what it measured in `results/pictures`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noiseproof.data.dataset import Dataset
from noiseproof.files import write_whole

ROWS = 60_000
EPOCHS = 3
SAMPLE = 5_000


def classifier(kind: str) -> nn.Module:
    """The networks that the literature teaches: a logistic regression, a dense one and a small convolutional one."""
    if kind == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    if kind == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))
    first, second = nn.Conv2d(1, 16, 5, 2, 2), nn.Conv2d(16, 32, 5, 2, 2)
    dense = (nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), *dense)


def accuracy(kind: str, taught_by: Dataset, asked: Dataset) -> float:
    """The share of real pictures that a network names right after three epochs of synthetic ones."""
    torch.manual_seed(0)
    network = classifier(kind)
    steps = EPOCHS * len(taught_by) // 128
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        index = torch.randint(len(taught_by), (128,))
        loss = nn.functional.cross_entropy(network(taught_by.features[index]), taught_by.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        right = [network(part).argmax(1) for part in asked.features.split(1000)]
    return float((torch.cat(right) == asked.labels).float().mean())


def distance(one: Dataset, other: Dataset) -> float:
    """Frechet's distance between normal distributions of the pictures' scattering coefficients, averaged over places."""
    from noiseproof.data.scattering import ScatteringMap

    moments = []
    for dataset in (one, other):
        parts = [ScatteringMap()(part).flatten(2).mean(2).double() for part in dataset.features[:SAMPLE].split(500)]
        found = torch.cat(parts)
        moments.append((found.mean(0), found.T.cov()))
    (mean, cov), (mean_other, cov_other) = moments
    values, vectors = torch.linalg.eigh(cov)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    shared = torch.linalg.eigvalsh(root @ cov_other @ root).clamp_min(0).sqrt().sum()
    return float((mean - mean_other).square().sum() + cov.trace() + cov_other.trace() - 2 * shared)


def main(
    method: str, epsilon: str, seed: str, runs: str = str(Path(__file__).with_name("results") / "pictures")
) -> None:
    """One method at one budget; what was kept already is only printed."""
    from noiseproof.data import load
    from noiseproof.releases.release import DataRelease
    from noiseproof.run.training import train

    path = Path(runs) / f"mnist-{method}-{float(epsilon):g}-{seed}.json"
    if not path.exists():
        data = load("mnist")
        started = time.perf_counter()
        made: Dataset = data.train
        found: dict[str, Any] = {}
        if method != "real":
            release = train(method, data.train, epsilon=float(epsilon), seed=int(seed), rows=ROWS)
            assert isinstance(release, DataRelease)
            proven = release.card.proven
            made = release.dataset
            found["proven"] = math.nan if proven is None else proven.epsilon
        found["seconds"] = time.perf_counter() - started
        found |= {kind: accuracy(kind, made, data.test) for kind in ("logistic", "mlp", "cnn")}
        found["distance"] = distance(made, data.test)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found, indent=1))
    print(path.stem, path.read_text())


if __name__ == "__main__":
    main(*sys.argv[1:])
