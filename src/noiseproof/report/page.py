"""The page: one HTML file that needs nothing else, for one comparison or several."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel

from noiseproof import palette
from noiseproof.notebook import visible
from noiseproof.privacy import Audit, Budget, Claim, Proof
from noiseproof.releases.measures import NAMES, stated
from noiseproof.report.charts import KINDS, Axis, Chart, Drawing, Series, charts
from noiseproof.report.intervals import Interval, interval
from noiseproof.run.results import Comparison
from noiseproof.run.row import BASELINE, Row

if TYPE_CHECKING:
    from jinja2 import Environment, Template
    from markupsafe import Markup

MARKS = {
    **{"proven": "✓", "weaker than claimed": "▽", "nothing proven": "∅"},
    **{"refuted": "✗", "rehearsal": "◌", "failed": "!"},
    **{"signed": "✓", "not signed": "∅", "not checked": "?", "changed": "✗"},
}
"""A sign for each verdict, so that colour is not all that tells it."""


_LETTER = 8.0
"""Pixels of a letter of a label, at most on average."""


def render(comparisons: Sequence[Comparison]) -> str:
    """The page of these comparisons, in the order given.

    Args:
        comparisons: Results, as `noiseproof compare` made them.

    Returns:
        An HTML document that fetches nothing.

    Examples:
        `render([Comparison.read("runs/compare-digits")])` gives the page of a finished comparison; here is one without rows:

        >>> from noiseproof.run import Plan
        >>> from noiseproof.run.results import DataFacts
        >>> facts = DataFacts(
        ...     name="digits", records=1437, test_records=360, shape=(1, 8, 8), classes=10, kind="image", bounds="public"
        ... )
        >>> asked = {"epsilons": (3.0,), "delta": 1e-5, "neighbours": "add-or-remove", "queries": 100}
        >>> plan = Plan(data="digits").to_json()
        >>> comparison = Comparison(data="digits", **asked, baseline=None, rows=(), about=facts, plan=plan, versions={}, run="")
        >>> "nothing that was run is proven" in render([comparison])
        True

    Formal guarantee
    ----------------
    None: accuracies and attacks were measured on private records without noise. The page says so; it is for the data's
    owner. It names the run by a fingerprint keyed with a salt that is not on the page.
    """
    return template("comparison.html").render(
        comparisons=comparisons,
        charts=charts,
        drawings=_drawings,
        panels=_panels,
        groups=groups,
        epsilon_axis=epsilon_axis,
        facts_about=_facts,
        kinds=KINDS,
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: type(value)(visible(value)) if isinstance(value, str) else value,
    )
    environment.globals.update(marks=MARKS, names=NAMES, stated=stated, style=_markup(palette.style()))
    environment.filters.update(text=text, prose=prose, epsilon=epsilon, px="{:.1f}".format, percent="{:.2%}".format)
    environment.filters["fields"] = lambda value: (
        value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    )
    environment.tests["nested"] = lambda value: isinstance(value, Mapping) and bool(value)
    return environment


def template(name: str) -> Template:
    """A page's template; what is put in is escaped."""
    return _environment().get_template(name)


def _markup(text: str) -> Markup:
    from markupsafe import Markup

    return Markup(text)


def prose(sentence: str) -> Markup:
    """A sentence with its commands in `backticks` set as code and its *stressed words* as such, and all else escaped."""
    from markupsafe import escape

    told = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(sentence)))
    return _markup(re.sub(r"(?<![\w*])\*(\w[^*]*\w|\w)\*(?![\w*])", r"<em>\1</em>", told))


def _drawings(chart: Chart) -> tuple[Drawing, Drawing]:
    """The chart for wide and for narrow windows, each in the pixels that it is shown at."""
    right = 16 + max(round(_LETTER * len(one.name)) for one in chart.series)
    return (
        Drawing(chart, "wide", 900, 380, right=min(right, 400)),
        Drawing(chart, "narrow", 328, 330, left=44, right=min(right, 150)),
    )


def _panels(chart: Chart) -> list[tuple[Series, Drawing]]:
    """A chart as small multiples: each series in a drawing of its own."""
    return [
        (one, Drawing(replace(chart, series=[one]), "panel", 150, 150, left=6, right=6, top=6, bottom=6))
        for one in chart.series
        if one.points
    ]


