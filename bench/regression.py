"""R2 of private regressions beside those of ridge, boosted trees and diffprivlib: `python -m bench.regression OUT.json`.

diffprivlib 0.6 needs scikit-learn below 1.6, which is older than ours: `--diffprivlib PYTHON` names an interpreter of an
environment of its own that has both.

Two tables: scikit-learn's diabetes (442 records), and one of 20,000 homes made by a fixed seed, whose price depends on place,
income and size, not all of it linearly. All bounds are those of the definitions below, not of the records.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from noiseproof.data.splits import Split

EPSILONS = (1.0, 3.0, 10.0)
SEEDS = (0, 1, 2)
METHODS = ("functional", "dp-sgd", "dp-mf", "dp-sgd-adaptive", "marginals", "logits", "teachers", "shard-mean")


def homes(records: int = 20_000, seed: int = 0) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Homes and their prices (in 100,000), with the schema that a statistics office might publish."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "income": random.gamma(4.0, 1.0, records),
            "rooms": random.normal(5.4, 1.2, records),
            "age": random.uniform(1, 52, records),
            "latitude": random.uniform(32.5, 42, records),
            "longitude": random.uniform(-124.3, -114.3, records),
            "occupants": random.gamma(3.0, 1.0, records),
            "population": random.gamma(2.0, 700.0, records),
            "kind": random.choice(["house", "flat", "other"], records, p=[0.6, 0.35, 0.05]),
        }
    )
    near = sum(
        np.exp(-((frame.longitude - east) ** 2 + (frame.latitude - north) ** 2) / 2)
        for east, north in ((-122.4, 37.8), (-118.2, 34.0))
    )
    price = 0.45 * frame.income + 1.6 * near + 0.1 * frame.rooms - 0.25 * np.log1p(frame.occupants) + 0.004 * frame.age
    price += frame.kind.map({"house": 0.0, "flat": -0.35, "other": -0.6}) + random.normal(-0.2, 0.45, records)
    bounds = {
        "income": (0, 15),
        "rooms": (1, 12),
        "age": (0, 60),
        "latitude": (32, 43),
        "longitude": (-125, -114),
        "occupants": (0, 12),
        "population": (0, 8000),
    }
    columns: dict[str, Any] = {name: {"low": low, "high": high} for name, (low, high) in bounds.items()}
    columns["kind"] = {"categories": ["house", "flat", "other"]}
    schema = {"columns": columns, "target": {"name": "price", "low": 0, "high": 6}}
    return frame.assign(price=price.clip(0, 6)).round(4), schema


def diabetes() -> tuple[pd.DataFrame, dict[str, Any]]:
    """scikit-learn's table, its features as measured, with bounds that a physician might name."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes(as_frame=True, scaled=False)
    bounds = {
        "age": (18, 80),
        "bmi": (15, 45),
        "bp": (60, 140),
        "s1": (90, 310),
        "s2": (40, 250),
        "s3": (20, 100),
        "s4": (1, 10),
        "s5": (3, 6.5),
        "s6": (55, 130),
    }
    columns: dict[str, Any] = {name: {"low": low, "high": high} for name, (low, high) in bounds.items()}
    columns = {"age": columns.pop("age"), "sex": {"categories": ["1", "2"]}, **columns}
    frame = found.data.assign(sex=found.data.sex.astype(int).astype(str), progression=found.target)
    return frame, {"columns": columns, "target": {"name": "progression", "low": 25, "high": 350}}


TABLES: dict[str, Callable[[], tuple[pd.DataFrame, dict[str, Any]]]] = {"diabetes": diabetes, "homes": homes}


