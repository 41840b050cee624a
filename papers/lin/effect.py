"""Tables of scale effect, with the paper's own networks: both sequences over seeds, rates, and Tables 7 and 12."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from statistics import fmean

import pandas as pd

from papers.lin import design, published
from papers.lin.design import Cell, Plan
from papers.lin.results import CellResult
from papers.lin.statistics import FACTORS
from papers.study import Column, Table, Value

Results = Mapping[Cell, CellResult]


def effect_tables(results: Results, plan: Plan) -> Iterator[Table]:
    """The tables of the cells that were run."""
    yield sequences_table(results, plan)
    yield distances_table(results, plan)
    for table in (
        curves_table(results, plan),
        steps_table(results, plan),
        signs_table(results, plan),
        rates_table(results),
        norms_table(results, plan),
        quantiles_table(results, plan),
    ):
        if table.rows:
            yield table


_SETTING = tuple(Column(text, None) for text in ("data", "model", "optimizer", "rate", "start", "steps", "C"))


def sequences_table(results: Results, plan: Plan) -> Table:
    """Accuracy of both sequences with the paper's networks: means over seeds, the gain of each, and what they printed."""
    rows: list[tuple[Value, ...]] = []
    for cell, runs in _tabled(results):
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
    for cell, runs in _tabled(results):
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


def steps_table(results: Results, plan: Plan) -> Table:
    """What more steps change: a training of the factorial experiment, and the same from the same weights for longer.

    A weight that noise alone moves with Adam walks at random, so that its distance grows as the root of the steps. The last
    column says how many steps would bring it to the paper's at that growth.
    """
    rows: list[tuple[Value, ...]] = []
    for cell, runs in _compared(results).items():
        for sequence in ("AC", "CA"):
            long = cell.as_sequence(sequence)
            few, many = results.get(replace(long, steps=design.SHORT, test=design.FEW)), runs[sequence][0]
            if cell.optimizer != "adam" or few is None:
                continue
            steps, theirs = plan.steps_of(cell), _printed(long).get("tpvd")
            short, later = few.tpvd or 0.0, many.tpvd or 0.0
            rows.append(
                (
                    *(cell.data, cell.model, cell.clip, sequence, design.SHORT, steps, few.accuracy, many.accuracy),
                    *(short, later, short * (steps / design.SHORT) ** 0.5, theirs),
                    None if theirs is None else int(float(f"{steps * (theirs / later) ** 2:.2g}")),
                )
            )
    return Table(
        "steps",
        "More steps: accuracy and TPVD of the same training with Adam, sigma 0.5, seed 0",
        (
            *(Column(text, None) for text in ("data", "model", "C", "sequence", "steps", "more steps")),
            *(Column("accuracy"), Column("accuracy later"), Column("TPVD"), Column("TPVD later")),
            *(Column("TPVD, by the root of the steps"), Column("TPVD, theirs", theirs=True)),
            Column("steps to theirs", None),
        ),
        tuple(rows),
        plan.notes,
    )


def curves_table(results: Results, plan: Plan) -> Table:
    """Figures 1 to 3 in counts: at how many looks of a training AC is ahead of CA, and no noise ahead of both.

    The settings that the paper draws, which are of the factorial experiment, and then those of the table before.
    """
    own = design.experiment()
    drawn = [own[Cell(data, "cnn", "adam", "AC", sigma, clip)] for data, sigma, clip in design.DRAWN.values()]
    rows: list[tuple[Value, ...]] = []
    for cell, runs in (*_runs(results, drawn).items(), *_tabled(results)):
        # The first look is before the first step.
        accuracies, losses = (
            [
                look
                for three in zip(*(runs[sequence] for sequence in ("AC", "CA", "none")), strict=True)
                for look in zip(*(getattr(one, curve)[1:] for one in three), strict=True)
            ]
            for curve in ("accuracies", "losses")
        )
        counts = (
            sum(ac > ca for ac, ca, _ in accuracies),
            sum(ac < ca for ac, ca, _ in losses),
            sum(none > max(ac, ca) for ac, ca, none in accuracies),
            sum(none < min(ac, ca) for ac, ca, none in losses),
        )
        figure = next((name for name, shown in zip(design.DRAWN, drawn, strict=True) if shown == cell), None)
        setting = (cell.data, cell.model, cell.optimizer, cell.start, plan.steps_of(cell), cell.sigma, cell.clip)
        rows.append((figure, *setting, len(runs["AC"]), *(f"{count} of {len(accuracies)}" for count in counts)))
    return Table(
        "curves",
        "Figures 1 to 3 in counts: looks at a training at which one curve is ahead of another",
        (
            *(Column(text, None) for text in ("figure", "data", "model", "optimizer", "start", "steps", "sigma", "C")),
            Column("seeds"),
            Column("accuracy: AC above CA"),
            Column("loss: AC below CA"),
            Column("accuracy: no noise above both"),
            Column("loss: no noise below both"),
        ),
        tuple(rows),
        ("Six looks a training, at 100 to 500 records each. The paper's figures show all four at every look.",),
    )


