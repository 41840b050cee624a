"""What the charts of a comparison show: series, axes and guides, described once for the page and for picture files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from noiseproof.palette import PALETTE
from noiseproof.releases.measures import NAMES, PERCENT, stated
from noiseproof.run.results import Comparison
from noiseproof.run.row import BASELINE, Row

KINDS = ("claimed", "proven", "audited")

FEW = 5
"""So many methods are drawn in one chart; the table has them all."""

DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3), (12, 4))


@dataclass(frozen=True)
class Point:
    """A point of a chart and the text that it shows to a reader."""

    x: float
    y: float
    text: str = ""
    kind: str = ""
    error: float = 0.0
    """The standard error of y."""


@dataclass(frozen=True)
class Series:
    """One method's points. `number` is its place among those that matter, the same in every chart."""

    name: str
    number: int
    points: tuple[Point, ...]
    text: str = ""

    @property
    def colour(self) -> int:
        """Its place in the palette."""
        return self.number % len(PALETTE)

    @property
    def dashes(self) -> tuple[int, ...]:
        """Lengths of its dashes and gaps; empty for a solid line."""
        return DASHES[self.number % len(DASHES)]

    @property
    def bounded(self) -> bool:
        """Whether a proof bounds its epsilons from above."""
        return any(point.kind == "proven" for point in self.points)


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale with its label."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    @classmethod
    def around(
        cls, label: str, values: Iterable[float], *, low: float = 1e-3, log: bool = False, percent: bool = False
    ) -> Axis:
        """An axis with some margin around the values; on a log axis nothing lies below `low`."""
        found = list(values) or [0.0, 1.0]
        first, last = min(found), max(found)
        if log:
            first = max(first, low)
            return cls(label, first / 1.6, max(last, first) * 1.6, True, percent)
        margin = max((last - first) * 0.08, 0.01)
        top = min(last + margin, 1.0) if percent else last + margin
        return cls(label, max(0.0, first - margin), max(top, 0.02), False, percent)

    def at(self, value: float) -> float:
        """Where a value lies, 0 at the low end and 1 at the high one; what is beyond an end is drawn there."""
        if self.log:
            share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Values to write: 1, 2 and 5 times powers of ten, fewer where they would be crowded."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 2 else (1,)
            found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        else:
            rough = (self.high - self.low) / 5
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
            found = [count * step for count in range(math.floor(self.low / step), math.ceil(self.high / step) + 1)]
        return [value for value in found if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]

    def text(self, value: float) -> str:
        """A tick's text."""
        return f"{value:.0%}" if self.percent else f"{value:g}"


@dataclass(frozen=True)
class Guide:
    """A dashed line with a name: across the chart at `x` or at `y`, or the diagonal where neither is given."""

    text: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True)
class Chart:
    """One chart, before it is drawn at any size or into any format."""

    name: str
    """Of its files and of its place on the page."""
    heading: str
    caption: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    lines: Literal["rows", "straight", "steps"]
    """How a series' points are joined: those of equal height, all, or all by steps. Steps show no points."""
    guides: Sequence[Guide] = ()

    def paths(self, one: Series) -> list[list[tuple[float, float]]]:
        """The corners of a series' lines, in the axes' values."""
        points = [(point.x, point.y) for point in one.points]
        if self.lines == "rows":
            rows: dict[float, list[float]] = {}
            for x, y in points:
                rows.setdefault(y, []).append(x)
            return [[(min(xs), y), (max(xs) if one.bounded else self.x.high, y)] for y, xs in rows.items()]
        if self.lines == "steps":
            corners = [((x, before), (x, y)) for (_, before), (x, y) in pairwise(points)]
            points = [*points[:1], *(corner for pair in corners for corner in pair)]
        return [points] if points else []


def charts(comparison: Comparison) -> list[Chart]:
    """The charts of a comparison that have anything to show, of the methods that matter."""
    drawn = (_epsilons(comparison), _roc(comparison), _sweep(comparison), _budget(comparison))
    return [chart for chart in drawn if any(one.points for one in chart.series)]


