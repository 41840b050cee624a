"""The paper's tables with our numbers beside theirs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from papers.lin import design, published
from papers.lin.design import Cell, Plan
from papers.lin.effect import averaged, effect_tables
from papers.lin.results import CellResult, frame
from papers.lin.slips import slips
from papers.lin.statistics import FACTORS, Measure, normality, significance
from papers.study import Column, Table, Value

Results = Mapping[Cell, CellResult]

_DATA = {"mnist": ("table-3", "MNIST"), "cifar10": ("table-4", "CIFAR-10"), "svhn": ("table-5", "SVHN")}
_EPSILON = Column("proven epsilon", 3)


def every_table(results: Results, plan: Plan) -> tuple[Table, ...]:
    """All tables of the cells that were run, in the paper's order, then what it got wrong; statistics need every set."""
    if plan.repeats:
        own = averaged(results, plan)
        sets = tuple(data for data in FACTORS["data"] if any(cell.data == data for cell in own))
        whole = len(own) == len(design.experiment())
        statistics = _statistics(own, sets) if whole else ()
        return *effect_tables(results, plan), *_experiment(own, plan, sets), *statistics, slips_table()
    sets = tuple(data for data in FACTORS["data"] if any(cell.data == data for cell in results))
    mnist = (tpvd_table(results), sweep_table(results)) if "mnist" in sets else ()
    return (
        *_experiment(results, plan, sets),
        *mnist[:1],
        comparison_table(results, sets),
        *_statistics(results, sets),
        *mnist[1:],
        slips_table(),
    )


def _experiment(results: Results, plan: Plan, sets: Sequence[str]) -> Iterator[Table]:
    """Tables 3-5 and the abstract's gains, of the cells that are there."""
    for data in sets:
        yield cells_table(results, plan, data)
    if sets:
        yield gains_table(results, sets)


def _statistics(results: Results, sets: Sequence[str]) -> Iterator[Table]:
    """Tables 8 to 11, which need every set."""
    measures: tuple[Measure, ...] = ("accuracy", "convergence") if tuple(sets) == FACTORS["data"] else ()
    for measure in measures:
        yield normality_table(results, measure)
    for measure in measures:
        yield significance_table(results, measure)


def cells_table(results: Results, plan: Plan, data: str) -> Table:
    """Tables 3-5: accuracy and convergence of every cell of one data set, and the trainings without noise."""
    name, title = _DATA[data]
    keys = list(FACTORS)
    theirs = published.cells().set_index(keys).to_dict("index")
    plain = published.baselines().set_index(["data", "model", "optimizer"]).to_dict("index")
    rows: list[tuple[Value, ...]] = []
    for cell in (*design.factorial(), *design.baselines()):
        if cell.data != data or cell not in results:
            continue
        result = results[cell]
        if cell.sequence == "none":
            printed = plain[cell.data, cell.model, cell.optimizer]
        else:
            printed = theirs[tuple(getattr(cell, key) for key in keys)]
        rows.append(
            (
                cell.model,
                cell.optimizer,
                cell.sigma,
                cell.clip,
                cell.sequence,
                result.accuracy,
                float(printed["accuracy"]),
                result.convergence,
                float(printed["convergence"]),
                result.proven,
            )
        )
    ran = next(result.ran for cell, result in results.items() if cell.data == data and cell.sequence != "none")
    return Table(
        name,
        f"{title}: accuracy and convergence (loss at the end)",
        (
            *(Column(text, None) for text in ("model", "optimizer", "sigma", "C", "sequence")),
            Column("accuracy"),
            Column("accuracy, theirs", theirs=True),
            Column("loss"),
            Column("loss, theirs", theirs=True),
            _EPSILON,
        ),
        tuple(rows),
        (
            f"{ran['records']} training, {ran['test']} test records, {ran['steps']} steps at rate {ran['rate']:.4g}; "
            f"epsilon is dp-sgd's for these steps at delta {plan.delta:g}, add-or-remove.",
            *plan.notes,
        ),
    )


