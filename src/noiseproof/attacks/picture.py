"""ROC curves on logarithmic axes, where attacks that name few records with certainty can be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from noiseproof.attacks.result import AttackResult, Roc, bootstrap

# Okabe and Ito's colours, told apart by all kinds of colour vision; line styles tell them apart in grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_STYLES = ("-", "--", "-.", ":")
_POINTS = 60


def plot_roc(results: Sequence[AttackResult], path: str | Path) -> Path:
    """Draw the ROC curves of several attacks, each with its bootstrap band, into one file (PNG, PDF or SVG)."""
    # Figures are made without pyplot, which keeps global state and may look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.4 + 0.2 * len(results)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # Left of one false accusation there is nothing to see.
    floor = min(1 / int((~result.member).sum()) for result in results)
    grid = torch.logspace(math.log10(floor), 0, _POINTS, dtype=torch.float64)
    for place, result in enumerate(results):
        colour, style = _COLOURS[place % len(_COLOURS)], _STYLES[place % len(_STYLES)]
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
