"""`python -m bench.results`: run what is missing, then write the page."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bench.results import correlated, splits
from bench.results.measure import Bench
from bench.results.page import render
from bench.results.rows import ROWS, RUNS, SEEDS, Row, Store
from noiseproof.errors import NoiseproofError
from noiseproof.files import write_whole


def results(
    rows: Sequence[Row], *, seeds: Sequence[int], store: Store, page: Path, every: Sequence[Row] = ROWS
) -> None:
    """Measure what the store lacks of `rows`, and write the page of all that is finished."""
    for row in rows:
        bench = Bench(row)
        kept = store.row(row.key, bench.belongs)
        for seed in seeds:
            if str(seed) not in kept["runs"]:
                kept["runs"][str(seed)] = bench.run(seed)
                store.save(row.key, kept)
                run = kept["runs"][str(seed)]
                _tell(f"{row.key} seed {seed}: {run['accuracy']:.2%} in {run['seconds']:.0f} s")
        if kept["audit"] is None:
            audited = kept["audit"] = bench.audit()
            store.save(row.key, kept)
            _tell(f"{row.key} audited: game {audited['game']:.3g}, one run {audited['one_run']:.3g}")
        if row.splits and "splits" not in kept:
            kept["splits"] = splits.measure(row)
            store.save(row.key, kept)
        accuracy = fmean([run["accuracy"] for run in kept["runs"].values()])
        floor = "" if row.floor is None else f", must be {row.floor:.1%}: {'yes' if accuracy >= row.floor else 'NO'}"
        _tell(f"{row.key}: {accuracy:.2%}{floor}")
    read = [(row, store.read(row.key)) for row in every]
    finished = [(row, found) for row, found in read if found is not None and found["runs"]]
    missing = [row for row in every if row not in [done for done, _ in finished]]
    write_whole(page, render(finished, missing, correlated.table(store)))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="results", description="Regenerate docs/results.md; finished runs are kept.")
    parser.add_argument("--only", help="data sets or rows, as mnist,adult or mnist-0.5; without it, all")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where finished runs are kept")
    parser.add_argument("--page", type=Path, default=Path("docs/results.md"), help="the page to write")
    given = parser.parse_args()
    wanted = set(given.only.split(",")) if given.only else None
    rows = [row for row in ROWS if wanted is None or wanted & {row.data, row.key}]
    if not rows:
        parser.error(f"there is no row {given.only}; there are {', '.join(row.key for row in ROWS)}")
    started = time.perf_counter()
    try:
        results(rows, seeds=range(given.seeds), store=Store(given.runs), page=given.page)
    except NoiseproofError as error:
        _tell(str(error))
        return 1
    _tell(f"{given.page} written after {time.perf_counter() - started:.0f} s")
    return 0


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