def gains_table(results: Results, sets: Sequence[str]) -> Table:
    """The abstract's gains of AC over CA."""
    ours, theirs = _factorial(results), published.cells()
    printed = published.averages().set_index(["data", "model"]).to_dict("index")
    rows: list[tuple[Value, ...]] = []
    for model in FACTORS["model"]:
        for data in sets:
            mine, recomputed = _gains(ours, data, model), _gains(theirs, data, model)
            if mine is None or recomputed is None:
                continue
            abstract = printed[data, model]
            rows.append(
                (
                    model,
                    data,
                    mine[0],
                    recomputed[0],
                    f"{abstract['accuracy']}%",
                    mine[1],
                    recomputed[1],
                    f"{abstract['convergence']}%",
                    mine[2],
                    recomputed[2],
                    sum(run.seconds for cell, run in results.items() if (cell.model, cell.data) == (model, data)),
                )
            )
    return Table(
        "gains",
        "AC over CA: points of accuracy, fall of the loss, and in how many of the 8 settings AC is more accurate",
        (
            Column("model"),
            Column("data"),
            Column("points", 2),
            Column("points, their cells", 2, theirs=True),
            Column("points, abstract", theirs=True),
            Column("loss"),
            Column("loss, their cells", theirs=True),
            Column("loss, abstract", theirs=True),
            Column("AC wins"),
            Column("AC wins, their cells", theirs=True),
            Column("CPU seconds of all", 0),
        ),
        tuple(rows),
    )


def tpvd_table(results: Results) -> Table:
    """Table 6: accuracy and TPVD on MNIST with Adam at sigma 0.5."""
    rows = [
        _beside(
            results[Cell("mnist", row["model"], "adam", row["sequence"], row["sigma"], row["clip"])],
            row,
            (row["model"], row["sequence"], row["clip"]),
        )
        for row in published.table6().to_dict("records")
    ]
    return Table(
        "table-6",
        "MNIST, Adam, sigma 0.5: accuracy and TPVD",
        (Column("model"), Column("sequence"), Column("C", None), *_MEASURED, _EPSILON),
        tuple(rows),
        ("TPVD is how far the noise moved the weights; it promises nothing.",),
    )


def comparison_table(results: Results, sets: Sequence[str]) -> Table:
    """Table 7: the CNN beside quantile clipping."""
    rows = []
    for row in published.table7().to_dict("records"):
        if row["data"] not in sets:
            continue
        clip = None if math.isnan(row["clip"]) else row["clip"]
        sigma = None if row["sequence"] == "none" else 0.5
        result = results[Cell(row["data"], "cnn", "adam", row["sequence"], sigma, clip)]
        rows.append(_beside(result, row, (row["data"], row["sequence"], clip)))
    return Table(
        "table-7",
        "Adaptive clipping against AC: CNN, Adam, sigma 0.5",
        (Column("data"), Column("method"), Column("C", None), *_MEASURED, _EPSILON),
        tuple(rows),
    )


def normality_table(results: Results, measure: Measure) -> Table:
    """Tables 8 and 9: Shapiro-Wilk on our cells, on theirs, and as printed."""
    printed = published.normality().query("measure == @measure").to_dict("records")
    ours, theirs = (normality(cells, measure).to_dict("records") for cells in (_factorial(results), published.cells()))
    rows = [
        (
            row["factor"],
            row["level"],
            int(mine["df"]),
            mine["statistic"],
            recomputed["statistic"],
            row["statistic"],
            mine["p"],
            recomputed["p"],
            row["p"],
            _agreement(recomputed, row, ("statistic", "p")),
        )
        for row, mine, recomputed in zip(printed, ours, theirs, strict=True)
    ]
    return Table(
        f"table-{printed[0]['table']}",
        f"Is {measure} normal at each level? (Shapiro-Wilk)",
        (
            *(Column(text) for text in ("factor", "level", "cells")),
            *_thrice("W", 3),
            *_thrice("p", 3),
            Column("printed follows"),
        ),
        tuple(rows),
        ("printed follows: whether the printed digits follow from the paper's own 96 cells.",),
    )


