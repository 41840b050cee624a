"""The study's tables: ours beside theirs, what was claimed beside what is proven and audited, epochs, and lemma 7."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import product

import torch
from scipy import stats

from noiseproof.audits import AuditResult
from papers.phan.cells import Point
from papers.phan.lemma7 import Lemma7
from papers.phan.plans import (
    AVERAGE_GAINS,
    AVERAGES,
    EXPLAINING,
    FIRST_PROGRAM,
    LONGER,
    PROGRAM,
    PROGRAMS,
    TRAINED,
    Plan,
    Setting,
    printed_accuracy,
)
from papers.study import Column, Table, Value

Points = Sequence[Point]

READINGS = (
    "program: one noise picture for each batch, a fixed noise matrix on the loss, batch normalisation and clipping, relevances "
    "of a network trained without noise: what the authors run; nothing is proven. first program: its first public version, "
    "with a batch of 10,000 and no noise on the loss. algorithm 1: noise of its own for every "
    "record and label, relevances under DP. ILM has AdLM's epsilon_2 and epsilon_3, and no epsilon_1. dp-sgd and functional "
    "have the stated epsilon proven, at delta 1e-5."
)


def last(points: Points, data: str, curve: str, epsilon: float) -> float | None:
    """The mean accuracy at the end of that curve's trainings, if there are any."""
    ends = _ends(points, data, curve, epsilon)
    return statistics.fmean(ends) if ends else None


def accuracy_table(points: Points, setting: Setting, plan: Plan, baseline: float) -> Table:
    """Figures 4a and 5a: accuracy against epsilon, with the paper's numbers where it states them."""
    methods = ("adlm", "ilm", "dp-sgd")
    run = (
        *(curve for curve in setting.curves if curve not in EXPLAINING),
        *(f"functional, {name}" for name in setting.maps),
    )
    beside = {
        name: [curve for curve in run if curve.partition(", ")[0] == name and curve not in TRAINED[4:]]
        for name in methods
    }
    ours = [curve for curve in run if curve.partition(", ")[0] not in methods or curve in TRAINED[4:]]
    columns = [Column("epsilon", None)]
    for name, curves in beside.items():
        columns += [*(Column(curve) for curve in curves), Column(f"{name}, theirs", theirs=True)]
    columns += [Column(curve) for curve in ours]
    rows: list[tuple[Value, ...]] = []
    for epsilon in sorted(setting.epsilons):
        row: list[Value] = [epsilon]
        for name, curves in beside.items():
            row += [
                *(last(points, setting.data, curve, epsilon) for curve in curves),
                printed_accuracy(setting.data, epsilon, name),
            ]
        rows.append((*row, *(last(points, setting.data, curve, epsilon) for curve in ours)))
    return Table(
        f"accuracy-{setting.data}",
        f"Accuracy on {setting.data} against the stated epsilon (the relevances' network: {baseline:.4f})",
        tuple(columns),
        tuple(rows),
        (
            READINGS,
            AVERAGES,
            f"the program's columns are means of up to {plan.repeats} trainings of {setting.epochs:g} epochs, longer ones of "
            f"{setting.longer:g} times as many.",
            *plan.notes,
        ),
    )


