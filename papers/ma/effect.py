"""Tables of scale effect: what the paper's text names, over seeds, in the reading of eq. 8, and experiments on the rest."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from papers.ma import published
from papers.ma.cells import (
    LEARNING_RATE,
    NAMED_SIGMA,
    NOISES,
    PAIRS,
    PRINTED_THRESHOLD,
    READINGS,
    Cell,
    decayed,
    faster,
    lasting,
    named,
    on_adult,
)
from papers.ma.plans import DATA, EPSILONS, TUNINGS, Plan
from papers.ma.privacy import (
    FORMULAS,
    Level,
    lasting_power,
    lasting_rate,
    lasts,
    named_epsilon,
    order_for,
)
from papers.ma.tables import (
    Largest,
    Results,
    digits_table,
    label,
    levels_table,
    pmf_table,
    seeds,
    sensitivity_table,
)
from papers.study import Column, Table, Value


def every_table(
    results: Results,
    levels: tuple[Level, ...],
    largest: Largest,
    real: Mapping[str, Any],
    plan: Plan,
) -> tuple[Table, ...]:
    """All tables, of the cells that there are; `real` holds the real shares of Adult."""
    return (
        readings_table(results, plan),
        named_table(results, plan, "mnist", "table-4-sum"),
        named_table(results, plan, "adult", "table-5-sum"),
        named_table(results, plan, "adult", "table-5-faster", LEARNING_RATE),
        pmf_table(results, plan, "table-3-sum", noise_on="sum"),
        curves_table(results, plan),
        digits_table(results, plan, "fig-6-sum", noise_on="sum"),
        shares_table(results, real, plan),
        classifiers_table(results, plan),
        decays_table(results, plan),
        lengths_table(),
        lasting_table(results, plan),
        orders_table(),
        pairs_table(results, plan),
        sensitivity_table(largest),
        levels_table(levels),
    )


def readings_table(results: Results, plan: Plan) -> Table:
    """Noise of 10 in both readings, beside what the paper states for it, and what theorem 4 makes of it."""
    rows: list[tuple[Value, ...]] = []
    for reading in (*READINGS, None):
        runs = seeds(results, Cell("mnist", "none") if reading is None else named("mnist", noise_on=reading))
        if not runs:
            continue
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


def named_table(results: Results, plan: Plan, data: str, name: str, lr: float | None = None) -> Table:
    """Tables IV and V in the reading of eq. 8: noise of 10 at the start, until what 1,000 iterations of it cost is spent."""
    theirs = published.SCHEDULES[data]
    rows: list[tuple[Value, ...]] = []
    cells = {tuning: named(data, tuning) for tuning in ("constant", *TUNINGS)}
    printed = {f"ant, tau {PRINTED_THRESHOLD:g}": replace(cells["ant"], threshold=PRINTED_THRESHOLD)}
    labelled = {"constant, income as ANT has it": replace(cells["constant"], labelled=True)}
    cells = {"none": Cell(data, "none"), **cells, **(labelled if lr else printed)}
    for schedule, cell in cells.items():
        if not (runs := seeds(results, faster(cell) if lr else cell)):
            continue
        tuning = schedule if schedule == "none" else cell.tuning
        rows.append(
            (
                schedule,
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
        f"{'Table IV' if data == 'mnist' else 'Table V'} on {data}: one draw on a batch's sum, sigma 10 at the start"
        + (f", learning rate {lr:g}" if lr else ""),
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
        if not (curves := [dict(run.curve) for run in seeds(results, cell)]):
            continue
        late = [[value for at, value in curve.items() if 2 * at > plan.iterations] for curve in curves]
        places = [part * plan.iterations // 5 for part in range(1, 6)]
        rows.append(
            (
                sigma,
                len(curves),
                *(statistics.fmean(curve.get(place, 0.0) for curve in curves) for place in places),
                min((min(values, default=1.0) for values in late), default=None),
                max((before - after for values in late for before, after in pairwise(values)), default=0.0),
                _FLUCTUATION[sigma],
            )
        )
    return Table(
        "fig-5-sum",
        "Figure 5: share of 500 samples that show their digit, as training goes on",
        (
            Column("sigma", None),
            Column("seeds", None),
            *(Column(f"after {part * plan.iterations // 5}", 3) for part in range(1, 6)),
            Column("least in the second half", 3),
            Column("largest fall between two looks", 3),
            Column("theirs", theirs=True),
        ),
        tuple(rows),
        (f"{plan.looks} looks at each training; means over seeds, least and largest of all.", *plan.notes),
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
                if not (runs := seeds(results, decayed(data, tuning, rate))):
                    continue
                means = (statistics.fmean(run.accuracy for run in runs), statistics.fmean(r.by_sigmoids for r in runs))
                rows.append((data, tuning, rate, runs[0].iterations, *means, len(runs), rate == best))
    return Table(
        "fig-9-10-sum",
        "Figures 9 and 10: accuracy by decay rate, one draw on a batch's sum, sigma 10 at the start; Adult at a learning "
        f"rate of {LEARNING_RATE:g}",
        (
            Column("data"),
            Column("schedule"),
            Column("k", None),
            Column("iterations"),
            Column("real to synthetic", 3),
            Column("by their judge", 3),
            Column("seeds", None),
            Column("best k, theirs", theirs=True),
        ),
        tuple(rows),
        plan.notes,
    )


def shares_table(results: Results, real: Mapping[str, Any], plan: Plan) -> Table:
    """Figure 7 as numbers: how far the shares of each attribute's values are from the real ones."""
    shown = [on_adult("none")]
    shown += [on_adult(method, epsilon) for method in ("rdp-gan", "dp-gan") for epsilon in EPSILONS[::-1]]
    shown = [cell for cell in shown if seeds(results, cell)]
    rows: list[tuple[Value, ...]] = []
    for name in published.ATTRIBUTES:
        true = [float(share) for share in real[name]]
        off = {cell: [_differences(run.shares[name], true) for run in seeds(results, cell)] for cell in shown}
        means = [statistics.fmean(sum(each) / 2 for each in off[cell]) for cell in shown]
        noisy = off.get(on_adult("rdp-gan", EPSILONS[0]), [])
        edges = sum(each.index(max(each)) in (0, len(true) - 1) for each in noisy)
        rows.append((name, len(true), *means, f"{edges} of {len(noisy)}"))
    return Table(
        "fig-7-sum",
        "Figure 7: total variation between generated and real shares of each attribute, means over seeds",
        (
            Column("attribute"),
            Column("values", None),
            *(Column(label(cell.method, cell.epsilon), 3) for cell in shown),
            Column("rdp-gan, 0.5: largest difference at an edge"),
        ),
        tuple(rows),
        ("Theirs: more noise, more difference, and the largest at the edges.", *plan.notes),
    )


