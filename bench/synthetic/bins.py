"""`python -m bench.synthetic.bins`: pairs' variation that bins of numbers alone leave, with no privacy and nothing fitted.

Real values are drawn anew, evenly, within their bin. Who sees numbers in such bins comes no nearer to the records than that.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from bench.synthetic.measures import codes, variation
from bench.synthetic.pgm import edges
from bench.synthetic.tables import TABLES, Table

BINS = (16, 32, 64)


def left(table: Table, bins: int, *, halved: bool) -> float:
    """The mean variation over pairs of columns of the table's own records, their numbers known by bins alone."""
    rng = np.random.default_rng(0)
    made = table.train.copy()
    for name, about in table.schema["columns"].items():
        if "categories" in about:
            continue
        ends = edges(about, bins, halved=halved)
        values = made[name].astype(float).to_numpy()
        places = np.searchsorted(ends[1:-1], values, side="right")
        low, high = ends[places], ends[places + 1]
        drawn = np.where((places == 0) & halved, low, low + (high - low) * rng.random(len(places)))
        made[name] = np.where(np.isnan(values), np.nan, drawn.round() if about.get("integer") else drawn)
    real, fake = codes(table, table.train), codes(table, made)
    return float(np.mean([variation(real, fake, pair) for pair in combinations(range(real.shape[1]), 2)]))


def main() -> None:
    """The table, for all tables that have numbers."""
    print("| table | " + " | ".join(f"{bins} bins" for bins in BINS) + " |")
    print("| --- " * (len(BINS) + 1) + "|")
    for name, make in TABLES.items():
        table = make()
        if any("categories" not in about for about in table.schema["columns"].values()):
            cells = (f"{left(table, bins, halved=name == 'tails'):.3f}" for bins in BINS)
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
