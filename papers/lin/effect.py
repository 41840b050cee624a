"""The tables of scale effect: both sequences, and quantile clipping, with the paper's own networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean

import pandas as pd

from papers.lin import design, published
from papers.lin.design import Cell, Plan
from papers.lin.results import CellResult
from papers.study import Column, Table, Value

Results = Mapping[Cell, CellResult]


def effect_tables(results: Results, plan: Plan) -> Iterator[Table]:
    """The tables of the cells that were run."""
    yield sequences_table(results, plan)
    yield distances_table(results, plan)
    if any(cell.sequence == "quantile-flat" for cell in results):
        yield quantiles_table(results, plan)


_SETTING = tuple(Column(text, None) for text in ("data", "model", "optimizer", "rate", "start", "steps", "C"))


def sequences_table(results: Results, plan: Plan) -> Table:
    """Accuracy of both sequences with the paper's networks: means over seeds, the gain of each, and what they printed."""
    rows: list[tuple[Value, ...]] = []
    for cell, runs in _compared(results).items():
        ac, ca, plain = (runs[sequence] for sequence in ("AC", "CA", "none"))
        theirs = {sequence: _printed(cell.as_sequence(sequence)).get("accuracy") for sequence in ("AC", "CA", "none")}
        rows.append(
            (
                *_setting(cell, plan),
                fmean(run.accuracy for run in ac),
                fmean(run.accuracy for run in ca),
                ", ".join(f"{100 * (one.accuracy - other.accuracy):+.1f}" for one, other in zip(ac, ca, strict=True)),
                theirs["AC"],
                theirs["CA"],
                fmean(run.accuracy for run in plain),
                theirs["none"],
                ca[0].proven,
                sum(run.seconds for run in (*ac, *ca)) / len((*ac, *ca)),
            )
        )
    return Table(
        "sequences",
        "The paper's networks, sigma 0.5: accuracy of noise first (AC) and of clipping first (CA)",
        (
            *_SETTING,
            Column("AC"),
            Column("CA"),
            Column("AC over CA, points of each seed"),
            Column("AC, theirs", theirs=True),
            Column("CA, theirs", theirs=True),
            Column("no noise"),
            Column("no noise, theirs", theirs=True),
            Column("CA's proven epsilon", 3),
            Column("CPU seconds a training", 0),
        ),
        tuple(rows),
        plan.notes,
    )


def distances_table(results: Results, plan: Plan) -> Table:
    """TPVD and loss of the same trainings."""
    rows: list[tuple[Value, ...]] = []
    for cell, runs in _compared(results).items():
        printed = [_printed(cell.as_sequence(sequence)) for sequence in ("AC", "CA")]
        pairs = list(zip(runs["AC"], runs["CA"], strict=True))
        below = sum((ac.tpvd or 0.0) < (ca.tpvd or 0.0) for ac, ca in pairs)
        rows.append(
            (
                *_setting(cell, plan),
                *(fmean(run.tpvd or 0.0 for run in runs[sequence]) for sequence in ("AC", "CA")),
                f"{below} of {len(pairs)}",
                *(row.get("tpvd") for row in printed),
                *(fmean(run.convergence for run in runs[sequence]) for sequence in ("AC", "CA")),
                *(row.get("convergence") for row in printed),
            )
        )
    return Table(
        "distances",
        "The paper's networks, sigma 0.5: TPVD, and the loss at the end",
        (
            *_SETTING,
            Column("TPVD, AC"),
            Column("TPVD, CA"),
            Column("AC below CA"),
            Column("TPVD, AC, theirs", theirs=True),
            Column("TPVD, CA, theirs", theirs=True),
            Column("loss, AC"),
            Column("loss, CA"),
            Column("loss, AC, theirs", theirs=True),
            Column("loss, CA, theirs", theirs=True),
        ),
        tuple(rows),
        plan.notes,
    )


def _compared(results: Results) -> dict[Cell, dict[str, list[CellResult]]]:
    """The runs of each sequence over the seeds that have all three, by AC's first cell of the setting."""
    found: dict[Cell, dict[str, list[CellResult]]] = {}
    for cell in results:
        three = {"AC": cell, "CA": cell.as_sequence("CA"), "none": cell.reference}
        if cell.sequence == "AC" and all(one in results for one in three.values()):
            runs = found.setdefault(replace(cell, repeat=0), {"AC": [], "CA": [], "none": []})
            for sequence, one in three.items():
                runs[sequence].append(results[one])
    return found


def _setting(cell: Cell, plan: Plan) -> tuple[Value, ...]:
    return cell.data, cell.model, cell.optimizer, plan.lr(cell), cell.start, plan.steps_of(cell), cell.clip


def _printed(cell: Cell) -> dict[str, float]:
    """What the paper's tables print of a cell at sigma 0.5."""
    adam = {"optimizer": "adam"}
    tables: tuple[tuple[pd.DataFrame, dict[str, str]], ...] = (
        (published.table12(), {"data": "mnist", **adam}),
        (published.table7(), {"model": "cnn", **adam}),
        (published.cells(), {}),
    )
    found: dict[str, float] = {}
    for table, fixed in ((published.baselines(), {}),) if cell.sequence == "none" else tables:
        keys = [key for key in ("data", "model", "optimizer", "sequence", "sigma", "clip") if key in table.columns]
        for row in table.to_dict("records"):
            printed = {**fixed, **{key: row[key] for key in keys}}
            if all(getattr(cell, key) == value for key, value in printed.items()):
                found |= {key: float(row[key]) for key in ("accuracy", "convergence", "tpvd") if key in row}
    return found


def quantiles_table(results: Results, plan: Plan) -> Table:
    """Table 7's quantile clippings on MNIST with the paper's CNN: how much the reading of a layer's part decides."""
    printed = published.table7().query("data == 'mnist' and clip.isna()").set_index("sequence").to_dict("index")
    rows: list[tuple[Value, ...]] = []
    for sequence, share in design.QUANTILES:
        runs = [result for cell, result in results.items() if (cell.sequence, cell.share) == (sequence, share)]
        if not runs:
            continue
        theirs = printed[sequence]
        rows.append(
            (
                sequence,
                share,
                fmean(run.accuracy for run in runs),
                ", ".join(f"{run.accuracy:.4f}" for run in runs),
                theirs["accuracy"],
                fmean(run.tpvd or 0.0 for run in runs),
                theirs["tpvd"],
                fmean(run.seconds for run in runs),
            )
        )
    return Table(
        "quantiles",
        "MNIST, the paper's CNN, Adam, sigma 0.5: quantile clipping by the reading of a layer's part",
        (
            *(Column(text, None) for text in ("method", "share")),
            Column("accuracy"),
            Column("of each seed"),
            Column("accuracy, theirs", theirs=True),
            Column("TPVD"),
            Column("TPVD, theirs", theirs=True),
            Column("CPU seconds", 0),
        ),
        tuple(rows),
        plan.notes,
    )
