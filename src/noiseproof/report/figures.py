"""The page's figures: each a chart for wide and one for narrow windows, a legend that hides series, and a caption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from noiseproof.report import series as taken
from noiseproof.report.chart import COLOURS, Axis, Chart, padded, used_numbers
from noiseproof.report.series import KINDS, Series

_WIDE, _NARROW = (900, 440), (328, 320)


def epsilon_figure(document: Mapping[str, Any], label: str) -> str:
    """Accuracy against claimed, proven and audited epsilon."""
    series = taken.epsilons(document)
    asked = document["epsilon"] if isinstance(document["epsilon"], list) else [document["epsilon"]]
    low, high = taken.extent(series, "x")
    # An audit that found nothing must not push all else into a corner: its arrow is drawn at the left end.
    low = max(min(low, *asked), min(asked) / 10)
    accuracies = [row["accuracy"] for row in taken.done(document)]
    x = padded("epsilon (log scale)", low, max(high, *asked), log=True)
    y = padded("accuracy", min(accuracies, default=0), max(accuracies, default=1), percent=True)

    def draw(chart: Chart) -> None:
        if document["baseline"] is not None:
            chart.guide(y=document["baseline"], says="baseline")
        if len(asked) == 1:
            chart.guide(x=asked[0], says="asked")
        for one in series:
            chart.joined(one)
        for one in series:
            chart.points(one)

    kinds = "".join(
        f'<button type="button" aria-pressed="true" data-toggle-kind="{kind}">{_key(kind)}{kind}</button>'
        for kind in KINDS
    )
    return _figure(
        label,
        "Accuracy against claimed, proven and audited epsilon",
        series,
        draw,
        x,
        y,
        caption="Circles: what the authors claim. Squares: what is proven for what ran. Arrows: what an attack showed; the "
        "true epsilon is there or further right. An arrow to the right of its circle refutes the claim.",
        more=f'<div class="kinds" role="group" aria-label="Kinds of epsilon to show">{kinds}</div>',
    )


def roc_figure(document: Mapping[str, Any], label: str) -> str:
    """ROC curves of the attacks with log axes."""
    series = taken.curves(document)
    rates = [point.x for one in series for point in one.points if point.x > 0]
    floor = min(max(min(rates, default=0.01), 1e-5), 0.1)

    def draw(chart: Chart) -> None:
        chart.diagonal("guessing")
        for one in series:
            chart.line(one, steps=True)

    return _figure(
        label,
        "ROC of the membership attacks",
        series,
        draw,
        Axis("false positive rate (log scale)", floor, 1.0, log=True),
        Axis("true positive rate (log scale)", floor, 1.0, log=True),
        caption="How many members an attacker names (up) when so many others are named falsely (right). Far above the "
        "diagonal on the left means that some people's membership is given away with near certainty.",
    )


def sweep_figure(document: Mapping[str, Any], label: str) -> str:
    """Accuracy by asked epsilon; empty text where only one was run."""
    series = taken.sweep(document)
    if not series:
        return ""
    low, high = taken.extent(series, "y")
    top = max(high, document["baseline"] or 0)

    def draw(chart: Chart) -> None:
        if document["baseline"] is not None:
            chart.guide(y=document["baseline"], says="baseline")
        for one in series:
            chart.line(one, focusable=False)
        for one in series:
            chart.points(one)

    return _figure(
        label,
        "Accuracy by epsilon",
        series,
        draw,
        padded("asked epsilon (log scale)", *taken.extent(series, "x"), log=True),
        padded("accuracy", low, top, percent=True),
        caption="Each point is a training of its own at that budget.",
    )


def spent_figure(document: Mapping[str, Any], label: str) -> str:
    """How the budget went over steps or answers; empty text where nothing is proven."""
    series = taken.spent(document)
    if not series:
        return ""

    def draw(chart: Chart) -> None:
        for one in series:
            chart.line(one, focusable=False)
        for one in series:
            chart.points(one, numbers="last")

    return _figure(
        label,
        "Budget spent over steps or answers",
        series,
        draw,
        Axis("share of steps or answers done", 0.0, 1.0, percent=True),
        padded("proven epsilon so far", 0.0, taken.extent(series, "y")[1]),
        caption="Proven epsilon if the run had stopped there: steps of a training, answers of a prediction method.",
    )


def _figure(
    label: str,
    title: str,
    series: Sequence[Series],
    draw: Callable[[Chart], None],
    x: Axis,
    y: Axis,
    *,
    caption: str,
    more: str = "",
) -> str:
    pictures = []
    for css_class, (width, height) in (("wide", _WIDE), ("narrow", _NARROW)):
        chart = Chart(title, x, y, width, height)
        draw(chart)
        pictures.append(chart.svg(css_class))
    legend = "".join(
        f'<button type="button" aria-pressed="true" class="s{one.number % COLOURS}" '
        f'data-toggle-series="{escape(one.name, quote=True)}"><span class="swatch" aria-hidden="true">{one.number}</span>'
        f"{escape(one.name)}</button>"
        for one in used_numbers(series)
    )
    return (
        f'<figure id="{label}"><div class="legend" role="group" aria-label="Methods to show">{legend}</div>{more}'
        f"{''.join(pictures)}<figcaption>{caption}</figcaption></figure>"
    )


def _key(kind: str) -> str:
    mark = {
        "claimed": '<circle class="mark open" cx="8" cy="8" r="5"/>',
        "proven": '<rect class="mark" x="4" y="4" width="8" height="8"/>',
        "audited": '<path class="mark" d="M4 2L14 8L4 14Z"/>',
    }[kind]
    return f'<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true" class="key">{mark}</svg>'
