"""Runs of the grid, and the page of results from what was kept of them.

`python -m bench.synthetic run --tables visits,tails --methods marginals,mst --seeds 0 --minutes 10` runs what is missing of
a part of the grid, cell by cell, and starts none after so many minutes. `python -m bench.synthetic page` writes the page.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from statistics import stdev, variance

from bench.synthetic import (
    EPSILONS,
    HIGHER,
    OURS,
    PATIENCE,
    PEERS,
    RESULTS,
    SEEDS,
    SHOWN,
    Runs,
    best,
    kept,
    over_seeds,
    seeds,
)
from bench.synthetic.pictures import told
from bench.synthetic.tables import TABLES
from noiseproof.files import write_whole

MEASURES = {
    "tv1": "columns’ variation",
    "tv2": "pairs’ variation",
    "tv3": "triples’ variation",
    "trees_auc": "trees’ AUC",
    "logistic_auc": "logistic AUC",
    "correlation": "correlations’ error",
    "ranges": "ranges’ error",
    "copies": "copies beyond chance",
    "nearest_auc": "nearest attack’s AUC",
    "density_auc": "density attack’s AUC",
    "seconds": "seconds",
    "megabytes": "megabytes",
}
Kept = dict[tuple[str, float], dict[str, Runs]]


def read(folder: Path, tables: Iterable[str] = TABLES) -> Kept:
    """All runs of some tables that were kept, by table and epsilon, then by method."""
    ways = (*OURS, *PEERS)
    return {
        (name, epsilon): {way: seeds(folder, name, way, epsilon, run=False) for way in ways}
        for name in tables
        for epsilon in EPSILONS
    }


def compared(found: Kept) -> str:
    """Our best method beside the best peer, wherever both ran: the measures that matter most."""
    lines = [
        "| table | ε | pairs’ variation | best peer | trees’ AUC | best peer | seconds | best peer |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (name, epsilon), runs in found.items():
        if not any(runs[way] for way in OURS):
            continue
        cells = []
        for what in SHOWN:
            ours, theirs = best(runs, OURS, what), best(runs, PEERS, what)
            assert ours is not None
            cells.append(_told(ours, what, runs, bold=_leads(runs, what)))
            cells.append("—" if theirs is None else _told(theirs, what, runs))
        lines.append(f"| {name} | {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def held(found: Kept) -> str:
    """At every epsilon: on how many of the tables that a peer ended on ours is at or ahead of the best of them."""
    lines = [
        "| ε | pairs’ variation | trees’ AUC | seconds | all three | no peer’s figure for |",
        "| --- " * 6 + "|",
    ]
    for epsilon in EPSILONS:
        ours = {name: runs for (name, at), runs in found.items() if at == epsilon and best(runs, OURS, "tv2")}
        both = {name: runs for name, runs in ours.items() if best(runs, PEERS, "tv2")}
        by_table = [[_leads(runs, what) for what in SHOWN] for runs in both.values()]
        cells = [sum(column) for column in zip(*by_table, strict=True)] if both else [0] * len(SHOWN)
        told = [f"{count} of {len(both)}" for count in (*cells, sum(map(all, by_table)))]
        lines.append(f"| {epsilon:g} | {' | '.join(told)} | {', '.join(ours.keys() - both.keys()) or 'none'} |")
    return "\n".join(lines)


def _leads(runs: dict[str, Runs], what: str) -> bool:
    """Whether our best method is at least as good as the best peer, or within two standard errors of the difference.

    Of a method that ran once the spread is not known, and taken for nothing.
    """
    ours, theirs = best(runs, OURS, what), best(runs, PEERS, what)
    if ours is None or theirs is None:
        return False
    samples = [[run[what] for run in runs[way]] for way, _ in (ours, theirs)]
    error = math.sqrt(sum(variance(some) / len(some) for some in samples if len(some) > 1 and what != "seconds"))
    behind = theirs[1] - ours[1] if what in HIGHER else ours[1] - theirs[1]
    return behind <= 2 * error


def _told(found: tuple[str, float], what: str, runs: dict[str, Runs], *, bold: bool = False) -> str:
    way, value = found
    values = [run[what] for run in runs[way]]
    digits = 1 if what == "seconds" else 3
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 and what != "seconds" else ""
    text = f"{value:.{digits}f}{spread}"
    return f"**{text}** {way}" if bold else f"{text} {way}"


def everything(found: Kept, epsilon: float) -> str:
    """Every measure of every method that ran at one epsilon, over its seeds."""
    lines = [f"| table | method | seeds | {' | '.join(MEASURES.values())} |", "| --- " * (len(MEASURES) + 3) + "|"]
    for (name, at), runs in found.items():
        for way, some in runs.items() if at == epsilon else ():
            if some:
                cells = [f"{over_seeds(some, what):.3g}" for what in MEASURES]
                lines.append(f"| {name} | {way} | {len(some)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def coverage(found: Kept) -> str:
    """How many runs of each method there are on each table, of one for every epsilon and seed."""
    tables = list(dict.fromkeys(name for name, _ in found))
    lines = [f"| method | {' | '.join(tables)} |", "| --- " * (len(tables) + 1) + "|"]
    for way in (*OURS, *PEERS):
        counts = [sum(len(found[name, epsilon][way]) for epsilon in EPSILONS) for name in tables]
        if any(counts):
            lines.append(f"| {way} | {' | '.join(str(count or '—') for count in counts)} |")
    return "\n".join(lines)


def given_up(folder: Path) -> str:
    """Runs that did not end within the processor time that they were given."""
    cells = [
        (name, way, f"{epsilon:g}", json.loads(path.read_text())["given up after"])
        for name, way, epsilon, seed in product(TABLES, PEERS, EPSILONS, SEEDS)
        if kept(folder, name, way, epsilon, seed, run=False) == {}
        for path in [folder / f"{name}-{way}-{epsilon:g}-{seed}.json"]
    ]
    listed = ", ".join(
        f"{way} on {name} at {epsilon} ({limit} s)" for name, way, epsilon, limit in dict.fromkeys(cells)
    )
    return f"Given up: {listed or 'none'}."


def draw(found: Kept, path: Path) -> None:
    """Small multiples of what ran: a row of pictures a measure, a column a table, a line a method over epsilon."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    tables = [name for name in TABLES if any(runs for at in EPSILONS for runs in found[name, at].values())]
    methods = [way for way in (*OURS, *PEERS) if any(runs[way] for runs in found.values())]
    colors = mpl.colormaps["tab20" if len(methods) > 10 else "tab10"]
    figure, axes = plt.subplots(
        len(SHOWN), len(tables), figsize=(15, 7), sharex=True, squeeze=False, layout="constrained"
    )
    for column, name in enumerate(tables):
        for row, what in enumerate(SHOWN):
            axis = axes[row][column]
            for place, way in enumerate(methods):
                points = [(epsilon, found[name, epsilon][way]) for epsilon in EPSILONS if found[name, epsilon][way]]
                values = [over_seeds(runs, what) for _, runs in points]
                style = {"marker": "o", "ms": 3, "color": colors(place), "lw": 2 if way in OURS else 1}
                axis.plot([epsilon for epsilon, _ in points], values, label=way, **style)
            axis.set_xscale("log")
            if what == "seconds":
                axis.set_yscale("log")
            if row == 0:
                axis.set_title(name, fontsize=10)
            if column == 0:
                axis.set_ylabel(MEASURES[what])
    axes[-1][0].set_xlabel("ε")
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=7, frameon=False)
    figure.savefig(path, dpi=110)