def gains_table(points: Points, setting: Setting) -> Table:
    """The paper's t-tests and average gains: AdLM over ILM and over DP-SGD, over epsilons and seeds."""
    rows: list[tuple[Value, ...]] = []
    for rival, reading in product(("ilm", "dp-sgd"), (PROGRAM, FIRST_PROGRAM, f"longer, {FIRST_PROGRAM}")):
        pairs = []
        against = f"{rival}, {reading}"
        for epsilon in setting.epsilons:
            curves = (f"adlm, {reading}", against if rival == "ilm" else rival)
            ours, other = (_ends(points, setting.data, curve, epsilon) for curve in curves)
            # Seeds pair up; a DP-SGD that was trained once is compared with every one of them.
            pairs += list(zip(ours, other * len(ours) if len(other) == 1 and rival != "ilm" else other, strict=False))
        if not pairs:
            continue
        gains = [100 * (a - b) for a, b in pairs]
        first, second = ([pair[side] for pair in pairs] for side in (0, 1))
        p = float(stats.ttest_rel(first, second).pvalue) if len(pairs) > 1 else None
        theirs, said = AVERAGE_GAINS.get((setting.data, rival), (None, None))
        wins = f"{sum(gain > 0 for gain in gains)} of {len(gains)}"
        rows.append((against, len(gains), wins, statistics.fmean(gains), theirs, p, said))
    return Table(
        f"gains-{setting.data}",
        f"AdLM's gain on {setting.data}, in points of accuracy, over all epsilons and seeds",
        (
            Column("over"),
            Column("pairs", None),
            Column("AdLM wins"),
            Column("average gain", 2),
            Column("average gain, theirs", 1, theirs=True),
            Column("p (paired t-test)", 4),
            Column("p, theirs", theirs=True),
        ),
        tuple(rows),
        (
            "over: the rival, and AdLM's reading, also ILM's. theirs: over pSGD for epsilon from .2 to .5 on MNIST, else "
            "for all epsilons.",
        ),
    )


def explaining_table(points: Points, setting: Setting) -> Table:
    """What noise on the relevances costs, and what relevances without it are worth."""
    epsilon = setting.epsilons[0]
    like = f"ilm, {FIRST_PROGRAM}"
    rivals = _ends(points, setting.data, like, epsilon)
    rows: list[tuple[Value, ...]] = []
    for curve in (like, f"adlm, {FIRST_PROGRAM}", *EXPLAINING):
        ends = _ends(points, setting.data, curve, epsilon)
        if not ends:
            continue
        gains = [100 * (a - b) for a, b in zip(ends, rivals, strict=False)]
        alone = curve == like or not gains
        rows.append(
            (
                curve,
                epsilon,
                len(ends),
                statistics.fmean(ends),
                None if alone else statistics.fmean(gains),
                None if alone or len(gains) < 2 else statistics.stdev(gains) / len(gains) ** 0.5,
            )
        )
    return Table(
        f"relevance-noise-{setting.data}",
        f"What the noise on AdLM's relevances does on {setting.data}",
        (
            Column("curve"),
            Column("epsilon", None),
            Column("seeds", None),
            Column("accuracy"),
            Column("points over ilm", 2),
            Column("standard error", 2),
        ),
        tuple(rows),
        ("exact relevances: of eqs 4 to 8, without noise. its: as the authors' script makes them, to the power of 4.",),
    )


def _ends(points: Points, data: str, curve: str, epsilon: float) -> list[float]:
    """The accuracies at the end of that curve's trainings, one a seed."""
    there = [point for point in points if (point.data, point.curve, point.epsilon) == (data, curve, epsilon)]
    longest = max((point.epochs for point in there), default=0.0)
    return [point.accuracy for point in there if point.epochs == longest]


def relevances_table(data: str, plain: torch.Tensor, private: Mapping[float, torch.Tensor]) -> Table:
    """Figures 1 to 3 as numbers: how much of the relevances is left under their noise."""
    flat = plain.flatten().double()
    rows = []
    for epsilon, noised in private.items():
        noise = noised.flatten().double() - flat
        joint = torch.stack([flat, noised.flatten().double().abs()])
        rows.append((epsilon, float(flat.std()), float(noise.std()), float(torch.corrcoef(joint)[0, 1])))
    return Table(
        f"relevances-{data}",
        f"What the noise leaves of the mean relevances on {data}",
        (
            Column("epsilon", None),
            Column("spread of the relevances"),
            Column("spread of their noise"),
            Column("correlation of what AdLM uses with the relevances", 3),
        ),
        tuple(rows),
        ("Spreads are standard deviations over features; epsilon is the whole budget's. One draw of the noise.",),
    )


