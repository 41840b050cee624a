"""Small sets over several splits: where one split's accuracy says little, the spread is part of the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from bench.results.measure import Bench
from bench.results.rows import DELTA, NEIGHBOURS, Row
from noiseproof.data import load
from noiseproof.methods import build
from noiseproof.privacy import Budget, Reproducible
from noiseproof.releases.release import ModelRelease, accuracy

SPLITS = range(1, 7)


def measure(row: Row) -> dict[str, list[float]]:
    """The row's accuracy on six splits other than the table's, by its recipe and by `functional`, one seed each."""
    found: dict[str, list[float]] = {"dp-sgd": [], "functional": []}
    for seed in SPLITS:
        split = load(row.data, test_fraction=row.test_fraction, seed=seed)
        found["dp-sgd"].append(Bench(row, split).run(seed)["accuracy"])
        budget = Budget(row.epsilon, DELTA, NEIGHBOURS)
        release = build("functional", {}).fit(None, split.train, budget, rng=Reproducible(seed))
        assert isinstance(release, ModelRelease)
        found["functional"].append(accuracy(release, split.test))
    return found


def table(rows: Sequence[tuple[Row, Mapping[str, Any]]]) -> Iterator[str]:
    """The page's section, if a row has been measured on several splits."""
    found = [(row, kept["splits"]) for row, kept in rows if "splits" in kept]
    if not found:
        return
    yield "## Over six splits"
    yield ""
    yield (
        "A small set's accuracy depends on which records are held out. Six other splits, one seed each, mean and standard "
        "deviation; `functional` releases each class's sum of records and nothing else ([functional](methods/functional.md))."
    )
    yield ""
    yield "| data | epsilon | method | mean accuracy | each split |"
    yield "| --- | --- | --- | --- | --- |"
    for row, by_method in found:
        for method, values in by_method.items():
            each = ", ".join(f"{100 * value:.2f}" for value in values)
            yield f"| {row.data} | {row.epsilon:g} | `{method}` | {fmean(values):.2%} ± {100 * stdev(values):.2f} | {each} |"
    yield ""
