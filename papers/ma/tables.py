"""The paper's tables with ours beside theirs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from noiseproof.methods.losses import rdp_gan as claims
from noiseproof.methods.losses.rdp_gan import Reading
from papers.ma import published
from papers.ma.cells import NAMED_SIGMA, NOISES, READINGS, Cell, CellResult, named
from papers.ma.plans import DATA, EPSILONS, TUNINGS, Plan
from papers.ma.privacy import Level
from papers.study import Column, Table, Value

Results = Mapping[Cell, CellResult]


def every_table(
    results: Results, levels: tuple[Level, ...], largest: Mapping[tuple[str, int], float], plan: Plan
) -> tuple[Table, ...]:
    """All tables."""
    if plan.repeats:
        return (
            readings_table(results, plan),
            named_table(results, plan, "mnist", "table-4-sum"),
            named_table(results, plan, "adult", "table-5-sum"),
            pmf_table(results, plan, "table-3-sum", noise_on="sum"),
            curves_table(results, plan),
            digits_table(results, plan, "fig-6-sum", noise_on="sum"),
            decays_table(results, plan),
            sensitivity_table(largest),
            levels_table(levels),
        )
    return (
        sensitivity_table(largest),
        levels_table(levels),
        pmf_table(results, plan),
        schedules_table(results, plan, "mnist", "table-4"),
        schedules_table(results, plan, "adult", "table-5"),
        releases_table(results, plan),
        digits_table(results, plan),
    )


def readings_table(results: Results, plan: Plan) -> Table:
    """Noise of 10 in both readings, beside what the paper states for it, and what theorem 4 makes of it."""
    rows: list[tuple[Value, ...]] = []
    for reading in (*READINGS, None):
        wanted = ("mnist", "none", None) if reading is None else ("mnist", "rdp-gan", NAMED_SIGMA)
        runs = [
            result
            for cell, result in results.items()
            if (cell.data, cell.method, cell.sigma) == wanted and (cell.noise_on, cell.tuning) == (reading, "constant")
        ]
        rows.append(
            (
                reading or "no noise",
                NAMED_SIGMA if reading else 0.0,
                runs[0].iterations,
                statistics.fmean(run.accuracy for run in runs),
                ", ".join(f"{run.accuracy:.3f}" for run in runs),
                statistics.fmean(run.by_sigmoids for run in runs),
                published.SCHEDULES["mnist"]["constant" if reading else "none"][1],
                statistics.fmean(run.synthetic_to_real for run in runs),
                runs[0].claimed,
                0.5 if reading else None,
                statistics.fmean(run.seconds for run in runs),
            )
        )
    return Table(
        "readings",
        f"MNIST at the noise that the paper names, {plan.repeats} seeds",
        (
            Column("noise on"),
            Column("sigma", None),
            Column("iterations", None),
            Column("real to synthetic"),
            Column("of each seed"),
            Column("by their judge"),
            Column("accuracy, theirs", 3, theirs=True),
            Column("synthetic to real"),
            Column("epsilon by theorem 4"),
            Column("epsilon, theirs", None, theirs=True),
            Column("CPU seconds", 0),
        ),
        tuple(rows),
        plan.notes,
    )


def named_table(results: Results, plan: Plan, data: str, name: str) -> Table:
    """Tables IV and V in the reading of eq. 8: noise of 10 at the start, until what 1,000 iterations of it cost is spent."""
    theirs = published.SCHEDULES[data]
    rows: list[tuple[Value, ...]] = []
    for tuning in ("none", "constant", *TUNINGS):
        runs = [
            results[Cell(data, "none", repeat=repeat) if tuning == "none" else named(data, tuning, repeat)]
            for repeat in range(plan.repeats)
        ]
        rows.append(
            (
                tuning,
                published.DECAYS[data].get(tuning),
                statistics.fmean(run.iterations for run in runs),
                theirs[tuning][0],
                statistics.fmean(run.accuracy for run in runs),
                ", ".join(f"{run.accuracy:.3f}" for run in runs),
                statistics.fmean(run.by_sigmoids for run in runs),
                theirs[tuning][1],
                statistics.fmean(run.synthetic_to_real for run in runs),
                runs[0].claimed,
                statistics.fmean(run.seconds for run in runs),
            )
        )
    return Table(
        name,
        f"{'Table IV' if data == 'mnist' else 'Table V'} on {data}: one draw on a batch's sum, sigma 10 at the start",
        (
            Column("schedule"),
            Column("k", None),
            Column("iterations", 0),
            Column("iterations, theirs", theirs=True),
            Column("real to synthetic", 3),
            Column("of each seed"),
            Column("by their judge", 3),
            Column("accuracy, theirs", 3, theirs=True),
            Column("synthetic to real", 3),
            Column("epsilon by theorem 4", 3),
            Column("CPU seconds", 0),
        ),
        tuple(rows),
        plan.notes,
    )


def curves_table(results: Results, plan: Plan) -> Table:
    """Figure 5 as numbers: what a classifier of real digits reads while the pair is trained, by the noise on a batch's sum."""
    cells = {0.0: Cell("mnist", "none"), **{s: Cell("mnist", "rdp-gan", sigma=s, noise_on="sum") for s in NOISES}}
    rows: list[tuple[Value, ...]] = []
    for sigma, cell in cells.items():
        curve = dict(results[cell].curve)
        late = [value for at, value in curve.items() if 2 * at > plan.iterations]
        falls = max((before - after for before, after in pairwise(late)), default=0.0)
        rows.append(
            (
                sigma,
                *(curve.get(part * plan.iterations // 5) for part in range(1, 6)),
                min(late, default=None),
                falls,
                _FLUCTUATION[sigma],
            )
        )
    return Table(
        "fig-5-sum",
        "Figure 5: share of 500 samples that show their digit, as training goes on",
        (
            Column("sigma", None),
            *(Column(f"after {part * plan.iterations // 5}", 3) for part in range(1, 6)),
            Column("least in the second half", 3),
            Column("largest fall between two looks", 3),
            Column("theirs", theirs=True),
        ),
        tuple(rows),
        (f"{plan.looks} looks at each training, one seed.", *plan.notes),
    )


_FLUCTUATION = {
    0.0: "relatively high",
    0.5: "begins to fluctuate",
    5.0: "begins to fluctuate",
    10.0: "suddenly drops to .3 or less",
}
"""What the text says of figure 5."""


def decays_table(results: Results, plan: Plan) -> Table:
    """Figures 9 and 10 as numbers: every schedule at several decay rates, from sigma 10 until its budget is spent."""
    rows: list[tuple[Value, ...]] = []
    for data in DATA:
        for tuning in TUNINGS:
            best = published.DECAYS[data][tuning]
            for rate in sorted({best, *plan.decays[tuning]}):
                found = results[replace(named(data, tuning), decay=rate)]
                rows.append((data, tuning, rate, found.iterations, found.accuracy, found.by_sigmoids, rate == best))
    return Table(
        "fig-9-10-sum",
        "Figures 9 and 10: accuracy by decay rate, one draw on a batch's sum, sigma 10 at the start, one seed",
        (
            Column("data"),
            Column("schedule"),
            Column("k", None),
            Column("iterations"),
            Column("real to synthetic", 3),
            Column("by their judge", 3),
            Column("best k, theirs", theirs=True),
        ),
        tuple(rows),
        plan.notes,
    )


def sensitivity_table(largest: Mapping[tuple[str, int], float]) -> Table:
    """Table II: the largest loss that was seen, and dS = C / B."""
    rows: list[tuple[Value, ...]] = []
    for (data, batch), (theirs, bound, printed) in published.LARGEST_LOSS.items():
        rows.append(
            (data, batch, largest.get((data, batch)), theirs, bound, claims.loss_sensitivity(bound, batch), printed)
        )
    return Table(
        "table-2",
        "Table II: sensitivity of the loss, C / B",
        (
            Column("data"),
            Column("batch", None),
            Column("largest loss, ours", 2),
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
        *(("dp-gan", e) for e in EPSILONS[::-1] if not plan.repeats),
    ):
        cell = Cell("adult", method, epsilon, noise_on=noise_on if method == "rdp-gan" else None)
        ours = [results[replace(cell, repeat=repeat)].pmf_errors for repeat in range(plan.repeats or 1)]
        means = (statistics.fmean(errors[name] for errors in ours) for name in published.ATTRIBUTES)
        rows.append((_label(method, epsilon), "ours", *means))
        if method != "dp-gan":
            rows.append((_label(method, epsilon), "theirs", *published.PMF_ERRORS[epsilon]))
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
    """Figure 6 as numbers: how often a sample shows its digit."""
    cells = [Cell("mnist", "none"), *(Cell("mnist", "rdp-gan", e, noise_on=noise_on) for e in EPSILONS)]
    cells += [Cell("mnist", "dp-gan", e) for e in EPSILONS]
    digits = tuple(str(digit) for digit in range(10))
    rows = tuple(
        (
            _label(cell.method, cell.epsilon),
            results[cell].accuracy,
            *(results[cell].by_class.get(digit) for digit in digits),
        )
        for cell in cells
    )
    return Table(
        name,
        "Figure 6: share of the samples of a digit that a classifier of real digits reads as it",
        (Column("method"), Column("all", 2), *(Column(digit, 2) for digit in digits)),
        rows,
        plan.notes,
    )


def _schedule_cell(data: str, tuning: str) -> Cell:
    if tuning == "none":
        return Cell(data, "none")
    if tuning == "constant":
        return Cell(data, "rdp-gan", 0.5)
    return Cell(data, "rdp-gan", 0.5, tuning=tuning, decay=published.DECAYS[data][tuning])


def _label(method: str, epsilon: float | None) -> str:
    return "no noise" if epsilon is None else f"{method}, {epsilon:g}"
