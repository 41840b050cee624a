"""Synthetic pictures: classifiers that they teach, tested on real ones, and a distance of fixed public features.

`python -m bench.synthetic.pictures METHOD EPSILON SEED [NAME=VALUE ...]` trains on MNIST and keeps what it measured in
`results/pictures`. With `--held-out` 10,000 of the training records are asked in the place of the test records, and nothing
is learned from them: settings are to be chosen so.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

from noiseproof.data.dataset import Dataset
from noiseproof.data.splits import Split
from noiseproof.files import write_whole

ROWS = 60_000
EPOCHS = 3
SAMPLE = 5_000
HELD_OUT = 10_000
FOLDER = Path(__file__).with_name("results") / "pictures"


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
    (center, cov), (center_other, cov_other) = moments
    values, vectors = torch.linalg.eigh(cov)
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    shared = torch.linalg.eigvalsh(root @ cov_other @ root).clamp_min(0).sqrt().sum()
    return float((center - center_other).square().sum() + cov.trace() + cov_other.trace() - 2 * shared)


def _asked(split: Split, *, held_out: bool) -> tuple[Dataset, Dataset]:
    """The records to learn from and those to ask: the test records, or a part of the training records in their place."""
    if not held_out:
        return split.train, split.test
    order = torch.randperm(len(split.train), generator=torch.Generator().manual_seed(0))
    return split.train.take(order[HELD_OUT:]), split.train.take(order[:HELD_OUT])


def told(folder: Path = FOLDER) -> str:
    """What was kept as a table: means over seeds, and standard deviations where there are several."""
    runs: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        runs.setdefault((found["method"], found["settings"], found["epsilon"]), []).append(found)
    columns = ("logistic regression", "dense network", "convolutional network", "distance", "convolutional, held out")
    lines = [f"| method | proven ε | seeds | {' | '.join(columns)} |", "| --- " * 8 + "|"]
    for (method, settings, _), some in sorted(runs.items()):
        tested = [found for found in some if not found["held out"]]
        held = [found for found in some if found["held out"]]
        proven = max(found.get("proven", math.inf) for found in some)
        cells = [_shown([100 * found[kind] for found in tested], "%", 1) for kind in ("logistic", "mlp", "cnn")]
        cells.append(_shown([found["distance"] for found in tested], "", 4))
        cells.append(_shown([100 * found["cnn"] for found in held], "%", 1))
        name = f"{method} ({settings.replace('_', '-')})" if settings else method
        lines.append(f"| {name} | {proven:.3g} | {len(tested)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _shown(values: list[float], unit: str, digits: int) -> str:
    if not values:
        return "—"
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{mean(values):.{digits}f}{spread}{unit}"


def main() -> None:
    """One method at one budget; what was kept already is only printed."""
    from noiseproof.data import load
    from noiseproof.releases.release import DataRelease
    from noiseproof.run.training import train

    parser = argparse.ArgumentParser(prog="python -m bench.synthetic.pictures", description=__doc__)
    parser.add_argument("method")
    parser.add_argument("epsilon", type=float)
    parser.add_argument("seed", type=int)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    parts = (["mnist", "held"] if given.held_out else ["mnist"]) + [given.method, f"{given.epsilon:g}", str(given.seed)]
    path = given.folder / f"{'-'.join([*parts, *given.settings])}.json"
    if not path.exists():
        learned, asked = _asked(load("mnist"), held_out=given.held_out)
        started = time.perf_counter()
        made: Dataset = learned
        found: dict[str, Any] = {
            "method": given.method,
            "settings": " ".join(given.settings),
            "held out": given.held_out,
            "epsilon": given.epsilon,
            "seed": given.seed,
        }
        if given.method != "real":
            settings: dict[str, Any] = dict(setting.split("=", 1) for setting in given.settings)
            release = train(given.method, learned, epsilon=given.epsilon, seed=given.seed, rows=ROWS, **settings)
            assert isinstance(release, DataRelease)
            proven = release.card.proven
            made = release.dataset
            found["proven"] = math.nan if proven is None else proven.epsilon
        found["seconds"] = time.perf_counter() - started
        # One classifier is enough to choose by.
        kinds = ("cnn",) if given.held_out else ("logistic", "mlp", "cnn")
        found |= {kind: accuracy(kind, made, asked) for kind in kinds}
        if not given.held_out:
            found["distance"] = distance(made, asked)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(found, indent=1) + "\n")
    print(path.stem, path.read_text())


if __name__ == "__main__":
    main()
