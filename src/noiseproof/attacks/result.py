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
    """A measured value and its interval.

    Examples:
        >>> auc = Interval(0.62, low=0.58, high=0.66)
        >>> auc.low > 0.5  # more than guessing
        True
    """

    value: float
    """What was measured."""
    low: float
    """The interval's lower end, at the level of the `AttackResult`."""
    high: float
    """Its upper end."""


@dataclass(frozen=True)
class LowRate:
    """How many members an attack names where few non-members may be named falsely: one of `AttackResult.at_low_fpr`.

    Examples:
        >>> scores, member = torch.arange(2000.0), torch.arange(2000) >= 1000  # every member scores higher
        >>> result = AttackResult("example", scores, member, torch.zeros(2000).long(), classes=("all",))
        >>> rate = result.at_low_fpr[0]
        >>> rate.fpr, rate.named, rate.falsely
        (0.001, 1000, 1)
    """

    fpr: float
    """The share of the non-members at hand that may be named."""
    tpr: Interval
    """The share of members that is named, with its exact interval."""
    named: int
    """How many members that is."""
    falsely: int
    """How many of the non-members at hand were named."""
    fpr_at_most: float
    """What the false positive rate is at most, for all non-members of this kind, at the interval's level."""


@dataclass(frozen=True)
class ClassResult:
    """The attack on the records of one class, one of `AttackResult.per_class`.

    A measure is None where the class lacks members or non-members.

    Examples:
        >>> result = AttackResult(
        ...     "example",
        ...     scores=torch.tensor([0.9, 0.8, 0.7, 0.2]),
        ...     member=torch.tensor([True, True, False, False]),
        ...     labels=torch.tensor([0, 1, 0, 1]),
        ...     classes=("no", "yes"),
        ... )
        >>> [(found.name, found.auc.value) for found in result.per_class]
        [('no', 1.0), ('yes', 1.0)]
    """

    name: str
    """The class's name."""
    members: int
    """How many members are of the class."""
    nonmembers: int
    """How many non-members are."""
    accuracy: Interval | None = None
    """Share of right guesses, were members and non-members equally many."""
    advantage: Interval | None = None
    """TPR - FPR of the guesses."""
    auc: Interval | None = None
    """How often a member scores above a non-member."""

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

    Raises:
        DataError: If scores, memberships and labels differ in number, all are on one side, or a score is not finite.

    Examples:
        `infer_membership` returns it; scores of your own are measured the same way:

        >>> result = AttackResult(
        ...     "my attack",
        ...     scores=torch.tensor([0.9, 0.4, 0.6, 0.2]),
        ...     member=torch.tensor([True, True, False, False]),
        ...     labels=torch.tensor([0, 1, 0, 1]),
        ...     classes=("no", "yes"),
        ...     threshold=0.5,
        ... )
        >>> result.auc, result.advantage
        (0.75, 0.0)

    Formal guarantee
    ----------------
    None: scores and measures are made from private records and membership; they stay on the trusted side.
    """

    attack: str
    """The attack's name."""
    scores: torch.Tensor = field(repr=False)
    """One for each record, or person; the larger, the more it looks like a member."""
    member: torch.Tensor = field(repr=False)
    """Whether it is a member."""
    labels: torch.Tensor = field(repr=False)
    """The place of its class in `classes`."""
    classes: tuple[str, ...]
    """The names of the classes that `per_class` measures one by one."""
    threshold: float | None = None
    """Scores above it are taken for members; None where it is chosen by halves of the scores."""
    threshold_from: str = "the other half of the scores"
    """Where the threshold comes from, in words."""
    queries: int = 0
    """How many answers of the target the attack used."""
    unit: str = "record"
    """What was attacked, each a score: records, or persons by all their records."""
    seed: int = 0
    """Of the halves and of the bootstrap."""
    resamples: int = 1000
    """How often the bootstrap draws the records again."""
    level: float = 0.95
    """The confidence level of the intervals."""
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

    Examples:
        >>> scores, member = torch.arange(100.0), torch.arange(100) % 3 > 0
        >>> result = AttackResult("example", scores, member, torch.zeros(100).long(), classes=("all",))
        >>> plot_roc([result], "roc.svg").name
        'roc.svg'
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