def _differences(made: list[float], true: list[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(made, true, strict=True)]


def classifiers_table(results: Results, plan: Plan) -> Table:
    """Figure 8 as numbers: classifiers between real and synthetic people."""
    rows: list[tuple[Value, ...]] = []
    slow = [on_adult("none"), *(on_adult("rdp-gan", epsilon) for epsilon in EPSILONS)]
    proven = [*(on_adult("dp-gan", epsilon) for epsilon in EPSILONS), on_adult("zero-gan", EPSILONS[-1])]
    for cell in (*slow, *map(faster, slow), *proven):
        if not (runs := seeds(results, cell)):
            continue
        method, epsilon = cell.method, cell.epsilon
        theirs = published.SCHEDULES["adult"]["none"][1] if epsilon is None else published.TEXT.get((method, epsilon))
        rows.append(
            (
                label(method, epsilon),
                None if cell in proven else cell.lr or plan.lrs["adult"],
                statistics.fmean(run.accuracy for run in runs),
                ", ".join(f"{run.accuracy:.3f}" for run in runs),
                theirs,
                statistics.fmean(run.synthetic_to_real for run in runs),
                ", ".join(f"{run.synthetic_to_real:.3f}" for run in runs),
                runs[0].real_to_real,
                runs[0].majority,
                runs[0].proven,
                statistics.fmean(run.seconds for run in runs),
            )
        )
    return Table(
        "fig-8-sum",
        "Figure 8 on adult: classifiers taught by real people and asked of synthetic ones, and the reverse",
        (
            Column("method"),
            Column("learning rate", None),
            Column("real to synthetic", 3),
            Column("of each seed"),
            Column("real to synthetic, theirs", 3, theirs=True),
            Column("synthetic to real", 3),
            Column("synthetic to real, of each seed"),
            Column("real to real", 3),
            Column("majority", 3),
            Column("proven epsilon", 3),
            Column("CPU seconds", 0),
        ),
        tuple(rows),
        ("rdp-gan's epsilon is claimed, and refuted by audits; dp-gan's is proven.", *plan.notes),
    )


def lengths_table() -> Table:
    """How long each schedule lasts by the paper's formulas, and what would make it last as long as is printed."""
    rows: list[tuple[Value, ...]] = []
    for data in DATA:
        half = 1000 * 0.5 / named_epsilon(data, NAMED_SIGMA, _sensitivity(data))
        for tuning in FORMULAS:
            rate = published.DECAYS[data][tuning]
            rows.append(
                (
                    data,
                    tuning,
                    rate,
                    published.SCHEDULES[data][tuning][0],
                    lasts(tuning, rate),
                    lasts(tuning, rate, power=1.0),
                    lasts(tuning, rate, budget=half),
                    lasts(tuning, rate, clock=100),
                    lasting_rate(data, tuning),
                    lasting_power(data, tuning),
                )
            )
    return Table(
        "lengths",
        "Iterations until the budget of 1,000 iterations at sigma 10 is spent",
        (
            Column("data"),
            Column("schedule"),
            Column("k", None),
            Column("printed", theirs=True),
            Column("Theorem 4"),
            Column("formula (23)"),
            Column("Theorem 4, a budget of .5"),
            Column("Theorem 4, t counted in hundreds"),
            Column("k that Theorem 4 would need", None),
            Column("power of 1 / sigma that would be needed", 3),
        ),
        tuple(rows),
        (
            "Whatever an iteration costs, exp with the same k on both sets ends at the same time, and time with .05 before .04.",
        ),
    )


def lasting_table(results: Results, plan: Plan) -> Table:
    """The schedules with the k that lets them last as long as is printed."""
    rows: list[tuple[Value, ...]] = []
    for data in DATA:
        held = {cell.repeat: run.accuracy for cell, run in results.items() if replace(cell, repeat=0) == named(data)}
        for tuning in FORMULAS:
            runs = seeds(results, lasting(data, tuning))
            # Constant noise with the same seeds.
            turns = [cell.repeat for cell in results if replace(cell, repeat=0) == lasting(data, tuning)]
            if not runs or not held.keys() >= set(turns):
                continue
            mean, constant = (
                statistics.fmean(found) for found in ((r.accuracy for r in runs), (held[turn] for turn in turns))
            )
            rows.append(
                (
                    data,
                    tuning,
                    lasting_rate(data, tuning),
                    runs[0].iterations,
                    published.SCHEDULES[data][tuning][0],
                    mean,
                    ", ".join(f"{run.accuracy:.3f}" for run in runs),
                    statistics.fmean(run.by_sigmoids for run in runs),
                    published.SCHEDULES[data][tuning][1],
                    100 * (mean - constant),
                    100 * (published.SCHEDULES[data][tuning][1] - published.SCHEDULES[data]["constant"][1]),
                )
            )
    return Table(
        "lasting",
        "Tables IV and V with schedules that last as long as is printed, at the k that Theorem 4 needs for it",
        (
            Column("data"),
            Column("schedule"),
            Column("k", None),
            Column("iterations"),
            Column("iterations, theirs", theirs=True),
            Column("real to synthetic", 3),
            Column("of each seed"),
            Column("by their judge", 3),
            Column("accuracy, theirs", 3, theirs=True),
            Column("points over constant noise", 1),
            Column("points over constant noise, theirs", 1, theirs=True),
        ),
        tuple(rows),
        plan.notes,
    )


def orders_table() -> Table:
    """The paper's "epsilon .5, 1,000 iterations, sigma 10": which order, or which noise, Theorem 4 needs for it."""
    rows: list[tuple[Value, ...]] = []
    for data, sensitivity, whose in (
        ("mnist", _sensitivity("mnist"), "C / B"),
        ("mnist", published.LARGEST_LOSS["mnist", 64][2], "as printed"),
        ("adult", _sensitivity("adult"), "C / B"),
    ):
        found = named_epsilon(data, NAMED_SIGMA, sensitivity)
        rows.append((data, sensitivity, whose, found, order_for(0.5, found), NAMED_SIGMA * (found / 0.5) ** 0.5))
    return Table(
        "orders",
        "Epsilon by Theorem 4 after 1,000 iterations at sigma 10, batches of 64",
        (
            Column("data"),
            Column("sensitivity"),
            Column("whose"),
            Column("epsilon at order 2", 3),
            Column("order that gives .5", 1),
            Column("sigma that gives .5 at order 2", 2),
        ),
        tuple(rows),
        ("The paper names no order; 2 is the one at which Theorem 1's bound is least.",),
    )


def pairs_table(results: Results, plan: Plan) -> Table:
    """No noise, by pair of networks and learning rate: where Table III and the accuracies come from."""
    rows: list[tuple[Value, ...]] = []
    for data in DATA:
        plain = Cell(data, "none")
        others = (replace(plain, model=model, lr=lr, iterations=iterations) for model, lr, iterations in PAIRS[data])
        for cell in (plain, *others):
            if not (runs := seeds(results, cell)):
                continue
            ratios = [
                statistics.fmean(
                    run.pmf_errors[name] / theirs
                    for name, theirs in zip(published.ATTRIBUTES, published.PMF_ERRORS[None], strict=True)
                )
                for run in runs
                if run.pmf_errors
            ]
            rows.append(
                (
                    data,
                    cell.model or plan.networks[data],
                    cell.lr or plan.lrs[data],
                    cell.iterations or plan.iterations,
                    len(runs),
                    statistics.fmean(run.accuracy for run in runs),
                    ", ".join(f"{run.accuracy:.3f}" for run in runs),
                    statistics.fmean(run.by_sigmoids for run in runs),
                    statistics.fmean(run.synthetic_to_real for run in runs),
                    statistics.fmean(ratios) if ratios else None,
                    statistics.fmean(run.seconds for run in runs),
                )
            )
    return Table(
        "pairs",
        "Without noise, by discriminator, learning rate and iterations",
        (
            Column("data"),
            Column("pair"),
            Column("learning rate", None),
            Column("iterations", None),
            Column("seeds", None),
            Column("real to synthetic", 3),
            Column("of each seed"),
            Column("by their judge", 3),
            Column("synthetic to real", 3),
            Column("errors of Table III over theirs, mean", 2),
            Column("CPU seconds", 0),
        ),
        tuple(rows),
        ("On Adult the pair names the discriminator: the generator has a softmax for each attribute.",),
    )


def _sensitivity(data: str) -> float:
    return published.LARGEST_LOSS[data, 64][1] / 64
