"""The study's tables: figures 4 to 12 as numbers, and what the claims are worth at these sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from scipy import stats

from noiseproof.methods.parameters import DpPg, published_sensitivity, true_sensitivity
from noiseproof.methods.parameters.density import sheather_jones
from papers.mao.averaging import Averaging
from papers.mao.leakage import Leak
from papers.mao.plans import ATTACK, DP_SGD, MODELS, PARAMETERS, QUALITY, SWEEPS, TEST_ACCURACY, AttackPlan, Plan
from papers.mao.quality import Quality
from papers.study import Column, Table, Value

_EPSILON = 1.0


def every_table(
    found: Sequence[Quality], leaks: Sequence[Leak], averaged: Sequence[Averaging], plan: Plan, missing: Sequence[str]
) -> tuple[Table, ...]:
    """All tables, in the order of the paper's figures."""
    notes = plan.notes + tuple(f"{data} was not found, so its rows are missing." for data in missing)
    tables = [truth_table(found, plan, notes)]
    for one in found:
        if one.slices:
            tables.append(slice_table(one, notes))
        tables += [epoch_table(one, notes), epsilon_table(one, notes), sweep_table(one, notes)]
    if leaks and plan.attack is not None:
        tables.append(attack_table(leaks, plan.attack, notes))
    tables += [averaging_table(one, notes) for one in averaged]
    return tuple(tables)


def truth_table(found: Sequence[Quality], plan: Plan, notes: tuple[str, ...]) -> Table:
    """The claimed epsilon of a model beside the true one, at these sizes and at the paper's."""
    rows: list[tuple[Value, ...]] = []
    sizes = [(one.network, one.models, one.parameters) for one in found]
    sizes += [(name, MODELS, count) for name, count in PARAMETERS.items()]
    for network, models, parameters in dict.fromkeys(sizes):
        one, all_ = DpPg().true_epsilon(models, parameters, _EPSILON, plan.delta)
        rows.append(
            (
                network,
                parameters,
                PARAMETERS.get(network),
                models,
                published_sensitivity(models),
                true_sensitivity(models, 1.0),
                _EPSILON,
                one,
                all_,
            )
        )
    return Table(
        "claims",
        "The epsilon of a model at a claimed epsilon of 1",
        (
            Column("network"),
            Column("parameters"),
            Column("parameters, theirs", theirs=True),
            Column("models"),
            Column("du, theirs", 6, theirs=True),
            Column("du, true", 6),
            Column("claimed", 0, theirs=True),
            Column("true, one parameter", 2),
            Column("true, all parameters", 0),
        ),
        tuple(rows),
        (
            *notes,
            f"True at delta {plan.delta:g} (none for one parameter), were grids and bandwidths public. For a record "
            "nothing is proven: each touches all models.",
        ),
    )


def slice_table(one: Quality, notes: tuple[str, ...]) -> Table:
    """Figure 3: how three parameters are spread over the networks, the observation that the paper rests on."""
    rows: list[tuple[Value, ...]] = []
    for part in one.slices:
        values = torch.tensor(part.values, dtype=torch.float64)
        scott = float(values.std()) * len(values) ** -0.2
        normal = float(stats.shapiro(part.values).pvalue)
        chosen = float(sheather_jones(values[None])[0])
        rows.append((part.name, *(float(found) for found in (values.mean(), values.std())), normal, scott, chosen))
    return Table(
        f"figure-3-{one.data}",
        f"Figure 3: three parameters of {one.models} of {one.network} on {one.data}",
        (
            Column("parameter"),
            Column("mean"),
            Column("standard deviation"),
            Column("p, normal (Shapiro-Wilk)", 3),
            Column("bandwidth, Scott"),
            Column("bandwidth, Sheather-Jones"),
        ),
        tuple(rows),
        (*notes, "The networks share their first weights and differ in the order of batches and in dropout."),
    )


def epoch_table(one: Quality, notes: tuple[str, ...]) -> Table:
    """Figure 4 or 5: accuracies by epoch."""
    rows: list[tuple[Value, ...]] = []
    # Those of every epoch: after the last one more of them were published.
    epsilons = one.epsilons("dp-pg", min(point.epoch for point in one.points))
    for epoch in sorted({point.epoch for point in one.of("none")}):
        (none,), (mean,) = (one.of(curve, epoch) for curve in ("none", "mean"))
        gains = ", ".join(f"{100 * gain:+.1f}" for gain in one.gains(epoch)) if one.of("network 0") else None
        row: list[Value] = [epoch, none.train, none.test, mean.test, gains]
        for epsilon in epsilons:
            (point,) = one.of("dp-pg", epoch, epsilon)
            row += [point.train, point.test]
        private = [(point.test, point.epsilon) for point in one.of("dp-sgd", epoch)]
        rows.append((*row, *(private[0] if private else (None, None))))
    drawn = [Column(f"DP-PG {epsilon:g}, {part}") for epsilon in epsilons for part in ("train", "test")]
    return Table(
        f"figure-{_figure(one, 4)}",
        f"Figure {_figure(one, 4)}: accuracy by epoch on {one.data} ({one.models} of {one.network})",
        (
            Column("epoch"),
            Column("none, train"),
            Column("none, test"),
            Column("mean network, test"),
            Column("points that a mean of two gains, each two"),
            *drawn,
            Column("DP-SGD, test"),
            Column("DP-SGD's epsilon", 2),
        ),
        tuple(rows),
        (*notes, "`none` is the mean over the collection's networks.", DP_SGD.get(one.data, "")),
    )


