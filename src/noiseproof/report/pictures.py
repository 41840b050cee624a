"""A comparison's charts as PNG and SVG files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from noiseproof.palette import PALETTE
from noiseproof.plugins import need
from noiseproof.report.charts import Chart, charts
from noiseproof.run import Comparison

_MARKERS = {"claimed": "o", "proven": "s", "audited": ">", "": "o"}
_GREY: Any = {"color": "#666666", "linestyle": "--", "linewidth": 0.8}


def save_pictures(comparison: Comparison, folder: Path) -> list[Path]:
    """Write every chart of a comparison as PNG and SVG.

    Args:
        comparison: What to draw.
        folder: Where to; it is made if it is not there.

    Returns:
        The files written. The same results give the same bytes.

    Raises:
        MissingPartError: If matplotlib, of the extra `plots`, is not installed.

    Examples:
        `save_pictures(Comparison.read("runs/compare-digits"), Path("pictures"))` draws a finished comparison; one without
        rows has no charts:

        >>> from noiseproof.run.results import DataFacts
        >>> facts = DataFacts(
        ...     name="digits", records=1437, test_records=360, shape=(1, 8, 8), classes=10, kind="image", bounds="public"
        ... )
        >>> asked = {"epsilons": (3.0,), "delta": 1e-5, "neighbours": "add-or-remove", "queries": 100}
        >>> comparison = Comparison(data="digits", **asked, baseline=None, rows=(), about=facts, plan={}, versions={}, run="")
        >>> save_pictures(comparison, Path("pictures"))
        []
    """
    need("pictures need", "plots", "matplotlib")
    folder.mkdir(parents=True, exist_ok=True)
    return [path for chart in charts(comparison) for path in _save(chart, folder / chart.name)]


def _save(chart: Chart, stem: Path) -> list[Path]:
    # Figures are made without pyplot, which keeps global state and may look for a display.
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for axis, which in ((chart.x, "x"), (chart.y, "y")):
        scale: Any = {f"{which}scale": "log"} if axis.log else {}
        axes.set(**scale, **{f"{which}lim": (axis.low, axis.high), f"{which}label": axis.label})
        ticks = axis.ticks()
        getattr(axes, f"set_{which}ticks")(ticks, [axis.text(value) for value in ticks], minor=False)
        getattr(axes, f"{which}axis").minorticks_off()
    for guide in chart.guides:
        if guide.y is not None:
            axes.axhline(guide.y, **_GREY)
        elif guide.x is not None:
            axes.axvline(guide.x, **_GREY)
        else:
            axes.axline((chart.x.low, chart.y.low), (chart.x.high, chart.y.high), **_GREY)
    for one in chart.series:
        colour, label = PALETTE[one.colour][0], one.name
        for corners in chart.paths(one):
            xs, ys = (
                [axis.low if axis.log and v < axis.low else v for v in values]
                for axis, values in zip((chart.x, chart.y), zip(*corners, strict=True), strict=True)
            )
            thin = chart.lines == "rows"
            dashes = (None, None) if thin or not one.dashes else tuple(length / 1.6 for length in one.dashes)
            axes.plot(xs, ys, color=colour, dashes=dashes, label=label, linewidth=0.8 if thin else 1.6)
            label = "_"
        for point in one.points if chart.lines != "steps" else ():
            x = max(point.x, chart.x.low)
            face = "white" if point.kind == "claimed" else colour
            size = 9 if point.kind == "claimed" else 5
            axes.plot([x], [point.y], _MARKERS[point.kind], color=colour, markerfacecolor=face, markersize=size)
        if chart.lines == "straight" and any(point.error for point in one.points):
            low, high = ([point.y + sign * point.error for point in one.points] for sign in (-1, 1))
            axes.fill_between([point.x for point in one.points], low, high, color=colour, alpha=0.16, linewidth=0)
    axes.grid(True, alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=8)
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    # Without a salt and a date the same results give the same file.
    with mpl.rc_context({"svg.hashsalt": "noiseproof"}):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