def run(table: str, methods: tuple[str, ...], python: str | None, out: Path) -> None:
    """Every method at every epsilon and seed; the split of the records follows the seed. What `out` has is not run again."""
    from noiseproof.data import load
    from noiseproof.releases import DataRelease, ModelRelease, PredictionRelease, Release, evaluate
    from noiseproof.run import train

    stored: dict[str, dict[str, dict[str, float]]] = json.loads(out.read_text()) if out.is_file() else {}
    rows = stored.setdefault(table, {})

    def fill(name: str, epsilon: str, seed: int, score: Callable[[], float]) -> None:
        cell = rows.setdefault(name, {})
        if f"{epsilon}/{seed}" not in cell:
            cell[f"{epsilon}/{seed}"] = round(score(), 4)
            out.write_text(json.dumps(stored, indent=1) + "\n")

    with tempfile.TemporaryDirectory() as folder:
        path, schema = Path(folder, f"{table}.csv"), Path(folder, "schema.json")
        frame, facts = TABLES[table]()
        frame.to_csv(path, index=False)
        schema.write_text(json.dumps(facts))
        for seed in SEEDS:
            split = load(path, schema=schema, seed=seed)

            def fitted(name: str, epsilon: float, split: Split = split, seed: int = seed) -> float:
                release: Release = train(name, split.train, epsilon=epsilon, queries=100, seed=seed)
                if isinstance(release, DataRelease):
                    release = train("none", release.dataset, epsilon=1.0, seed=seed)
                assert isinstance(release, ModelRelease | PredictionRelease)
                return evaluate(release, split.test).value

            for name, model in _peers().items():
                fill(name, "none", seed, partial(_score, model, split))
            fill("none", "none", seed, partial(fitted, "none", 1.0))
            for epsilon in EPSILONS:
                if python is not None:
                    peer = partial(_diffprivlib, python, split, epsilon, seed, Path(folder))
                    fill("diffprivlib 0.6.6", f"{epsilon:g}", seed, peer)
                for name in methods:
                    fill(name, f"{epsilon:g}", seed, partial(fitted, name, epsilon))


def _peers() -> dict[str, Any]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV

    return {"ridge": RidgeCV(np.logspace(-4, 2, 13)), "boosted trees": HistGradientBoostingRegressor(random_state=0)}


def _score(model: Any, split: Split) -> float:
    x, y, test, labels = (part.numpy() for half in (split.train, split.test) for part in (half.features, half.labels))
    return float(model.fit(x, y).score(test, labels))


_PROGRAM = """
import json, sys, warnings
import numpy as np
from diffprivlib.models import LinearRegression
warnings.simplefilter("ignore")
data, epsilon, seed = np.load(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
model = LinearRegression(epsilon=epsilon, bounds_X=(0.0, 1.0), bounds_y=(0.0, 1.0), random_state=seed)
print(json.dumps(model.fit(data["x"], data["y"]).predict(data["test"]).tolist()))
"""


def _diffprivlib(python: str, split: Split, epsilon: float, seed: int, folder: Path) -> float:
    """The R2 of its linear regression, with the same public bounds, in the interpreter that has it."""
    from sklearn.metrics import r2_score

    x, y, test = (
        part.numpy().astype(float) for part in (split.train.features, split.train.labels, split.test.features)
    )
    np.savez(folder / "split.npz", x=x, y=y, test=test)
    command = [python, "-c", _PROGRAM, str(folder / "split.npz"), str(epsilon), str(seed)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env={})
    return float(r2_score(split.test.labels.numpy(), np.clip(json.loads(found.stdout), 0, 1)))


def table_of(rows: dict[str, dict[str, float]]) -> str:
    """The docs' table of one set: means over the seeds, best first."""
    settings = [*(f"{epsilon:g}" for epsilon in EPSILONS), "none"]

    def mean(cells: dict[str, float], setting: str) -> float:
        found = [value for key, value in cells.items() if key.split("/")[0] == setting]
        return float(np.mean(found)) if found else float("nan")

    means = {name: [mean(cells, setting) for setting in settings] for name, cells in rows.items()}
    order = sorted(
        means, key=lambda name: (not np.isnan(means[name][-1]), -np.nan_to_num(means[name][1], nan=means[name][-1]))
    )
    lines = [
        "| | " + " | ".join([*(f"ε = {epsilon:g}" for epsilon in EPSILONS), "no privacy"]) + " |",
        "| --- " * 5 + "|",
    ]
    for name in order:
        cells = ("" if np.isnan(value) else f"{value:.3f}".replace("-", "−") for value in means[name])
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run both tables, store each score as soon as it is there, and print the tables of the docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--diffprivlib", metavar="PYTHON", help="an interpreter that has diffprivlib")
    given = parser.parse_args()
    methods = tuple(filter(None, given.methods.split(",")))
    for table in given.tables.split(","):
        run(table, methods, given.diffprivlib, given.out)
        print(f"{table}\n{table_of(json.loads(given.out.read_text())[table])}")


if __name__ == "__main__":
    main()