def page(folder: Path, page: Path, picture: Path) -> None:
    """Write both."""
    found = read(folder)
    draw(found, picture)
    text = page.read_text(encoding="utf-8")
    parts = {
        "held": held(found),
        "compared": compared(found),
        "given up": given_up(folder),
        "everything": everything(found, 1.0),
        "coverage": coverage(found),
        "pictures": told(),
    }
    for name, part in parts.items():
        start, end = f"<!-- synthetic: {name} -->\n", "<!-- end of synthetic -->"
        before, rest = text.split(start)
        text = f"{before}{start}\n{part}\n\n{end}{rest.split(end, 1)[1]}"
    write_whole(page, text)


def _listed(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    return lambda text: [kind(part) for part in text.split(",")]


def main() -> None:
    """Run a part of the grid, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.synthetic", description=__doc__)
    parser.add_argument("what", choices=("run", "page"))
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--tables", type=_listed(str), default=[*TABLES])
    parser.add_argument("--methods", type=_listed(str), default=["marginals", *PEERS])
    parser.add_argument("--epsilons", type=_listed(float), default=[*EPSILONS])
    parser.add_argument("--seeds", type=_listed(int), default=[*SEEDS])
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--patience", type=int, default=PATIENCE, help="seconds of processor time that a run may take")
    parser.add_argument("--page", type=Path, default=Path("docs/synthetic.md"))
    parser.add_argument("--picture", type=Path, default=Path("docs/synthetic.png"))
    asked = parser.parse_args()
    if asked.what == "page":
        page(asked.folder, asked.page, asked.picture)
        return
    end = time.monotonic() + 60 * asked.minutes
    for seed, name, epsilon, way in product(asked.seeds, asked.tables, asked.epsilons, asked.methods):
        if time.monotonic() < end:
            found = kept(asked.folder, name, way, epsilon, seed, patience=asked.patience)
            shown = {what: found[what] for what in SHOWN} if found else found
            print(name, way, epsilon, seed, shown, flush=True)


if __name__ == "__main__":
    main()
