"""The page's charts as PNG and SVG files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noiseproof.report import series as taken

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# The page's colours; line styles and numbers tell the methods apart in grey.
COLOURS = ("#4d4d4d", "#0072b2", "#b84700", "#00755a", "#a23b7c", "#806000", "#5b4bb7", "#007a8a")
STYLES = ("-", "--", ":", "-.", (0, (9, 3)))
MARKERS = {"claimed": "o", "proven": "s", "audited": ">", "": "o"}


def save_pictures(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write every chart of a comparison as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    charts = {
        "accuracy-by-kind-of-epsilon": (_epsilons, taken.epsilons(document)),
        "roc": (_roc, taken.curves(document)),
        "accuracy-by-epsilon": (_sweep, taken.sweep(document)),
        "budget": (_spent, taken.spent(document)),
    }
    written = []
    for name, (draw, series) in charts.items():
        if any(one.points for one in series):
            written += _save(draw, series, document, folder / name)
    return written


def _save(draw: Any, series: list[taken.Series], document: Mapping[str, Any], stem: Path) -> list[Path]:
    # Figures are made without pyplot, which keeps global state and may look for a display.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes, series, document)
    axes.grid(True, alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    # Without a salt and a date the same results give the same file.
    with mpl.rc_context({"svg.hashsalt": "noiseproof"}):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths


def _look(one: taken.Series) -> dict[str, Any]:
    return {"color": COLOURS[one.number % len(COLOURS)], "linestyle": STYLES[one.number % len(STYLES)]}


def _epsilons(axes: Axes, series: list[taken.Series], document: Mapping[str, Any]) -> None:
    floor = 0.05
    for one in series:
        colour = COLOURS[one.number % len(COLOURS)]
        label: str | None = f"{one.number} {one.name}"
        for point in one.points:
            face = "none" if point.kind == "claimed" else colour
            axes.plot(
                [max(point.x, floor)],
                [point.y],
                marker=MARKERS[point.kind],
                color=colour,
                markerfacecolor=face,
                linestyle="none",
                label=label,
            )
            axes.annotate(
                str(one.number), (max(point.x, floor), point.y), xytext=(5, 4), textcoords="offset points", fontsize=7
            )
            label = None
    if document["baseline"] is not None:
        axes.axhline(document["baseline"], color="#666666", linestyle="--", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("epsilon: claimed (circle), proven (square), audited from below (arrow)")
    axes.set_ylabel("accuracy")


def _roc(axes: Axes, series: list[taken.Series], document: Mapping[str, Any]) -> None:
    rates = [point.x for one in series for point in one.points if point.x > 0]
    floor = min(min(rates, default=0.01), 0.1)
    for one in series:
        xs, ys = [max(point.x, floor) for point in one.points], [max(point.y, floor) for point in one.points]
        axes.plot(xs, ys, drawstyle="steps-post", label=f"{one.number} {one.name}", linewidth=1.6, **_look(one))
    axes.plot([floor, 1], [floor, 1], color="#666666", linestyle="--", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="false positive rate", ylabel="true positive rate")


def _sweep(axes: Axes, series: list[taken.Series], document: Mapping[str, Any]) -> None:
    _lines(axes, series)
    if document["baseline"] is not None:
        axes.axhline(document["baseline"], color="#666666", linestyle="--", linewidth=0.8)
    axes.set(xscale="log", xlabel="asked epsilon", ylabel="accuracy")


def _spent(axes: Axes, series: list[taken.Series], document: Mapping[str, Any]) -> None:
    _lines(axes, series)
    axes.set(xlabel="share of steps or answers done", ylabel="proven epsilon so far")


def _lines(axes: Axes, series: list[taken.Series]) -> None:
    for one in series:
        xs, ys = [point.x for point in one.points], [point.y for point in one.points]
        axes.plot(xs, ys, marker="o", markersize=4, label=f"{one.number} {one.name}", **_look(one))
