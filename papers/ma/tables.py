"""The paper's tables with ours beside theirs, at scales small and paper; `papers.ma.effect` has those of scale effect."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace

from noiseproof.methods.losses import rdp_gan as claims
from noiseproof.methods.losses.rdp_gan import Reading
from papers.ma import published
from papers.ma.cells import LEARNING_RATE, Cell, CellResult, faster
from papers.ma.plans import EPSILONS, TUNINGS, Plan
from papers.ma.privacy import LargestLoss, Level, LossCell
from papers.study import Column, Table, Value

Results = Mapping[Cell, CellResult]
Largest = Mapping[LossCell, LargestLoss]


def every_table(results: Results, levels: tuple[Level, ...], largest: Largest, plan: Plan) -> tuple[Table, ...]:
    """All tables."""
    return (
        sensitivity_table(largest),
        levels_table(levels),
        pmf_table(results, plan),
        schedules_table(results, plan, "mnist", "table-4"),
        schedules_table(results, plan, "adult", "table-5"),
        releases_table(results, plan),
        digits_table(results, plan),
    )


def sensitivity_table(largest: Largest) -> Table:
    """Table II: the largest loss that was seen, and dS = C / B."""
    rows: list[tuple[Value, ...]] = []
    for (data, batch), (theirs, bound, printed) in published.LARGEST_LOSS.items():
        ours = [one.largest for cell, one in largest.items() if (cell.data, cell.batch_size) == (data, batch)]
        mean, each = statistics.fmean(ours) if ours else None, ", ".join(f"{one:.1f}" for one in ours)
        rows.append((data, batch, mean, each, theirs, bound, claims.loss_sensitivity(bound, batch), printed))
    return Table(
        "table-2",
        "Table II: sensitivity of the loss, C / B",
        (
            Column("data"),
            Column("batch", None),
            Column("largest loss, ours", 2),
            Column("of each seed"),
            Column("largest loss, theirs", 3, theirs=True),
            Column("C, theirs", None, theirs=True),
            Column("C / B"),
            Column("C / B, as printed", 4, theirs=True),
        ),
        tuple(rows),
        (published.SENSITIVITY, "A largest loss that was seen bounds nothing: C is read off private records."),
    )


def levels_table(levels: tuple[Level, ...]) -> Table:
    """Figure 3 as numbers."""
    return Table(
        "fig-3",
        "Figure 3: the privacy level of one generator iteration (n_d = 5, delta 1e-5, order 2)",
        (
            Column("data"),
            Column("batch", None),
            Column("sigma", None),
            Column("Theorem 3 (claimed)"),
            Column("formula (23)"),
            Column("accountant, for the loss's value"),
        ),
        tuple((one.data, one.batch_size, one.sigma, one.theorem, one.moments, one.truth) for one in levels),
        (
            "The accountant's column would hold if noised values were all that leaves; the gradients that do leave have none.",
        ),
    )


def pmf_table(results: Results, plan: Plan, name: str = "table-3", noise_on: Reading | None = None) -> Table:
    """Table III: eq. (22) for each attribute; dp-gan where it was run."""
    rows: list[tuple[Value, ...]] = []
    for method, epsilon in (
        ("none", None),
        *(("rdp-gan", e) for e in EPSILONS[::-1]),
        *(("dp-gan", e) for e in EPSILONS[::-1]),
    ):
        cell = Cell("adult", method, epsilon, noise_on=noise_on if method == "rdp-gan" else None)
        if method != "dp-gan":
            rows.append((label(method, epsilon), "theirs", *published.PMF_ERRORS[epsilon]))
        shown = {"ours": cell}
        if noise_on is not None and method != "dp-gan":
            shown |= {f"ours at {LEARNING_RATE:g}": faster(cell)}
        for whose, one in shown.items():
            if runs := seeds(results, one):
                means = (statistics.fmean(run.pmf_errors[name] for run in runs) for name in published.ATTRIBUTES)
                rows.append((label(method, epsilon), _counted(whose, runs), *means))
    names = tuple(Column(name, 3) for name in published.ATTRIBUTES)
    return Table(
        name,
        "Table III: error of the attributes' shares, sum |p_g - p_r| x",
        (Column("method"), Column("whose"), *names),
        tuple(rows),
        (
            "Bins of age and hours are ours; the paper prints none. dp-gan's epsilon is proven, rdp-gan's only claimed.",
            *plan.notes,
        ),
    )


def schedules_table(results: Results, plan: Plan, data: str, name: str) -> Table:
    """Tables IV and V: iterations until the budget of .5 is used up, and accuracy."""
    theirs = published.SCHEDULES[data]
    rows: list[tuple[Value, ...]] = []
    for tuning in ("none", "constant", *TUNINGS):
        cell = _schedule_cell(data, tuning)
        found = results[cell]
        proven = results.get(Cell(data, "dp-gan", 0.5, tuning=tuning, decay=published.DECAYS[data].get(tuning)))
        rows.append(
            (
                tuning,
                cell.decay,
                found.iterations,
                theirs[tuning][0],
                found.accuracy,
                theirs[tuning][1],
                found.synthetic_to_real,
                None if proven is None or tuning == "none" else proven.steps,
                None if proven is None or tuning == "none" else proven.synthetic_to_real,
                None if proven is None or tuning == "none" else proven.proven,
            )
        )
    return Table(
        name,
        f"{'Table IV' if data == 'mnist' else 'Table V'}: schedules of the noise on {data}, epsilon .5",
        (
            Column("schedule"),
            Column("k", None),
            Column("iterations"),
            Column("iterations, theirs", theirs=True),
            Column("real to synthetic", 3),
            Column("accuracy, theirs", 3, theirs=True),
            Column("synthetic to real", 3),
            Column("dp-gan, steps"),
            Column("dp-gan, synthetic to real", 3),
            Column("dp-gan, proven epsilon", 3),
        ),
        tuple(rows),
        (
            "Their iteration counts do not follow from their own formulas; ours stop when Theorem 4's sum reaches .5.",
            f"Of {plan.iterations} iterations planned. dp-gan stops when its RDP filter refuses the next step.",
            *plan.notes,
        ),
    )


def releases_table(results: Results, plan: Plan) -> Table:
    """Figure 8 as numbers: a classifier taught by one kind of records and tested on the other, and what is proven."""
    rows: list[tuple[Value, ...]] = []
    for data in ("adult", "mnist"):
        for method, epsilon in (
            ("none", None),
            *((m, e) for m in ("rdp-gan", "dp-gan") for e in EPSILONS),
            ("zero-gan", 5.0),
        ):
            found = results[Cell(data, method, epsilon)]
            rows.append(
                (
                    data,
                    method,
                    epsilon,
                    found.claimed,
                    found.proven,
                    found.synthetic_to_real,
                    found.accuracy,
                    published.TEXT.get((method, epsilon or 0.0)) if data == "adult" else None,
                    found.real_to_real,
                    found.majority,
                    found.correlation_error,
                    found.seconds,
                )
            )
    return Table(
        "fig-8",
        "Figures 6 and 8: classifiers between real and synthetic records",
        (
            Column("data"),
            Column("method"),
            Column("epsilon", None),
            Column("claimed", 3),
            Column("proven", 3),
            Column("synthetic to real", 3),
            Column("real to synthetic", 3),
            Column("real to synthetic, theirs", 3, theirs=True),
            Column("real to real", 3),
            Column("majority", 3),
            Column("Cramer's V off by", 3),
            Column("CPU seconds", 0),
        ),
        tuple(rows),
        ("rdp-gan's claim is refuted by audits, whatever it says here.", *plan.notes),
    )


def digits_table(results: Results, plan: Plan, name: str = "fig-6", noise_on: Reading | None = None) -> Table:
    """Figure 6 as numbers: how often a sample shows its digit, on average over the seeds that were run."""
    cells = [Cell("mnist", "none"), *(Cell("mnist", "rdp-gan", e, noise_on=noise_on) for e in EPSILONS)]
    cells += [*(Cell("mnist", "dp-gan", e) for e in EPSILONS), Cell("mnist", "zero-gan", EPSILONS[-1])]
    digits = tuple(str(digit) for digit in range(10))
    rows: list[tuple[Value, ...]] = []
    for cell in cells:
        if not (runs := seeds(results, cell)):
            continue
        shown = [[run.by_class[digit] for run in runs if digit in run.by_class] for digit in digits]
        means = [statistics.fmean(each) if each else None for each in shown]
        rows.append((label(cell.method, cell.epsilon), len(runs), statistics.fmean(r.accuracy for r in runs), *means))
    return Table(
        name,
        "Figure 6: share of the samples of a digit that a classifier of real digits reads as it",
        (Column("method"), Column("seeds", None), Column("all", 2), *(Column(digit, 2) for digit in digits)),
        tuple(rows),
        plan.notes,
    )


def seeds(results: Results, cell: Cell) -> list[CellResult]:
    """The cell's results, of every seed that was run."""
    return [result for found, result in results.items() if replace(found, repeat=cell.repeat) == cell]


def _counted(whose: str, runs: Sequence[CellResult]) -> str:
    return f"{whose}, {len(runs)} seeds" if len(runs) > 1 else whose


def _schedule_cell(data: str, tuning: str) -> Cell:
    if tuning == "none":
        return Cell(data, "none")
    if tuning == "constant":
        return Cell(data, "rdp-gan", 0.5)
    return Cell(data, "rdp-gan", 0.5, tuning=tuning, decay=published.DECAYS[data][tuning])


def label(method: str, epsilon: float | None) -> str:
    """A method's name in tables."""
    return "no noise" if epsilon is None else f"{method}, {epsilon:g}"