def promises_table(points: Points, plan: Plan) -> Table:
    """What each training claims, and what is proven of it, in parts."""
    rows: list[tuple[Value, ...]] = []
    for setting in plan.settings:
        for curve in TRAINED:
            for epsilon in setting.epsilons:
                point = next(
                    (p for p in points if (p.data, p.curve, p.epsilon) == (setting.data, curve, epsilon)), None
                )
                if point is None:
                    continue
                parts = ("epsilon of features (local)", "epsilon of a label (local)", "epsilon of the relevances")
                rows.append(
                    (
                        setting.data,
                        curve,
                        epsilon,
                        point.claimed,
                        *(point.ran.get(part) for part in (*parts, "epsilon of the relevance network")),
                        "nothing proven" if point.proven is None else point.proven,
                    )
                )
    return Table(
        "promises",
        "Claimed and proven epsilon of each training, under replace-one",
        (
            Column("data"),
            Column("curve"),
            Column("epsilon", None),
            Column("claimed"),
            Column("features"),
            Column("label"),
            Column("relevances"),
            Column("relevance network"),
            Column("proven"),
        ),
        tuple(rows),
        (
            "ILM's claim is three quarters of epsilon: it has AdLM's epsilon_2 and epsilon_3 and needs no epsilon_1.",
            "The epsilon of features and labels is local DP: |L| copies of noise that is divided by |L| do not add up to one "
            "draw unless they are the same draw, and then nothing is proven.",
        ),
    )


def audits_table(audits: Mapping[str, AuditResult]) -> Table:
    """What an audit finds of what the training sees of one record."""
    rows = tuple(
        (
            name,
            None if found.claimed is None else found.claimed.epsilon,
            "nothing proven" if found.proven is None else found.proven.epsilon,
            found.epsilon,
            found.verdict,
        )
        for name, found in audits.items()
    )
    return Table(
        "audits",
        "Audits at epsilon 1, with the noise of the paper's MNIST network",
        (Column("method"), Column("claimed"), Column("proven"), Column("audited, at least"), Column("verdict")),
        rows,
        ("claimed: epsilon_2 + epsilon_3, since the audited records need no relevances.",),
    )


def epochs_table(points: Points, setting: Setting) -> Table:
    """Figures 4b and 4c, 5b and 5c: accuracy against epochs. For DP-SGD every length has the noise for its length."""
    rows: list[tuple[Value, ...]] = []
    for epsilon in setting.over_epochs:
        for curve in (*PROGRAMS, *LONGER, "dp-sgd"):
            there = [
                point for point in points if (point.data, point.curve, point.epsilon) == (setting.data, curve, epsilon)
            ]
            for epochs in sorted({point.epochs for point in there}):
                at = [point.accuracy for point in there if point.epochs == epochs]
                end = epochs == max(point.epochs for point in there)
                theirs = printed_accuracy(setting.data, epsilon, curve.partition(",")[0]) if end else None
                rows.append((epsilon, curve, epochs, statistics.fmean(at), theirs))
    return Table(
        f"epochs-{setting.data}",
        f"Accuracy on {setting.data} against epochs",
        (
            Column("epsilon", None),
            Column("curve"),
            Column("epochs", 1),
            Column("accuracy"),
            Column("accuracy, theirs", theirs=True),
        ),
        tuple(rows),
    )


def lemma_table(found: Lemma7) -> Table:
    """Lemma 7's bound beside the error that was measured."""
    return Table(
        "lemma-7",
        "What the Taylor form costs: a linear network's mean loss",
        (
            Column("records"),
            Column("exact loss, its minimiser"),
            Column("exact loss, Taylor's minimiser"),
            Column("error"),
            Column("bound (lemma 7)"),
            Column("largest logit", 2),
        ),
        ((found.records, found.exact, found.taylor, found.error, found.bound, found.largest),),
        ("The lemma's proof looks at logits between -1 and 1; those of the minimiser go further.",),
    )