def epsilon_table(one: Quality, notes: tuple[str, ...]) -> Table:
    """Figure 6 or 7: accuracies by epsilon, after the last epoch."""
    (none,) = one.of("none", one.last)
    said = QUALITY.get(one.data, {})
    beside = {point.epsilon: point.test for point in one.of("dp-pg, sheather-jones")}
    rows: list[tuple[Value, ...]] = [
        (
            point.epsilon,
            point.train,
            point.test,
            point.test - none.test,
            beside.get(point.epsilon),
            said.get(point.epsilon or 0.0),
        )
        for point in one.of("dp-pg", one.last)
    ]
    return Table(
        f"figure-{_figure(one, 6)}",
        f"Figure {_figure(one, 6)}: DP-PG by epsilon on {one.data} after {one.last} epochs",
        (
            Column("epsilon", None),
            Column("train"),
            Column("test"),
            Column("test - the collection's mean"),
            Column("test, Sheather and Jones's bandwidths beside"),
            Column("theirs", theirs=True),
        ),
        tuple(rows),
        (*notes, f"The collection's mean test accuracy is {none.test:.4f}."),
    )


def sweep_table(one: Quality, notes: tuple[str, ...]) -> Table:
    """Figures 8 to 11: DP-PGP by each of its epsilons."""
    (mean,) = one.of("mean", one.last)
    curves = ("draw", "cluster", "shift", "shift, as printed")
    rows: list[tuple[Value, ...]] = [
        (epsilon, *(one.of(curve, epsilon=epsilon)[0].test for curve in curves)) for epsilon in one.epsilons("draw")
    ]
    words = "; ".join(f"{name}: {text}" for name, text in SWEEPS.items())
    return Table(
        "figures-8-to-10" if one.data == "mnist" else "figure-11",
        f"DP-PGP's test accuracy on {one.data} by each of its epsilons",
        (
            Column("epsilon", None),
            Column("draws (eps1)"),
            Column("k-means (eps2)"),
            Column("Laplace (eps3)"),
            Column("Laplace, line 21 as printed"),
        ),
        tuple(rows),
        (
            *notes,
            "The two epsilons that a column does not vary are 5; on CIFAR-10 at scale paper the one of k-means is 1.",
            f"Their baseline, the averaged network, has {mean.test:.4f} here.",
            f"Theirs on MNIST: {words}; on CIFAR-10 the Laplace mechanism's must be larger than 3.",
        ),
    )


def averaging_table(one: Averaging, notes: tuple[str, ...]) -> Table:
    """The text on figure 4: with a large epsilon "publishing model will benefit from model aggregation"."""
    return Table(
        f"averaging-{one.data}",
        f"{one.models} of {one.network} on {one.data}, trained at several rates: one of them, their mean, and a draw",
        (
            Column("learning rate", None),
            Column("epochs"),
            Column("none, test"),
            Column("mean network, test"),
            Column("DP-PG 5, test"),
            Column("spread over distance from the start", 3),
        ),
        tuple((row.lr, row.epochs, row.none, row.mean, row.drawn, row.spread) for row in one.rows),
        (*notes, "The spread is the root mean square of the networks' distances from their mean."),
    )


def attack_table(leaks: Sequence[Leak], plan: AttackPlan, notes: tuple[str, ...]) -> Table:
    """Figure 12: the attack's accuracy per class."""
    classes = len(leaks[0].per_class)
    rows: list[tuple[Value, ...]] = []
    for leak in leaks:
        known = [value for value in leak.per_class if value is not None]
        rows.append(
            (
                leak.method,
                leak.epsilon,
                leak.train,
                leak.test,
                leak.attack,
                max(known, default=None),
                ATTACK[leak.method],
                TEST_ACCURACY[leak.method],
                *leak.per_class,
            )
        )
    return Table(
        "figure-12",
        f"Figure 12: membership guessed right, of over-fitted networks on {plan.data}",
        (
            Column("method"),
            Column("epsilon", 2),
            Column("train", 3),
            Column("test", 3),
            Column("attack", 3),
            Column("worst class", 3),
            Column("attack, theirs", theirs=True),
            Column("test, theirs", theirs=True),
            *(Column(f"class {index}", 3) for index in range(classes)),
        ),
        tuple(rows),
        (
            *notes,
            f"The attack is `{plan.attack}`; 0.5 is guessing. Epsilon is a model's as the authors count it for DP-PG "
            "and DP-PGP, and proven for a record for DP-SGD.",
        ),
    )


def _figure(one: Quality, first: int) -> int:
    return first if one.data == "mnist" else first + 1