@dataclass(frozen=True)
class Bar:
    """A measure as a bar: shares of its width. `low` and `high` are one standard error apart from it."""

    share: float
    low: float
    high: float
    baseline: float | None


class Line(NamedTuple):
    """A method's line in the table."""

    row: Row
    recommended: bool
    interval: Interval | None
    bar: Bar | None


class Group(NamedTuple):
    """Lines of the table that meet one need; those that are folded meet none within the budget."""

    title: str
    lines: list[Line]
    folded: bool = False


_TITLES = {"model": "To publish a model", "prediction": "To answer queries", "data": "To publish records"}


def epsilon_axis(comparison: Comparison) -> Axis:
    """The axis that all intervals of a comparison share."""
    cards = [row.card for row in comparison.rows if row.card]
    found = [one.epsilon for card in cards for one in (card.claimed, card.proven, card.audited) if one is not None]
    finite = [value for value in found if math.isfinite(value)]
    return Axis.around("epsilon", [*comparison.epsilons, *finite], low=min(comparison.epsilons) / 10, log=True)


def groups(comparison: Comparison) -> list[Group]:
    """The rows of a comparison by need, the best first; what is not proven within the budget comes last, folded.

    Args:
        comparison: What was compared.

    Returns:
        Groups that have rows.
    """
    axis, one = epsilon_axis(comparison), comparison
    taken = {(found.method, found.epsilon) for found in one.recommendations}
    plain = next((row for row in one.rows if row.method == BASELINE), None)

    def line(row: Row) -> Line:
        if not row.done or row.card is None:
            return Line(row, False, None, None)
        asked = None if row.method == BASELINE else row.epsilon
        promises = {"claimed": row.card.claimed, "proven": row.card.proven, "audited": row.card.audited}
        shown = interval(promises, row.verdict or "", axis, asked)
        return Line(row, (row.method, row.epsilon) in taken, shown, _bar(row, plain))

    def proven(row: Row) -> bool:
        budget = Budget(row.epsilon, one.delta, one.neighbours, one.queries)
        return row.done and row.method != BASELINE and row.is_proven(budget, one.about.unit)

    ranked = sorted(one.rows, key=lambda row: (row.epsilon, -(row.value if row.value is not None else -math.inf)))
    found = [
        Group(title, [line(row) for row in ranked if row.kind == kind and proven(row)])
        for kind, title in _TITLES.items()
    ]
    found.append(Group("For comparison: without privacy", [line(row) for row in one.rows if row.method == BASELINE]))
    others = [row for row in ranked if row.method != BASELINE and not proven(row)]
    counts = Counter(row.verdict if row.done else "failed" for row in others)
    title = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    found.append(Group(f"Not to be relied on: {title}", [line(row) for row in others], folded=True))
    return [group for group in found if group.lines]


def _bar(row: Row, plain: Row | None) -> Bar | None:
    if row.value is None:
        return None
    error = (row.measures.error if row.measures else None) or 0.0
    low, share, high = (min(1.0, max(0.0, value)) for value in (row.value - error, row.value, row.value + error))
    baseline = None if plain is None or plain.value is None else min(1.0, max(0.0, plain.value))
    return Bar(share, low, high, baseline)


def text(value: Any) -> str:
    """A value of a card as a reader would write it."""
    if value is None or value == {}:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "infinite" if math.isinf(value) else f"{value:.4g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value) or "—"
    return str(value)


def epsilon(promise: Claim | Proof | Audit | None) -> str:
    """The epsilon of a claim, a proof or an audit in a cell."""
    return "—" if promise is None else "infinite" if math.isinf(promise.epsilon) else f"{promise.epsilon:.3g}"


def _facts(comparison: Comparison) -> dict[str, Any]:
    """How a comparison was run."""
    about, plan = comparison.about, comparison.plan
    return {
        "data": comparison.data,
        "training records": about.records,
        "test records": about.test_records,
        "record shape": " × ".join(str(side) for side in about.shape),
        "classes": about.classes,
        "bounds and classes come from": "public knowledge" if about.bounds == "public" else "the private records",
        "neighbours": comparison.neighbours,
        "delta": comparison.delta,
        "queries": comparison.queries,
        "membership attack": plan["attack"],
        "audit trials in each world": plan["trials"],
        "seed": plan["seed"],
        "versions": comparison.versions,
        "run (keyed fingerprint of records, plan and versions)": comparison.run,
    }