def _compared(results: Results) -> dict[Cell, dict[str, list[CellResult]]]:
    """The runs of each sequence over the seeds that have all three, by AC's first cell of the setting.

    Cells of the factorial experiment, which are measured on fewer records, have tables of their own.
    """
    return _runs(results, [cell for cell in results if cell.sequence == "AC" and cell.test is None])


def _runs(results: Results, cells: Iterable[Cell]) -> dict[Cell, dict[str, list[CellResult]]]:
    found: dict[Cell, dict[str, list[CellResult]]] = {}
    for cell in cells:
        three = {"AC": cell, "CA": cell.as_sequence("CA"), "none": cell.reference}
        if all(one in results for one in three.values()):
            runs = found.setdefault(replace(cell, repeat=0), {"AC": [], "CA": [], "none": []})
            for sequence, one in three.items():
                runs[sequence].append(results[one])
    return found


def _tabled(results: Results) -> list[tuple[Cell, dict[str, list[CellResult]]]]:
    """Those at the norms of Tables 6 and 7; Table 12 has the others."""
    return [(cell, runs) for cell, runs in _compared(results).items() if cell.clip in (0.04, 1.4)]


def averaged(results: Results, plan: Plan) -> dict[Cell, CellResult]:
    """The cells of the factorial experiment with the means of accuracy and loss over the seeds that were run."""
    found = {}
    for cell, runs in _seeds(results, plan).items():
        accuracy, loss = fmean(run.accuracy for run in runs), fmean(run.convergence for run in runs)
        found[cell] = replace(runs[0], accuracy=accuracy, convergence=loss, seconds=sum(run.seconds for run in runs))
    return found


def _seeds(results: Results, plan: Plan) -> dict[Cell, list[CellResult]]:
    every = [design.experiment(repeat) for repeat in range(plan.repeats)]
    found = {cell: [results[one[cell]] for one in every if one[cell] in results] for cell in design.experiment()}
    return {cell: runs for cell, runs in found.items() if runs}


def signs_table(results: Results, plan: Plan) -> Table:
    """Tables 3 to 5 by seed: in how many of the four settings of a model and an optimizer AC is ahead, and by how much."""
    runs = _seeds(results, plan)
    rows: list[tuple[Value, ...]] = []
    for data, model, optimizer in itertools.product(*(FACTORS[name] for name in ("data", "model", "optimizer"))):
        settings = [
            Cell(data, model, optimizer, "AC", sigma, clip)
            for sigma, clip in itertools.product(FACTORS["sigma"], FACTORS["clip"])
        ]
        settings = [cell for cell in settings if cell in runs and cell.as_sequence("CA") in runs]
        pairs = [list(zip(runs[cell], runs[cell.as_sequence("CA")], strict=False)) for cell in settings]
        if not pairs:
            continue
        # Seeds that all of the settings have.
        gains = [[100 * (ac.accuracy - ca.accuracy) for ac, ca in seed] for seed in zip(*pairs, strict=False)]
        printed = [_printed(cell)["accuracy"] - _printed(cell.as_sequence("CA"))["accuracy"] for cell in settings]
        rows.append(
            (
                *(data, model, optimizer, len(pairs), len(gains)),
                *(", ".join(str(sum(gain > 0 for gain in seed)) for seed in gains), sum(gain > 0 for gain in printed)),
                sum(all(gain > 0 for gain in setting) for setting in zip(*gains, strict=True)),
                sum(all(gain < 0 for gain in setting) for setting in zip(*gains, strict=True)),
                *(", ".join(f"{fmean(seed):+.1f}" for seed in gains), 100 * fmean(printed)),
            )
        )
    return Table(
        "signs",
        "Tables 3 to 5 by seed: settings of sigma and C in which AC is more accurate than CA, and by how many points on average",
        (
            *(Column(text, None) for text in ("data", "model", "optimizer", "settings", "seeds")),
            Column("AC ahead, of each seed"),
            Column("AC ahead, theirs", theirs=True),
            Column("AC ahead with every seed"),
            Column("CA ahead with every seed"),
            Column("points, of each seed"),
            Column("points, theirs", 1, theirs=True),
        ),
        tuple(rows),
        plan.notes,
    )


