"""Slips: where the paper's numbers contradict each other, found by computing from what it printed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from papers.lin import published
from papers.lin.statistics import normality, significance

_FACTORS = ["data", "model", "optimizer", "sigma", "clip"]


@dataclass(frozen=True)
class Slip:
    """One place where the paper disagrees with itself: what it prints there, and what its own numbers give."""

    where: str
    printed: str
    found: str
    remark: str


def slips() -> tuple[Slip, ...]:
    """Every slip that follows from the shipped numbers."""
    return (*_statistics(), *_averages(), *_across_tables(), *_one_batch(), *_copies(), *_words())


def _statistics() -> Iterator[Slip]:
    """Printed statistics that do not follow from the 96 cells."""
    cells = published.cells()
    for printed, compute, keys, columns in (
        (published.normality(), normality, ["factor", "level"], ["statistic", "df", "p"]),
        (published.significance(), significance, ["factor"], ["U", "W", "Z", "p"]),
    ):
        for measure, table in printed.groupby("measure"):
            computed = compute(cells, str(measure)).astype(dict.fromkeys(keys, str))  # type: ignore[arg-type]
            both = table.merge(computed, on=keys, suffixes=("", " computed"))
            others = printed[printed["measure"] != measure]
            for _, row in both.iterrows():
                for column in columns:
                    if published.agrees(row[f"{column} computed"], row[column]):
                        continue
                    yield Slip(
                        f"Table {row['table']}, {' '.join(row[key] for key in keys)}, {column}",
                        row[column],
                        _found(row, column),
                        _repeats(row, column, keys, others),
                    )


def _found(row: pd.Series, column: str) -> str:
    value = row[f"{column} computed"]
    if column == "U":
        # The paper prints the second level's U; the other one is what is left of all the pairs (48 * 48).
        return f"{value:g} (the other level's: {48 * 48 - value:g})"
    return f"{value:.4f}" if column == "p" else f"{value:.7g}" if column == "W" else f"{value:.3f}"


def _repeats(row: pd.Series, column: str, keys: list[str], others: pd.DataFrame) -> str:
    """Which other printed value stands there in its place."""
    same = others[(others[keys] == row[keys]).all(axis=1) & (others[column] == row[column])]
    if len(same):
        return f"repeats Table {same.iloc[0]['table']}'s"
    computed = significance(published.cells(), row["measure"]) if keys == ["factor"] else None
    if computed is not None:
        for _, other in computed.iterrows():
            if other["factor"] != row["factor"] and published.agrees(other[column], row[column]):
                return f"belongs to the row {other['factor']}"
    return "does not follow from the cells"


def _averages() -> Iterator[Slip]:
    """The abstract's gains against the cells' means."""
    measures = ["accuracy", "convergence"]
    means = published.cells().groupby(["data", "model", "sequence"])[measures].mean().to_dict("index")
    for row in published.averages().to_dict("records"):
        data, model = row["data"], row["model"]
        first, second = (means[data, model, sequence] for sequence in ("AC", "CA"))
        gain = 100 * (first["accuracy"] - second["accuracy"])
        drop = second["convergence"] - first["convergence"]
        relative = 100 * drop / second["convergence"]
        if round(gain) != row["accuracy"]:
            yield Slip(
                f"abstract, {model} on {data}, accuracy",
                f"{row['accuracy']}%",
                f"{gain:.2f} points",
                "the mean over Tables 3-5 is another",
            )
        if round(100 * drop) != row["convergence"]:
            yield Slip(
                f"abstract, {model} on {data}, loss",
                f"{row['convergence']}%",
                f"{drop:.4f}, which is {relative:.1f}%",
                "neither the difference nor the share",
            )
        else:
            yield Slip(
                f"abstract, {model} on {data}, loss",
                f"{row['convergence']}%",
                f"{relative:.1f}%",
                f"a difference of losses ({drop:.4f}) is printed as if it were a share",
            )


def _across_tables() -> Iterator[Slip]:
    """Tables 6, 7 and 12 against Tables 3-5, where they show the same setting."""
    cells, baselines = published.cells(), published.baselines()
    adam = cells[(cells["optimizer"] == "adam") & (cells["sigma"] == 0.5)]
    keys = ["data", "model", "sequence", "clip"]
    for number, table in (
        (6, published.table6().assign(data="mnist")),
        (7, published.table7().assign(model="cnn")),
        (12, published.table12().assign(data="mnist")),
    ):
        both = table.merge(adam, on=keys, suffixes=("", " cell"))
        for row in both[both["accuracy"] != both["accuracy cell"]].to_dict("records"):
            yield Slip(
                f"Table {number}, {row['model']} on {row['data']}, {row['sequence']}, C = {row['clip']:g}",
                f"{row['accuracy']:.2%}",
                f"{row['accuracy cell']:.2%}",
                "Tables 3-5 print another accuracy for this setting",
            )
        plain = table[table["sequence"] == "none"].merge(
            baselines[baselines["optimizer"] == "adam"], on=["data", "model"], suffixes=("", " baseline")
        )
        for row in plain[plain["accuracy"] != plain["accuracy baseline"]].to_dict("records"):
            yield Slip(
                f"Table {number}, {row['model']} on {row['data']}, without noise",
                f"{row['accuracy']:.2%}",
                f"{row['accuracy baseline']:.2%}",
                "Tables 3-5 print another baseline with Adam",
            )


def _one_batch() -> Iterator[Slip]:
    """Groups of cells whose accuracies are all multiples of one over a batch: measured on one batch of that size."""
    for (data, model, optimizer), group in published.cells().groupby(["data", "model", "optimizer"], sort=False):
        for batch, otherwise in ((128, ""), (100, " (or printed with two decimals only)")):
            # Some were cut and not rounded to four decimals.
            distance = (group["accuracy"] - (group["accuracy"] * batch).round() / batch).abs()
            if (distance < 1e-4).all():
                middle = group["accuracy"].mean()
                error = (middle * (1 - middle) / batch) ** 0.5
                yield Slip(
                    f"Tables 3-5, {model} with {optimizer} on {data}",
                    f"{len(group)} accuracies",
                    f"all multiples of 1/{batch}",
                    f"measured on one batch of {batch}{otherwise}: "
                    f"a standard error of some {100 * error:.0f} points each",
                )


def _copies() -> Iterator[Slip]:
    """Different settings of one data set that print both the same accuracy and the same loss."""
    cells = published.cells()
    for (accuracy, loss), group in cells.groupby(["accuracy", "convergence"], sort=False):
        if len(group) > 1:
            names = [
                f"{row.model} {row.optimizer} {row.sequence} sigma {row.sigma:g} C {row.clip:g}"
                for row in group.itertuples()
            ]
            yield Slip(
                f"Tables 3-5, {group.iloc[0]['data']}",
                f"{accuracy:.4f} and {loss:.4f}",
                "; ".join(names),
                f"{len(group)} settings with the same accuracy and the same loss to the last digit",
            )


def _words() -> Iterator[Slip]:
    """What the text says of its tables, where they say otherwise."""
    pairs = published.cells().set_index([*_FACTORS, "sequence"]).unstack("sequence")
    for measure, worse in (
        ("accuracy", pairs["accuracy", "AC"] < pairs["accuracy", "CA"]),
        ("convergence", pairs["convergence", "AC"] > pairs["convergence", "CA"]),
    ):
        for index, row in pairs[worse].iterrows():
            data, model, optimizer, sigma, clip = index  # type: ignore[misc]
            yield Slip(
                f"section 5.1, {model} {optimizer} on {data}, sigma {sigma:g}, C {clip:g}",
                "AC performs better than CA no matter which data set",
                f"{measure}: AC {row[measure, 'AC']:.4f}, CA {row[measure, 'CA']:.4f}",
                "CA is better here",
            )
    table = published.table12()
    for (model, sequence), group in table.dropna(subset="tpvd").groupby(["model", "sequence"], sort=False):
        if not group["tpvd"].is_monotonic_increasing:
            values = ", ".join(f"{value:.4f}" for value in group["tpvd"])
            yield Slip(
                f"section 7, {model} {sequence}", "TPVD increases as the clipping size increases", values, "it does not"
            )
    swept = table[table["sequence"] != "none"].set_index(["model", "clip", "sequence"])["accuracy"].unstack("sequence")
    for (model, clip), row in swept[swept["AC"] < swept["CA"]].iterrows():  # type: ignore[misc]
        yield Slip(
            f"section 7, {model} at C = {clip:g}",
            "under the same clipping threshold AC is more accurate",
            f"AC {row['AC']:.2%}, CA {row['CA']:.2%}",
            "CA is better here",
        )
    tpvd = published.table6().set_index(["model", "clip", "sequence"])["tpvd"].unstack("sequence")
    for (model, clip), row in tpvd[tpvd["AC"] > tpvd["CA"]].iterrows():  # type: ignore[misc]
        yield Slip(
            f"section 5.1, Table 6, {model} at C = {clip:g}",
            "the TPVD of AC is lower than that of CA",
            f"AC {row['AC']:.4f}, CA {row['CA']:.4f}",
            "it is higher here",
        )
