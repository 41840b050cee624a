"""The paper's figures from our runs: accuracies, and relevances of single records, on average and with noise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from noiseproof.methods.inputs.relevance import release_relevance, relevances
from noiseproof.privacy import Reproducible
from noiseproof.releases.release import ModelRelease
from papers import pictures
from papers.phan.cells import Point, records
from papers.phan.plans import FIRST_PROGRAM, LONGER, OWN_RELEVANCES, PROGRAM, PROGRAMS, Setting, printed_accuracy
from papers.phan.tables import last
from papers.pictures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EXAMPLES = 5


def noised_relevances(
    setting: Setting, mean: torch.Tensor, share: float, epsilons: tuple[float, ...], seed: int
) -> dict[float, torch.Tensor]:
    """Mean relevances with the noise that they are released with, by the epsilon of which `share` is epsilon_1."""
    count = len(records(setting)[0])
    return {
        epsilon: release_relevance(mean, count, share * epsilon, Reproducible(seed).spawn(number)).values
        for number, epsilon in enumerate(epsilons)
    }


# Published in blues, DP-SGD in black, proven in warm colours.
_LOOKS = {
    "adlm, program": (BLUE, "-", "o"),
    "ilm, program": (SKY, "-", "s"),
    "adlm, first program": (BLUE, "--", "o"),
    "ilm, first program": (SKY, "--", "s"),
    OWN_RELEVANCES: (BLUE, "--", "D"),
    **{curve: (colour, "-.", ".") for curve, colour in zip(LONGER, (BLUE, SKY), strict=True)},
    **{f"no noise, {reading}": (GREEN, ":", ".") for reading in (PROGRAM, FIRST_PROGRAM)},
    "adlm, algorithm 1": (BLUE, ":", "o"),
    "ilm, algorithm 1": (SKY, ":", "s"),
    "dp-sgd": (BLACK, "-", "x"),
    "functional, raw": (ORANGE, "-", "^"),
    "functional, fourier": (PURPLE, "-", "D"),
    "functional, scattering": (RED, "-", "v"),
}


def accuracy_figure(points: Sequence[Point], setting: Setting, baseline: float, folder: Path) -> Path:
    """Figure 4: accuracy against epsilon, and against epochs at the epsilons that the plan names."""
    figure, axes = pictures.figure(1 + len(setting.over_epochs))
    there = [curve for curve in _LOOKS if any((p.data, p.curve) == (setting.data, curve) for p in points)]
    epsilons = sorted(setting.epsilons)
    for curve in there:
        _plot(axes[0], epsilons, [last(points, setting.data, curve, epsilon) for epsilon in epsilons], curve)
    for method, marker in (("adlm", "o"), ("ilm", "s"), ("dp-sgd", "x")):
        theirs = [(e, value) for e in setting.epsilons if (value := printed_accuracy(setting.data, e, method))]
        if theirs:
            axes[0].plot(
                *zip(*theirs, strict=True), marker, color="#999999", fillstyle="none", label=f"{method}, theirs"
            )
    axes[0].axhline(baseline, color=GREEN, linewidth=0.8, linestyle="--", label="the relevances' network")
    lowest = min((point.accuracy for point in points if point.data == setting.data), default=0.0)
    shown = (max(0.0, lowest - 0.05), 1.0)
    axes[0].set(xscale="log", xlabel="stated ε", ylabel="accuracy", ylim=shown)
    axes[0].set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes[0].minorticks_off()
    for axis, epsilon in zip(axes[1:], setting.over_epochs, strict=True):
        for curve in (*PROGRAMS, *LONGER, "dp-sgd"):
            these = [
                point for point in points if (point.data, point.curve, point.epsilon) == (setting.data, curve, epsilon)
            ]
            epochs = sorted({point.epochs for point in these})
            means = [statistics.fmean(p.accuracy for p in these if p.epochs == epoch) for epoch in epochs]
            _plot(axis, epochs, means, curve)
        axis.set(xlabel=f"epochs, ε = {epsilon:g}", ylabel="accuracy", ylim=shown)
    pictures.legend_below(figure, axes[0], 4, fontsize=7)
    figure.suptitle(
        f"Accuracy on {setting.data}: published methods at the ε they claim, dotted where noise is per record"
    )
    return pictures.save(figure, folder, f"accuracy-{setting.data}")


def relevance_figure(
    setting: Setting, network: ModelRelease, mean: torch.Tensor, private: Mapping[float, torch.Tensor], folder: Path
) -> Path:
    """Figures 1 and 3: records with their relevances, then the average without noise and with it."""
    examples = records(setting)[1].features[:_EXAMPLES]
    columns = max(len(examples), 1 + len(private))
    figure, axes = pictures.figure(columns, 3, width=1.9, height=2.0)
    for axis in axes:
        axis.set_axis_off()
    tops, middles, bottoms = axes[:columns], axes[columns : 2 * columns], axes[2 * columns :]
    for column, (picture, relevance) in enumerate(zip(examples, relevances(network.module, examples), strict=True)):
        tops[column].imshow(picture.mean(0).numpy(), cmap="gray_r")
        extent = float(relevance.sum(0).abs().max()) or 1.0
        middles[column].imshow(relevance.sum(0).numpy(), cmap="RdYlGn_r", vmin=-extent, vmax=extent)
    averages = {"average": mean, **{f"private, ε = {epsilon:g}": value for epsilon, value in private.items()}}
    for column, (title, value) in enumerate(averages.items()):
        bottoms[column].imshow(value.view(examples.shape[1:]).mean(0).numpy(), cmap="viridis")
        bottoms[column].set_title(title, fontsize=7)
    figure.suptitle(f"{setting.data}: records, their relevances, and the average relevance without and with noise")
    return pictures.save(figure, folder, f"relevances-{setting.data}")


def _plot(axis: Axes, x: Sequence[float], y: Sequence[float | None], curve: str) -> None:
    colour, style, marker = _LOOKS[curve]
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if pairs:
        axis.plot(*zip(*pairs, strict=True), color=colour, linestyle=style, marker=marker, markersize=4, label=curve)