def significance_table(results: Results, measure: Measure) -> Table:
    """Tables 10 and 11: Mann-Whitney on our cells, on theirs, and as printed; Kruskal-Wallis, which was not printed."""
    printed = published.significance().query("measure == @measure")
    sources = {
        "ours": significance(_factorial(results), measure),
        "their cells": significance(published.cells(), measure),
        "printed": printed,
    }
    rows: list[tuple[Value, ...]] = []
    for factor in FACTORS:
        found = {name: _row(source, factor) for name, source in sources.items()}
        for name, row in found.items():
            if not row:
                continue  # the paper prints nothing for the data set, which has three levels
            agreement = _agreement(found["their cells"], row, "UWZp") if name == "printed" else None
            values = [row.get(column) for column in ("U", "W", "Z", "p", "H", "H p")]
            rows.append((factor, name, *(_absent(value) for value in values), agreement))
    return Table(
        f"table-{printed.iloc[0]['table']}",
        f"Which factors matter for {measure}? (Mann-Whitney, Kruskal-Wallis)",
        (
            Column("factor"),
            Column("from"),
            Column("U", 1),
            Column("W", 1),
            Column("Z", 3),
            Column("p", 4),
            Column("H", 3),
            Column("p of H", 4),
            Column("printed follows"),
        ),
        tuple(rows),
        (
            "U and W are the second level's, as SPSS prints them; Z is corrected for ties and not for continuity.",
            "printed follows: whether the printed digits follow from the paper's own 96 cells.",
        ),
    )


def sweep_table(results: Results) -> Table:
    """Table 12: accuracy and TPVD as the clipping norm grows."""
    rows = []
    for row in published.table12().to_dict("records"):
        plain = row["sequence"] == "none"
        clip = None if plain else row["clip"]
        result = results[Cell("mnist", row["model"], "adam", row["sequence"], None if plain else 0.5, clip)]
        rows.append(_beside(result, row, (row["model"], row["sequence"], clip)))
    return Table(
        "table-12",
        "MNIST, Adam, sigma 0.5: accuracy and TPVD as the clipping norm grows",
        (Column("model"), Column("sequence"), Column("C", None), *_MEASURED, _EPSILON),
        tuple(rows),
        (
            "AC's noise grows with C and its signal does not: at C = 0.001 there is next to no noise, and no privacy.",
            "AC has more signal for its noise than CA where gradients are longer than C times the root of the batch.",
        ),
    )


def slips_table() -> Table:
    """Where the paper's numbers contradict each other."""
    return Table(
        "slips",
        "Where the paper's numbers contradict each other",
        (Column("where"), Column("printed", theirs=True), Column("its own numbers give"), Column("remark")),
        tuple((slip.where, slip.printed, slip.found, slip.remark) for slip in slips()),
    )


_MEASURED = (
    Column("accuracy"),
    Column("accuracy, theirs", theirs=True),
    Column("TPVD"),
    Column("TPVD, theirs", theirs=True),
)


def _beside(result: CellResult, row: Mapping[Any, Any], keys: Sequence[Value]) -> tuple[Value, ...]:
    """A row of `keys`, both accuracies, both TPVDs and what is proven."""
    return (*keys, result.accuracy, float(row["accuracy"]), result.tpvd, _absent(row["tpvd"]), result.proven)


def _factorial(results: Results) -> pd.DataFrame:
    return frame({cell: results[cell] for cell in design.factorial() if cell in results})


def _gains(cells: pd.DataFrame, data: str, model: str) -> tuple[float, float, str] | None:
    """(points of accuracy, fall of the loss, how often AC is more accurate) of AC over CA, of the pairs that are there."""
    chosen = cells[(cells["data"] == data) & (cells["model"] == model)]
    keys = ["optimizer", "sigma", "clip", "sequence"]
    pairs = chosen.set_index(keys)[["accuracy", "convergence"]].unstack("sequence").dropna()
    if pairs.empty or chosen["sequence"].nunique() < 2:
        return None
    accuracy, loss = pairs["accuracy"], pairs["convergence"]
    return (
        100 * float((accuracy["AC"] - accuracy["CA"]).mean()),
        float((loss["CA"] - loss["AC"]).mean()),
        f"{int((accuracy['AC'] > accuracy['CA']).sum())} of {len(pairs)}",
    )


def _thrice(name: str, digits: int) -> tuple[Column, ...]:
    return (
        Column(name, digits),
        Column(f"{name}, their cells", digits, theirs=True),
        Column(f"{name}, printed", digits, theirs=True),
    )


def _agreement(recomputed: Mapping[Any, Any], printed: Mapping[Any, Any], names: Sequence[str]) -> str:
    wrong = [name for name in names if not published.agrees(float(recomputed[name]), printed[name])]
    return "yes" if not wrong else f"no: {', '.join(wrong)}"


def _row(source: pd.DataFrame, factor: str) -> dict[Any, Any]:
    return next(iter(source[source["factor"] == factor].to_dict("records")), {})


def _absent(value: Value) -> Value:
    return None if isinstance(value, float) and math.isnan(value) else value