def rates_table(results: Results) -> Table:
    """How the rate of SGD, the same for both sequences, was chosen: it decides which of them is ahead."""
    rows: list[tuple[Value, ...]] = []
    for cell in design.rates():
        pairs = [
            pair
            for one in results
            if cell.sequence == "AC" and replace(one, repeat=0) == cell
            if len(pair := [results[each] for each in (one, one.as_sequence("CA")) if each in results]) == 2
        ]
        if pairs:
            ac, ca = (fmean(run.accuracy for run in runs) for runs in zip(*pairs, strict=True))
            chosen = "yes" if cell.lr == design.SGD_RATE[cell.model] else ""
            ahead = f"{sum(first.accuracy > second.accuracy for first, second in pairs)} of {len(pairs)}"
            rows.append((cell.model, cell.lr, ac, ca, (ac + ca) / 2, ahead, chosen))
    return Table(
        "rates",
        "MNIST, SGD, sigma 0.5, C = 1.4: accuracy by the rate, one for both sequences",
        (
            *(Column(text, None) for text in ("model", "rate")),
            *(Column(text) for text in ("AC", "CA", "mean", "AC above CA", "taken")),
        ),
        tuple(rows),
        (
            f"Means over seeds, {2 * design.FEW} test records. The rate whose mean was best with the first seed is taken for all "
            "other cells of SGD.",
        ),
    )


def norms_table(results: Results, plan: Plan) -> Table:
    """Table 12 with the paper's networks: accuracy and TPVD as the clipping norm grows, means over the seeds that were run."""
    compared = _compared(results)
    rows: list[tuple[Value, ...]] = []
    for cell in design.norms():
        runs = compared.get(cell.as_sequence("AC"), {}).get(cell.sequence)
        if runs:
            theirs = _printed(cell)
            distance = fmean(run.tpvd or 0.0 for run in runs)
            accuracy, loss = fmean(run.accuracy for run in runs), fmean(run.convergence for run in runs)
            rows.append(
                (
                    *(cell.model, cell.sequence, cell.clip, len(runs)),
                    *(accuracy, theirs.get("accuracy"), loss, distance, theirs.get("tpvd")),
                    *(runs[0].proven, sum(run.seconds for run in runs)),
                )
            )
    return Table(
        "table-12",
        "Table 12 with the paper's networks: MNIST, Adam, sigma 0.5, accuracy and TPVD as the clipping norm grows",
        (
            *(Column(text, None) for text in ("model", "sequence", "C", "seeds")),
            Column("accuracy"),
            Column("accuracy, theirs", theirs=True),
            Column("loss"),
            Column("TPVD"),
            Column("TPVD, theirs", theirs=True),
            Column("proven epsilon", 3),
            Column("CPU seconds", 0),
        ),
        tuple(rows),
        plan.notes,
    )


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
    """Table 7 with the paper's CNN: quantile clipping beside AC, and how much the reading of a layer's part decides."""
    printed = published.table7().to_dict("records")
    rows: list[tuple[Value, ...]] = []
    lengths = [
        ("mnist", None),
        *((data, steps) for data in FACTORS["data"][1:] for steps in (design.SHORT, design.LEARNING[data, "cnn"])),
    ]
    for (data, steps), (sequence, share, clip) in itertools.product(lengths, _COLUMNS):
        chosen = ("adam", "cnn", data, sequence, share, clip, design.START["cnn"], steps)
        runs = [result for cell, result in results.items() if _column(cell) == chosen and cell.sigma != 0.1]
        theirs = next(
            row
            for row in printed
            if (row["data"], row["sequence"]) == (data, sequence) and (clip is None or row["clip"] == clip)
        )
        if runs:
            distances = [run.tpvd for run in runs if run.tpvd is not None]
            rows.append(
                (
                    *(data, sequence, share, clip, steps or plan.steps, fmean(run.accuracy for run in runs)),
                    ", ".join(f"{run.accuracy:.4f}" for run in runs),
                    theirs["accuracy"],
                    fmean(distances) if distances else None,
                    None if pd.isna(theirs["tpvd"]) else theirs["tpvd"],
                    fmean(run.seconds for run in runs),
                )
            )
    return Table(
        "table-7",
        "Table 7 with the paper's CNN, Adam, sigma 0.5: quantile clipping beside noise first",
        (
            *(Column(text, None) for text in ("data", "method", "share", "C", "steps")),
            Column("accuracy"),
            Column("of each seed"),
            Column("accuracy, theirs", theirs=True),
            Column("TPVD"),
            Column("TPVD, theirs", theirs=True),
            Column("CPU seconds a training", 0),
        ),
        tuple(rows),
        plan.notes,
    )


_COLUMNS: tuple[tuple[str, str | None, float | None], ...] = (
    *((sequence, share, None) for sequence, share in design.QUANTILES),
    ("AC", None, 0.04),
    ("AC", None, 1.4),
    ("none", None, None),
)
"""Methods, readings and norms of Table 7."""


def _column(cell: Cell) -> tuple[Value, ...]:
    return cell.optimizer, cell.model, cell.data, cell.sequence, cell.share, cell.clip, cell.start, cell.steps
