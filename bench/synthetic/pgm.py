"""Runs private-pgm's own AIM or MST on a CSV file; started with the Python of an environment that has jax and pandas.

`python pgm.py METHOD EPSILON DELTA SEED TRAIN.csv SCHEMA.json OUT.csv`, with the folder of a checkout of
github.com/ryan112358/private-pgm in `NOISEPROOF_PGM`. Its mechanisms take whole numbers, so that bins are made here, at no
cost: equal parts of the public range as for dpmm (`peer.py`), or (`-halved`) halvings towards its lower end for heavy tails;
as many as for dpmm, or (`-64`) 64.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import time
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

SMALL = 5000
"""Records below which numbers get 16 bins, not 32, as for dpmm."""
MOST_CELLS = 10_000
"""Cells of a pair that AIM may count, as its own command has it."""
MOST_FACTORS = 10
"""Factors of a product whose best order is looked for, in time exponential in them; it changes results by rounding alone."""


def order_quickly() -> None:
    """Order products of many factors greedily: for a column that depends on twenty others the search would not end."""
    paths = import_module("opt_einsum.paths")
    best = paths.dynamic_programming

    def order(inputs: list[frozenset[str]], *rest: Any, **options: Any) -> Any:
        return best(inputs, *rest, **options) if len(inputs) <= MOST_FACTORS else paths.greedy(inputs, *rest)

    paths._PATH_OPTIONS["dp"] = order


def edges(about: dict[str, float], bins: int, *, halved: bool) -> npt.NDArray[np.float64]:
    """Of so many bins of a number's public range, with 0 a bin of its own where they are halved."""
    shares = np.linspace(0, 1, bins + 1)
    if halved:
        shares = np.concatenate([[0.0], 2.0 ** np.linspace(-20, 0, bins)])
    return about["low"] + (about["high"] - about["low"]) * shares


def main(method: str, epsilon: str, delta: str, seed: str, train: str, schema: str, out: str) -> None:
    """Fit, generate as many rows, write them, and print seconds of processor time and megabytes."""
    home = Path(os.environ["NOISEPROOF_PGM"])
    sys.path[:0] = [str(home / "mechanisms"), str(home / "src")]
    from aim import AIM  # type: ignore[import-not-found]
    from mbi import Dataset, Domain  # type: ignore[import-not-found]
    from mst import MST  # type: ignore[import-not-found]

    order_quickly()

    with open(schema) as file:
        about = json.load(file)
    frame = pd.read_csv(train, keep_default_na=False, na_values=[""])
    np.random.seed(int(seed))  # noqa: NPY002 (what its mechanisms draw from)
    rng = np.random.default_rng(int(seed))
    kind, *options = method.removeprefix("pgm-").split("-")
    halved = "halved" in options
    bins = 64 if "64" in options else 32 if len(frame) >= SMALL else 16
    started = time.process_time()
    columns = {**about["columns"], about["target"]["name"]: {"categories": about["target"]["classes"]}}
    coded, sizes, ends = {}, {}, {}
    for name, column in columns.items():
        if "categories" in column:
            values = pd.Categorical(frame[name].astype("string"), categories=column["categories"]).codes.astype(int)
            sizes[name] = len(column["categories"])
        else:
            ends[name] = edges(column, bins, halved=halved)
            numbers = frame[name].astype(float).to_numpy()
            values = np.where(np.isnan(numbers), -1, np.searchsorted(ends[name][1:-1], numbers, side="right"))
            sizes[name] = len(ends[name]) - 1
        if column.get("missing"):
            values = np.where(values < 0, sizes[name], values)
            sizes[name] += 1
        coded[name] = values
    data = Dataset(pd.DataFrame(coded), Domain.fromdict(sizes))
    with contextlib.redirect_stdout(sys.stderr):
        if kind == "mst":
            made = MST(data, float(epsilon), float(delta)).df
        else:
            pairs = [pair for pair in combinations(data.domain, 2) if data.domain.size(pair) <= MOST_CELLS]
            made = AIM(float(epsilon), float(delta)).run(data, [(pair, 1.0) for pair in pairs], len(frame))[1].df
    found = {}
    for name, column in columns.items():
        places = made[name].to_numpy().astype(int)
        if name in ends:
            there = places < len(ends[name]) - 1
            low, high = (ends[name][np.where(there, places, 0) + step] for step in (0, 1))
            numbers = np.where((places == 0) & halved, low, low + (high - low) * rng.random(len(places)))
            found[name] = np.where(there, numbers.round() if column.get("integer") else numbers, np.nan)
        else:
            found[name] = np.array([*column["categories"], None], dtype=object)[places]
    seconds = time.process_time() - started
    pd.DataFrame(found)[frame.columns].to_csv(out, index=False)
    print(json.dumps({"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