def matter(comparison: Comparison) -> list[str]:
    """The few methods that a decision is about: what is recommended, the best proof of each kind, the best that fell, ties.

    Args:
        comparison: What was compared.

    Returns:
        At most `FEW` names, the first ones first.
    """
    done = [row for row in comparison.rows if row.done and row.method != BASELINE]
    best = sorted(done, key=lambda row: -(row.value or 0.0))
    proven = [row for row in best if row.verdict == "proven"]
    found = comparison.recommendations
    names = [
        *(each.method for each in found if each.method),
        *(next(row.method for row in proven if row.kind == kind) for kind in dict.fromkeys(row.kind for row in proven)),
        *(row.method for row in [row for row in best if row.verdict == "refuted"][:1]),
        *(name for each in found for name in each.ties),
        *(row.method for row in (*proven, *best)),
    ]
    return list(dict.fromkeys(names))[:FEW]


def _by_method(comparison: Comparison) -> Iterator[tuple[int, str, list[Row]]]:
    """Number, name and finished rows, by epsilon, of each method that matters."""
    for number, name in enumerate(matter(comparison), 1):
        rows = [row for row in comparison.rows if row.method == name and row.done]
        yield number, name, sorted(rows, key=lambda row: row.epsilon)


def _baseline(comparison: Comparison) -> float | None:
    """The measure that ranks of training without privacy."""
    if comparison.ranked_by == "accuracy":
        return comparison.baseline
    return next((row.value for row in comparison.rows if row.method == BASELINE), None)


def _told(row: Row) -> str:
    return f"{NAMES[row.ranked_by]} {stated(row.ranked_by, row.value)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _error(row: Row) -> float:
    return (row.measures.error if row.measures else None) or 0.0


def _epsilons(comparison: Comparison) -> Chart:
    """The measure that ranks against each kind of epsilon at the largest target; what is infinite has no point."""
    name_of, shown = NAMES[comparison.ranked_by], comparison.ranked_by in PERCENT
    series, baseline, target = [], _baseline(comparison), comparison.epsilons[-1]
    for number, name, rows in _by_method(comparison):
        points = []
        for row in rows[-1:]:
            for kind in KINDS:
                promise = getattr(row.card, kind)
                if promise is not None and math.isfinite(promise.epsilon):
                    how = "at least " if kind == "audited" else ""
                    text = f"{name}: {kind} epsilon {how}{promise.epsilon:.3g}, {_told(row)}"
                    points.append(Point(promise.epsilon, row.value or 0.0, text, kind))
        series.append(Series(name, number, tuple(points)))
    found = [point for one in series for point in one.points]
    return Chart(
        "accuracy-by-kind-of-epsilon",
        f"{_capital(name_of)} and epsilon of the few that matter",
        "Higher is better, further left is more private. Each method’s true epsilon lies on its line: to the right of the "
        "triangle (an attack showed that much) and, where something is proven, to the left of the square. A triangle to the "
        "right of its circle refutes the claim.",
        # An audit that found nothing must not push everything else into a corner: its mark is drawn at the left end.
        Axis.around("epsilon (log scale)", [target, *(p.x for p in found)], low=target / 10, log=True),
        Axis.around(name_of, [*(p.y for p in found), baseline or 0.5], percent=shown),
        series,
        "rows",
        [*([] if baseline is None else [Guide("without privacy", y=baseline)]), Guide("target epsilon", x=target)],
    )


def _roc(comparison: Comparison) -> Chart:
    """ROC curves of the attacks with log axes, at the smallest epsilon of each method."""
    series = []
    for number, name, rows in _by_method(comparison):
        attack = rows[0].attack
        if attack is not None:
            points = tuple(Point(x, y) for x, y in zip(attack.roc.fpr, attack.roc.tpr, strict=True))
            text = f"{name}: {attack.attack} attack, AUC {attack.auc:.3f}, advantage {attack.advantage:.3f}"
            series.append(Series(name, number, points, text))
    rates = [point.x for one in series for point in one.points if point.x > 0]
    floor = min(max(min(rates, default=0.01), 1e-5), 0.1)
    return Chart(
        "roc",
        "What an attacker learns",
        "How many members an attacker names (up) when so many others are named wrongly (right), on logarithmic scales. Far "
        "above the diagonal on the left, some people’s membership is given away with near certainty.",
        Axis("false positive rate (log scale)", floor, 1.0, log=True),
        Axis("true positive rate (log scale)", floor, 1.0, log=True),
        series,
        "steps",
        [Guide("guessing")],
    )


