"""Correlated noise beside independent noise: the same recipes and steps, with and without a sampler that must be trusted.

`python -m bench.results.correlated --minutes 10` runs what is missing, seed by seed, for so long, and writes its part of the
page; `make results` takes over what it kept.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.results.measure import Bench
from bench.results.rows import RUNS, SEEDS, Row, Store, spread
from noiseproof.files import write_whole

EPSILONS = (1.0, 3.0, 8.0)
DATA = (
    Row("adult", 1.0, None, ""),
    Row("mnist", 1.0, None, "", recipe="scattering-upright"),
    Row("cifar10", 1.0, None, "", recipe="scattering-mirror"),
)
COLUMNS = ("Poisson samples", "shuffled", "fixed order", "sampled bands")
_FIRST = ((8.0, "Poisson samples"), (8.0, "sampled bands"))
"""The cells that are run first of further seeds: sampled bands are not to be below Poisson samples there."""
KEY, HEADING = "correlated", "## Without a sampler that must be trusted"
_STEPS = {"mnist": {"epochs": 44.0}, "cifar10": {"epochs": 44.0}}
"""The recipe for pictures takes twice as many steps where epsilon is large; here 440 throughout, to save time."""

_WORDS = """\
A proof of `dp-sgd` with amplification takes Poisson samples that stay secret. A loader that shuffles, or reads in the order of a
disk, has none; then each epoch is a Gaussian mechanism at its full noise. These are the recipes' trainings with four kinds of
noise, each proven at its epsilon, with 440 steps of pictures, three seeds if not said otherwise; empty cells were not run.
*Poisson samples*: `dp-sgd` as above. *Shuffled*: independent noise, no sampling (`dp-mf` with one band):
what `dp-sgd` must add where its batches come from a loader. *Fixed order*: `dp-mf` with correlated noise, no
sampling either. *Sampled bands*:
`dp-mf` whose batches are Poisson samples of one of as many places as leave the least noise by calculation, one (which is
`dp-sgd`) to an epoch's.

Every run is kept in `bench/results/runs`; `python -m bench.results.correlated --minutes 10` goes on from there for so long, and
writes this section anew."""


def ways(bench: Bench, epsilon: float) -> dict[str, Bench]:
    """The trainings that are compared at an epsilon, by the column they stand in."""
    settings = _STEPS.get(bench.row.data, {})
    return {
        "Poisson samples": bench.at(epsilon, "dp-sgd", settings),
        "shuffled": bench.at(epsilon, "dp-mf", {**settings, "bands": 1}),
        "fixed order": bench.at(epsilon, "dp-mf", settings),
        "sampled bands": bench.at(epsilon, "dp-mf", {**settings, "sampled": True}),
    }


def measure(store: Store, rows: Sequence[Row], seeds: Sequence[int], deadline: float) -> None:
    """Run what the store lacks until the deadline: all cells of the first seed, then those that are compared first."""
    benches = [Bench(row) for row in rows]
    cells = [(bench, epsilon, way) for bench in benches for epsilon in EPSILONS for way in COLUMNS]
    runs = sorted(product(seeds, cells), key=lambda run: (run[0] > 0, run[1][1:] not in _FIRST))
    for seed, (bench, epsilon, way) in runs:
        if time.monotonic() > deadline:
            return
        key = _key(bench.row, epsilon, way)
        there = ways(bench, epsilon)[way]
        kept = store.row(key, {**there.belongs, "settings": there.method.settings()})
        if str(seed) in kept["runs"]:
            continue
        run = kept["runs"][str(seed)] = there.run(seed)
        store.save(key, kept)
        seconds = f"{run['processor_seconds']:.0f} s"
        print(f"{key} seed {seed}: {run['accuracy']:.2%} in {seconds}", file=sys.stderr, flush=True)


def table(store: Store) -> Iterator[str]:
    """The page's section, if anything has been measured."""
    lines = []
    for row in DATA:
        for epsilon in EPSILONS:
            cells = [_kept(store, row, epsilon, way) for way in COLUMNS]
            if any(cell and cell["runs"] for cell in cells):
                lines.append(f"| {row.data} | {epsilon:g} | {' | '.join(_cell(cell) for cell in cells)} |")
    if not lines:
        return
    yield from (HEADING, "", _WORDS, "")
    yield f"| data | epsilon | {' | '.join(COLUMNS)} |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield from lines
    yield ""
    for way, than in (
        ("fixed order", "shuffled"),
        ("fixed order", "Poisson samples"),
        ("sampled bands", "Poisson samples"),
    ):
        ahead = [f"{row.data} {gain:+.2f}" for row in DATA if (gain := _gain(store, row, 8.0, way, than)) is not None]
        if ahead:
            yield f"At epsilon 8, {way} less {than}, in points over the seeds that both have: {', '.join(ahead)}."
            yield ""


def _gain(store: Store, row: Row, epsilon: float, way: str, than: str) -> float | None:
    """By how many points of accuracy one column is ahead of another, on average over the seeds that both were run with."""
    one, other = ((_kept(store, row, epsilon, each) or {"runs": {}})["runs"] for each in (way, than))
    both = one.keys() & other.keys()
    return 100 * fmean(one[seed]["accuracy"] - other[seed]["accuracy"] for seed in both) if both else None


def _key(row: Row, epsilon: float, way: str) -> str:
    return f"{KEY}-{row.data}-{epsilon:g}-{way.replace(' ', '-')}"


def _kept(store: Store, row: Row, epsilon: float, way: str) -> Mapping[str, Any] | None:
    """What was measured of a cell; dp-sgd's trainings are also those of the page's first table, if they took as many steps."""
    found = store.read(_key(row, epsilon, way))
    if found is None and way == "Poisson samples" and row.data in _STEPS:
        above = store.read(f"{row.data}-{epsilon:g}")
        if above is not None and above["belongs"]["settings"]["epochs"] == _STEPS[row.data]["epochs"]:
            return above
    return found


def _cell(kept: Mapping[str, Any] | None) -> str:
    if not kept or not kept["runs"]:
        return ""
    found = [run["accuracy"] for run in kept["runs"].values()]
    few = "" if len(found) == len(SEEDS) else f" ({len(found)} seed{'s' * (len(found) > 1)})"
    around = f" ± {100 * spread(found):.2f}" if len(found) > 1 else ""
    return f"{fmean(found):.2%}{around}{few}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="results.correlated", description=__doc__)
    parser.add_argument("--only", help="data sets, as mnist,adult; without it, all")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after so long")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where finished runs are kept")
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"), help="the page with the section")
    given = parser.parse_args()
    rows = [row for row in DATA if not given.only or row.data in given.only.split(",")]
    store = Store(given.runs)
    measure(store, rows, SEEDS, time.monotonic() + 60 * given.minutes)
    page = given.page.read_text()
    begin = page.find(HEADING)
    end = page.index("\n## ", begin + 1) + 1 if begin >= 0 else (begin := page.index("## Audited"))
    write_whole(given.page, page[:begin] + "\n".join(table(store)) + "\n" + page[end:])


if __name__ == "__main__":
    main()
