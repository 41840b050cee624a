"""The paper's figures from our runs: relevances, accuracy against epsilon, accuracy against epochs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from noiseproof.studies import pictures
from noiseproof.studies.phan import published
from noiseproof.studies.phan.cells import Point
from noiseproof.studies.phan.pictures import Relevances
from noiseproof.studies.phan.plans import Setting
from noiseproof.studies.phan.tables import last

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours: published in blues, DP-SGD in black, proven in warm colours.
_LOOKS = {
    "adlm, program": ("#0072B2", "-", "o"),
    "ilm, program": ("#56B4E9", "-", "s"),
    "adlm, algorithm 1": ("#0072B2", ":", "o"),
    "ilm, algorithm 1": ("#56B4E9", ":", "s"),
    "dp-sgd": ("#000000", "-", "x"),
    "functional, raw": ("#E69F00", "-", "^"),
    "functional, fourier": ("#CC79A7", "-", "D"),
    "functional, scattering": ("#D55E00", "-", "v"),
}


def accuracy_figure(points: Sequence[Point], setting: Setting, baseline: float, folder: Path) -> Path:
    """Figure 4: accuracy against epsilon, and against epochs at the epsilons that the plan names."""
    figure, axes = pictures.figure(1 + len(setting.over_epochs))
    there = [curve for curve in _LOOKS if any((p.data, p.curve) == (setting.data, curve) for p in points)]
    for curve in there:
        values = [last(points, setting.data, curve, epsilon) for epsilon in setting.epsilons]
        _plot(axes[0], setting.epsilons, values, curve)
    for method, marker in (("adlm", "o"), ("ilm", "s"), ("dp-sgd", "x")):
        theirs = [(e, value) for e in setting.epsilons if (value := published.accuracy(setting.data, e, method))]
        if theirs:
            axes[0].plot(
                *zip(*theirs, strict=True), marker, color="#999999", fillstyle="none", label=f"{method}, theirs"
            )
    axes[0].axhline(baseline, color="#009E73", linewidth=0.8, linestyle="--", label="without privacy")
    axes[0].set(xscale="log", xlabel="stated ε", ylabel="accuracy", ylim=(0, 1))
    axes[0].set_xticks(setting.epsilons, [f"{epsilon:g}" for epsilon in setting.epsilons])
    axes[0].minorticks_off()
    for axis, epsilon in zip(axes[1:], setting.over_epochs, strict=True):
        for curve in ("adlm, program", "ilm, program", "dp-sgd"):
            these = [
                point for point in points if (point.data, point.curve, point.epsilon) == (setting.data, curve, epsilon)
            ]
            epochs = sorted({point.epochs for point in these})
            means = [statistics.fmean(p.accuracy for p in these if p.epochs == epoch) for epoch in epochs]
            _plot(axis, epochs, means, curve)
        axis.set(xlabel=f"epochs, ε = {epsilon:g}", ylabel="accuracy", ylim=(0, 1))
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=4, fontsize=7)
    figure.suptitle(
        f"Accuracy on {setting.data}: published methods at the ε they claim, dotted where noise is per record"
    )
    return pictures.save(figure, folder, f"accuracy-{setting.data}")


def relevance_figure(found: Relevances, folder: Path) -> Path:
    """Figures 1 and 3: records with their relevances, then the average without noise and with it."""
    from matplotlib.figure import Figure

    columns = max(len(found.examples), 1 + len(found.private))
    figure = Figure(figsize=(1.9 * columns, 6.0), dpi=150, layout="constrained")
    axes = figure.subplots(3, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for column, (picture, relevance) in enumerate(zip(found.examples, found.single, strict=True)):
        axes[0][column].imshow(picture.mean(0).numpy(), cmap="gray_r")
        extent = float(relevance.sum(0).abs().max()) or 1.0
        axes[1][column].imshow(relevance.sum(0).numpy(), cmap="RdYlGn_r", vmin=-extent, vmax=extent)
    averages = {
        "average": found.plain,
        **{f"private, ε = {epsilon:g}": value for epsilon, value in found.private.items()},
    }
    for column, (title, value) in enumerate(averages.items()):
        axes[2][column].imshow(value.mean(0).numpy(), cmap="viridis")
        axes[2][column].set_title(title, fontsize=7)
    figure.suptitle(f"{found.data}: records, their relevances, and the average relevance without and with noise")
    return pictures.save(figure, folder, f"relevances-{found.data}")


def _plot(axis: Axes, x: Sequence[float], y: Sequence[float | None], curve: str) -> None:
    colour, style, marker = _LOOKS[curve]
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if pairs:
        axis.plot(*zip(*pairs, strict=True), color=colour, linestyle=style, marker=marker, markersize=4, label=curve)