def _sweep(comparison: Comparison) -> Chart:
    """The measure that ranks by asked epsilon; empty where only one was run."""
    name_of, shown = NAMES[comparison.ranked_by], comparison.ranked_by in PERCENT
    baseline, series = _baseline(comparison), []
    for number, name, rows in _by_method(comparison):
        points = tuple(
            Point(row.epsilon, row.value or 0.0, f"{name}: {_told(row)} at epsilon {row.epsilon:g}", "", _error(row))
            for row in rows
        )
        if len(comparison.epsilons) > 1:
            series.append(Series(name, number, points))
    found = [point for one in series for point in one.points]
    return Chart(
        "accuracy-by-epsilon",
        f"{_capital(name_of)} by epsilon",
        "Each point is a training of its own at that budget; bands are one standard error over test records.",
        Axis.around("target epsilon (log scale)", [point.x for point in found], log=True),
        Axis.around(name_of, [*(point.y for point in found), baseline or 0.5], percent=shown),
        series,
        "straight",
        [] if baseline is None else [Guide("without privacy", y=baseline)],
    )


def _budget(comparison: Comparison) -> Chart:
    """Proven epsilon by share of the steps or answers that are done, at the smallest epsilon that was run."""
    series = []
    for number, name, rows in _by_method(comparison):
        spending = rows[0].spending
        if spending is not None:
            total, unit = spending.done[-1], spending.unit
            points = tuple(
                Point(count / total, epsilon, f"{name}: epsilon {epsilon:.3g} after {count} of {total} {unit}")
                for count, epsilon in zip(spending.done, spending.epsilon, strict=True)
            )
            series.append(Series(name, number, points))
    return Chart(
        "budget",
        "How the budget was spent",
        "Proven epsilon if the run had stopped there, by its own event log: statistics and steps of a training, answers of a "
        "prediction method.",
        Axis("share of the run that is done", 0.0, 1.0, percent=True),
        Axis.around("proven epsilon so far", [0.0, *(point.y for one in series for point in one.points)]),
        series,
        "straight",
    )


@dataclass(frozen=True)
class Label:
    """A series' name in the margin, with a line to the point that it belongs to."""

    series: Series
    x: float
    y: float
    top: float


@dataclass(frozen=True)
class Drawing:
    """A chart at a size in pixels: where the page's template draws what."""

    chart: Chart
    css_class: str
    width: int
    height: int
    left: int = 50
    right: int = 20
    top: int = 16
    bottom: int = 44

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a value is drawn."""
        across, down = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + self.chart.x.at(x) * across, self.top + (1 - self.chart.y.at(y)) * down

    def path(self, one: Series) -> str:
        """A series' lines as SVG path data."""
        return "".join(_path(self.at(*corner) for corner in corners) for corners in self.chart.paths(one))

    def band(self, one: Series) -> str:
        """The area within a standard error of a series' line; empty where there is none."""
        if self.chart.lines != "straight" or not any(point.error for point in one.points):
            return ""
        above = [self.at(point.x, point.y + point.error) for point in one.points]
        below = [self.at(point.x, point.y - point.error) for point in reversed(one.points)]
        return _path([*above, *below]) + "Z"

    def labels(self) -> list[Label]:
        """Every series' name beside the end of its line, moved up or down where names would cover each other."""
        ends = [(one, *self.at(*max(corner for path in self.chart.paths(one) for corner in path)))
                for one in self.chart.series if one.points]  # fmt: skip
        ends.sort(key=lambda end: end[2])
        tops = spread([y for _, _, y in ends], LINE, self.top, self.height - self.bottom)
        return [Label(one, x, y, top) for (one, x, y), top in zip(ends, tops, strict=True)]


LINE = 16.0
"""Pixels from a label to the next."""


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Places near the given ones, in their order, that are `gap` apart and within bounds as far as there is room.

    Args:
        places: Where labels would stand if they were alone, in rising order.
        gap: How far apart they must be.
        low: The smallest place.
        high: The largest place.

    Returns:
        The places.

    >>> spread([10, 10, 50], 16, 0, 100)
    [10, 26, 50]
    """
    found: list[float] = []
    for place in places:
        found.append(max(place, low, found[-1] + gap if found else low))
    beyond = high
    for index in reversed(range(len(found))):
        found[index] = min(found[index], beyond)
        beyond = found[index] - gap
    return found


def _path(corners: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
