"""The paper's figures from our trainings: curves of accuracy and loss, and the sweep of the clipping norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from papers import pictures
from papers.lin import design, published
from papers.lin.design import Cell
from papers.lin.results import CellResult
from papers.lin.statistics import FACTORS
from papers.pictures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Results = Mapping[Cell, CellResult]

_figure = partial(pictures.figure, width=4.2, height=3.6)
_NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN", "cnn": "CNN", "lstm": "LSTM"}
# One look for a method in every figure.
_LOOKS = {
    "none": (BLACK, "-", "no noise"),
    "AC": (BLUE, "-", "AC: noise, then clip"),
    "CA": (RED, "-", "CA: clip, then noise"),
    "AC 0.04": (SKY, "-", "AC, C = 0.04"),
    "AC 1.4": (BLUE, "-", "AC, C = 1.4"),
    "quantile-flat": (ORANGE, "--", "flat quantile"),
    "quantile-layer": (PURPLE, "--", "quantile per layer"),
}


def every_figure(results: Results, folder: Path) -> tuple[Path, ...]:
    """Draw the figures whose trainings are there into `folder`: all of them, or those of the factorial experiment alone."""
    drawn = [sequences_figure(results, folder, f"fig-{name}", *setting) for name, setting in design.DRAWN.items()]
    if all(cell in results for cell in (*design.comparison(), *design.sweep())):
        drawn.append(comparison_figure(results, folder, "fig-4", "accuracy"))
        drawn.append(comparison_figure(results, folder, "fig-5", "loss"))
        drawn.append(sweep_figure(results, folder))
    return *drawn, gains_figure(results, folder)


def sequences_figure(results: Results, folder: Path, name: str, data: str, sigma: float, clip: float) -> Path:
    """Figures 1-3: accuracy and loss as training goes on, for AC, CA and no noise."""
    figure, axes = _figure(2)
    cells = {
        "none": Cell(data, "cnn", "adam", "none"),
        "AC": Cell(data, "cnn", "adam", "AC", sigma, clip),
        "CA": Cell(data, "cnn", "adam", "CA", sigma, clip),
    }
    for axis, measure in zip(axes, ("accuracy", "loss"), strict=True):
        _curves(axis, ((look, results[cell]) for look, cell in cells.items()), measure)
    axes[0].legend(frameon=False, loc="best")
    figure.suptitle(f"{_NAMES[data]}, CNN, Adam, σ = {sigma:g}, C = {clip:g}")
    return pictures.save(figure, folder, name)


def comparison_figure(results: Results, folder: Path, name: str, measure: Literal["accuracy", "loss"]) -> Path:
    """Figures 4 and 5: AC beside quantile clipping on the three data sets."""
    figure, axes = _figure(3)
    for axis, data in zip(axes, FACTORS["data"], strict=True):
        cells = [cell for cell in design.comparison() if cell.data == data]
        looks = [cell.sequence if cell.clip is None else f"{cell.sequence} {cell.clip:g}" for cell in cells]
        _curves(axis, ((look, results[cell]) for look, cell in zip(looks, cells, strict=True)), measure)
        axis.set_title(_NAMES[data])
    for axis in axes[1:]:
        axis.set_ylabel("")
    pictures.legend_below(figure, axes[0], len(axes[0].lines))
    figure.suptitle(f"{measure.capitalize()} beside adaptive clipping: CNN, Adam, σ = 0.5")
    return pictures.save(figure, folder, name)


def sweep_figure(results: Results, folder: Path) -> Path:
    """Table 12 as a picture: accuracy as the clipping norm grows, ours and theirs."""
    figure, axes = _figure(2)
    printed = published.table12()
    for axis, model in zip(axes, FACTORS["model"], strict=True):
        for sequence in FACTORS["sequence"]:
            cells = [cell for cell in design.sweep() if (cell.model, cell.sequence) == (model, sequence)]
            colour, _, label = _LOOKS[sequence]
            axis.plot(
                [cell.clip or 0 for cell in cells],
                [100 * results[cell].accuracy for cell in cells],
                color=colour,
                marker="o",
                label=f"{label}, ours",
            )
            theirs = printed[(printed["model"] == model) & (printed["sequence"] == sequence)]
            axis.plot(
                theirs["clip"],
                100 * theirs["accuracy"],
                color=colour,
                marker="s",
                markerfacecolor="white",
                linestyle=":",
                label=f"{label}, theirs",
            )
        axis.set(xscale="log", xlabel="clipping norm C", title=_NAMES[model], ylim=(0, 103))
    axes[0].set_ylabel("accuracy (%)")
    pictures.legend_below(figure, axes[0], 2)
    figure.suptitle("MNIST, Adam, σ = 0.5: a small C is almost no noise for AC")
    return pictures.save(figure, folder, "sweep")


def gains_figure(results: Results, folder: Path) -> Path:
    """Each of the 48 pairs of cells as a point: accuracy of AC against accuracy of CA, ours and theirs."""
    figure, axes = _figure(2)
    printed = published.cells().set_index(list(FACTORS))["accuracy"].to_dict()
    theirs = {cell: printed[tuple(getattr(cell, key) for key in FACTORS)] for cell in design.factorial()}
    ours = {cell: results[cell].accuracy for cell in design.factorial()}
    for axis, (title, accuracies) in zip(axes, (("ours", ours), ("theirs", theirs)), strict=True):
        for sigma, colour in zip(FACTORS["sigma"], (GREEN, PURPLE), strict=True):
            for model, marker in zip(FACTORS["model"], "o^", strict=True):
                pairs = [
                    (100 * accuracies[cell.as_sequence("CA")], 100 * accuracies[cell])
                    for cell in design.factorial()
                    if (cell.sigma, cell.model, cell.sequence) == (sigma, model, "AC")
                ]
                axis.scatter(
                    [pair[0] for pair in pairs],
                    [pair[1] for pair in pairs],
                    color=colour,
                    marker=marker,
                    alpha=0.75,
                    label=f"{_NAMES[model]}, σ = {sigma:g}",
                )
        axis.plot([0, 100], [0, 100], color="#999999", linewidth=1, zorder=0)
        axis.set(xlim=(0, 100), ylim=(0, 100), box_aspect=1, xlabel="accuracy of CA (%)", title=title)
        axis.text(4, 92, "AC better", color="#666666")
        axis.text(96, 4, "CA better", color="#666666", ha="right")
    axes[0].set_ylabel("accuracy of AC (%)")
    pictures.legend_below(figure, axes[0], 4)
    figure.suptitle("The 48 settings of the other factors: accuracy of AC against CA")
    return pictures.save(figure, folder, "sequences")


def _curves(axis: Axes, curves: Iterable[tuple[str, CellResult]], measure: str) -> None:
    for look, result in curves:
        colour, style, label = _LOOKS[look]
        heights = [100 * value for value in result.accuracies] if measure == "accuracy" else result.losses
        axis.plot(result.steps, heights, color=colour, linestyle=style, label=label)
    axis.set(
        xlabel="step", ylabel="accuracy on test records (%)" if measure == "accuracy" else "loss on training records"
    )
    # A training that diverges must not press the others flat: guessing costs ln 10 = 2.3.
    axis.set_ylim(0, None if measure == "accuracy" else min(axis.get_ylim()[1], 5))
