"""AttackResult: how well an attack told members from non-members, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from noiseproof.errors import DataError
from noiseproof.palette import PALETTE

RATES = (0.001, 0.01)
"""The false positive rates at which true positive rates are reported."""


@dataclass(frozen=True)
class Interval:
    """A measured value and its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LowRate:
    """How many members an attack names where few non-members may be named falsely."""

    fpr: float
    """The share of the non-members at hand that may be named."""
    tpr: Interval
    """The share of members that is named, with its exact interval."""
    named: int
    falsely: int
    """How many of the non-members at hand were named."""
    fpr_at_most: float
    """What the false positive rate is at most, for all non-members of this kind, at the interval's level."""


@dataclass(frozen=True)
class ClassResult:
    """The attack on the records of one class; a measure is None where the class lacks members or non-members."""

    name: str
    members: int
    nonmembers: int
    accuracy: Interval | None = None
    advantage: Interval | None = None
    auc: Interval | None = None

    @property
    def measures(self) -> dict[str, Interval | None]:
        """The three measures by name."""
        return {"accuracy": self.accuracy, "advantage": self.advantage, "auc": self.auc}


@dataclass(frozen=True, eq=False)
class AttackResult:
    """Scores of members and non-members (the larger, the more the attack takes a record for a member), and measures.

    *Advantage* is TPR - FPR of the attack's guesses, the papers' Priv_Leak. Guesses are made at a threshold that was
    chosen without the records they are made on: `threshold` where the attack has one of its own, else the best one on
    a random half of the scores for the other half, and the other way round. `threshold_from` says which. AUC and the
    true positive rates at low false positive rates need no threshold. Their intervals are exact (`at_low_fpr`), the others
    percentiles of a stratified bootstrap over the records: both cover the choice of records, not the training of target
    and shadow models.

    Formal guarantee
    ----------------
    None: scores and measures are made from private records and membership; they stay on the trusted side.
    """

    attack: str
    scores: torch.Tensor = field(repr=False)
    member: torch.Tensor = field(repr=False)
    labels: torch.Tensor = field(repr=False)
    classes: tuple[str, ...]
    threshold: float | None = None
    threshold_from: str = "the other half of the scores"
    queries: int = 0
    """How many answers of the target the attack used."""
    unit: str = "record"
    """What was attacked, each a score: records, or persons by all their records."""
    seed: int = 0
    resamples: int = 1000
    level: float = 0.95
    note: str = ""
    """What a reader must know about the attack: how it was chosen, and what it finds on models of the same kind."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scores", self.scores.detach().double().cpu())
        object.__setattr__(self, "member", self.member.cpu())
        object.__setattr__(self, "labels", self.labels.cpu())
        if not len(self.scores) == len(self.member) == len(self.labels):
            raise DataError("an attack's scores, memberships and labels must be as many as its records.")
        if not self.member.any() or self.member.all():
            raise DataError("a membership attack needs at least one member and one non-member.")
        if not self.scores.isfinite().all():
            raise DataError("the attack's scores are not all finite; the release or its shadow models diverged.")

    @cached_property
    def guesses(self) -> torch.Tensor:
        """For each record whether the attack takes it for a member."""
        if self.threshold is not None:
            return self.scores > self.threshold
        first = torch.zeros(len(self.scores), dtype=torch.bool)
        generator = torch.Generator().manual_seed(self.seed)
        for side in (self.member, ~self.member):
            places = side.nonzero().flatten()
            first[places[torch.randperm(len(places), generator=generator)[: len(places) // 2]]] = True
        guesses = torch.zeros(len(self.scores), dtype=torch.bool)
        for chosen_on in (first, ~first):
            if self.member[chosen_on].any() and not self.member[chosen_on].all():
                threshold = best_threshold(self.scores[chosen_on], self.member[chosen_on])
                guesses[~chosen_on] = self.scores[~chosen_on] > threshold
        return guesses

    @cached_property
    def measures(self) -> dict[str, Interval]:
        """`advantage`, `balanced_accuracy`, `auc`, and `tpr_at_0.001` and so on, each with its interval."""
        found = self._measure(["advantage", "balanced_accuracy", "auc"], torch.ones(len(self.scores), dtype=torch.bool))
        return found | {f"tpr_at_{one.fpr}": one.tpr for one in self.at_low_fpr}

    @cached_property
    def at_low_fpr(self) -> tuple[LowRate, ...]:
        """How many members are named where one non-member in 1000, or in 100, may be named falsely, with exact intervals.

        Formal guarantee
        ----------------
        None for the target. As statistics, if members and non-members are independent draws of records of their kinds: the
        threshold is a non-member's score, so that it is independent of the members, of whom the number above it is binomial
        (Clopper and Pearson's interval). The share of all non-members above the (k+1)-th largest of n scores is at most
        Beta(k + 1, n - k), exactly so without ties.
        """
        from scipy.special import betaincinv

        inside, outside = self.scores[self.member], self.scores[~self.member].sort(descending=True).values
        members, others, tail = len(inside), len(outside), (1 - self.level) / 2
        found = []
        for rate in RATES:
            allowed = int(rate * others + 1e-9)
            threshold = outside[allowed]
            named, falsely = int((inside > threshold).sum()), int((outside > threshold).sum())
            low = float(betaincinv(named, members - named + 1, tail)) if named else 0.0
            high = float(betaincinv(named + 1, members - named, 1 - tail)) if named < members else 1.0
            most = float(betaincinv(allowed + 1, others - allowed, self.level))
            found.append(LowRate(rate, Interval(named / members, low, high), named, falsely, most))
        return tuple(found)

    @property
    def advantage(self) -> float:
        """TPR - FPR of the attack's guesses: the papers' Priv_Leak."""
        return self.measures["advantage"].value

    @property
    def balanced_accuracy(self) -> float:
        """Share of right guesses, were members and non-members equally many."""
        return self.measures["balanced_accuracy"].value

    @property
    def auc(self) -> float:
        """How often a member scores above a non-member."""
        return self.measures["auc"].value

    @property
    def tpr_at_fpr(self) -> dict[float, float]:
        """The share of members that can be named when one non-member in 1000, or in 100, may be named falsely."""
        return {rate: self.measures[f"tpr_at_{rate}"].value for rate in RATES}

    @cached_property
    def per_class(self) -> tuple[ClassResult, ...]:
        """The attack on each class by itself; accuracy is balanced, as in Mao et al.'s figures of equal halves."""
        results = []
        for index, name in enumerate(self.classes):
            chosen = self.labels == index
            members = int((chosen & self.member).sum())
            others = int(chosen.sum()) - members
            if not members or not others:
                results.append(ClassResult(name, members, others))
                continue
            found = self._measure(["balanced_accuracy", "advantage", "auc"], chosen)
            results.append(ClassResult(name, members, others, *found.values()))
        return tuple(results)

    def _measure(self, names: list[str], chosen: torch.Tensor) -> dict[str, Interval]:
        scores, member, guesses = self.scores[chosen], self.member[chosen], self.guesses[chosen]

        def statistic(weights: torch.Tensor) -> torch.Tensor:
            tpr, fpr = ((weights * side * guesses).sum(1) / (weights * side).sum(1) for side in (member, ~member))
            values = {"advantage": tpr - fpr, "balanced_accuracy": (1 + tpr - fpr) / 2}
            values["auc"] = Roc.of(scores, member, weights).auc
            return torch.stack([values[name] for name in names], dim=1)

        exact = statistic(torch.ones(1, len(scores), dtype=torch.float64))[0].tolist()
        low, high = bootstrap(statistic, member, count=self.resamples, level=self.level, seed=self.seed).tolist()
        return {name: Interval(*numbers) for name, *numbers in zip(names, exact, low, high, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """The measures as JSON: numbers, and under `intervals` theirs."""
        return {
            "attack": self.attack,
            "unit": self.unit,
            "note": self.note,
            **{name: found.value for name, found in self.measures.items() if not name.startswith("tpr_at")},
            "tpr_at_fpr": {str(rate): value for rate, value in self.tpr_at_fpr.items()},
            "intervals": {
                "level": self.level,
                "resamples": self.resamples,
                **{name: [found.low, found.high] for name, found in self.measures.items()},
            },
            "low_fpr": [
                {
                    "fpr": one.fpr,
                    "tpr": one.tpr.value,
                    "interval": [one.tpr.low, one.tpr.high],
                    "named": one.named,
                    "falsely": one.falsely,
                    "fpr_at_most": one.fpr_at_most,
                }
                for one in self.at_low_fpr
            ],
            "threshold": self.threshold,
            "threshold_from": self.threshold_from,
            "members": int(self.member.sum()),
            "nonmembers": int((~self.member).sum()),
            "queries": self.queries,
            "per_class": [
                {
                    "class": found.name,
                    "members": found.members,
                    "nonmembers": found.nonmembers,
                    **{name: each and each.value for name, each in found.measures.items()},
                    "accuracy_interval": found.accuracy and [found.accuracy.low, found.accuracy.high],
                }
                for found in self.per_class
            ],
        }

    def plot_roc(self, path: str | Path) -> Path:
        """Draw the ROC curve with its bootstrap band on logarithmic axes, as a PNG, PDF or SVG file."""
        return plot_roc([self], path)


# ROC curves of weighted scores, computed for many bootstrap weightings at once.


_ELEMENTS = 1 << 22
"""How many weights are held at a time, so that memory does not grow with records times resamples."""


@dataclass(frozen=True)
class Roc:
    """False and true positive rates (weightings, points) of "member if the score is at least a point's threshold".

    The first point accuses nobody. Scores that are equal are one point: the attack cannot tell them apart.
    """

    fpr: torch.Tensor
    tpr: torch.Tensor

    @classmethod
    def of(cls, scores: torch.Tensor, member: torch.Tensor, weights: torch.Tensor) -> Roc:
        """The curves of scores (records,) for each row of weights (weightings, records)."""
        ordered, order = scores.sort(descending=True, stable=True)
        last = torch.ones(len(scores), dtype=torch.bool)
        last[:-1] = ordered[:-1] != ordered[1:]
        weights = weights[:, order]
        inside = member[order]

        def rates(mask: torch.Tensor) -> torch.Tensor:
            counted = (weights * mask).cumsum(1)[:, last]
            return torch.nn.functional.pad(counted / counted[:, -1:], (1, 0))

        return cls(rates(~inside), rates(inside))

    @property
    def auc(self) -> torch.Tensor:
        """Area under each curve: how often a member scores above a non-member, ties counting half."""
        return torch.trapezoid(self.tpr, self.fpr, dim=1)

    def tpr_at(self, fpr: float) -> torch.Tensor:
        """The largest true positive rate whose false positive rate is at most `fpr`; not interpolated."""
        return self.tpr.where(self.fpr <= fpr + 1e-12, 0.0).amax(1)


def best_threshold(scores: torch.Tensor, member: torch.Tensor) -> float:
    """The threshold above which accusing has the largest advantage on these scores, half-way to the next score."""
    curve = Roc.of(scores, member, torch.ones(1, len(scores), dtype=torch.float64))
    distinct = scores.double().unique().flip(0)
    best = int((curve.tpr - curve.fpr).argmax())
    if best == 0:
        return math.inf
    if best == len(distinct):
        return -math.inf
    return float((distinct[best - 1] + distinct[best]) / 2)


def resamples(member: torch.Tensor, count: int, seed: int) -> Iterator[torch.Tensor]:
    """Bootstrap weights, some rows at a time: members are drawn from members and non-members from non-members."""
    generator = torch.Generator().manual_seed(seed)
    sides = [side.nonzero().flatten() for side in (member, ~member)]
    rows = max(1, _ELEMENTS // len(member))
    for start in range(0, count, rows):
        weights = torch.zeros(min(rows, count - start), len(member), dtype=torch.float64)
        for side in sides:
            drawn = side[torch.randint(len(side), (len(weights), len(side)), generator=generator)]
            weights.scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=torch.float64))
        yield weights


def bootstrap(
    statistic: Callable[[torch.Tensor], torch.Tensor], member: torch.Tensor, *, count: int, level: float, seed: int
) -> torch.Tensor:
    """Percentile intervals (2, statistics) of `statistic`, which maps weights (rows, records) to (rows, statistics)."""
    values = torch.cat([statistic(weights) for weights in resamples(member, count, seed)])
    tail = (1 - level) / 2
    return values.quantile(torch.tensor([tail, 1 - tail], dtype=values.dtype), dim=0)


# ROC curves on logarithmic axes, where attacks that name few records with certainty can be seen.


_STYLES = ("-", "--", "-.", ":")
_POINTS = 60


def plot_roc(results: Sequence[AttackResult], path: str | Path) -> Path:
    """Draw the ROC curves of several attacks, each with its bootstrap band, into one file.

    Args:
        results: What the attacks found.
        path: A PNG, PDF or SVG file.

    Returns:
        The path.
    """
    # Figures are made without pyplot, which keeps global state and may look for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.4 + 0.2 * len(results)), layout="constrained")
    axes = figure.add_subplot()
    # Left of one false accusation there is nothing to see.
    floor = min(1 / int((~result.member).sum()) for result in results)
    grid = torch.logspace(math.log10(floor), 0, _POINTS, dtype=torch.float64)
    for place, result in enumerate(results):
        # The first colour is a grey, as guessing's is.
        colour, style = PALETTE[1 + place % (len(PALETTE) - 1)][0], _STYLES[place % len(_STYLES)]
        curve = Roc.of(result.scores, result.member, torch.ones(1, len(result.scores), dtype=torch.float64))
        axes.plot(
            curve.fpr[0].clamp(min=floor),
            curve.tpr[0].clamp(min=floor),
            color=colour,
            linestyle=style,
            drawstyle="steps-post",
            linewidth=1.8,
            label=f"{result.attack} (AUC {result.auc:.3f}, advantage {result.advantage:.2f})",
        )
        low, high = _band(result, grid)
        axes.fill_between(grid, low.clamp(min=floor), high.clamp(min=floor), color=colour, alpha=0.15, linewidth=0)
    axes.plot([floor, 1], [floor, 1], color="0.5", linewidth=1, label="guessing")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(floor, 1),
        ylim=(floor, 1.05),
        xlabel="false positive rate",
        ylabel="true positive rate",
        title="Membership inference",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", fontsize="small")
    figure.savefig(path, dpi=150)
    return Path(path)


def _band(result: AttackResult, grid: torch.Tensor) -> torch.Tensor:
    """The bootstrap interval of the true positive rate at each of the false positive rates."""

    def statistic(weights: torch.Tensor) -> torch.Tensor:
        curve = Roc.of(result.scores, result.member, weights)
        # The last point at or before each rate: curves only rise.
        place = torch.searchsorted(curve.fpr, (grid + 1e-12).expand(len(weights), -1).contiguous(), right=True) - 1
        return curve.tpr.gather(1, place)

    return bootstrap(statistic, result.member, count=200, level=result.level, seed=result.seed)
