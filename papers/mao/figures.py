"""The paper's figures from our runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from noiseproof.methods.parameters.density import sheather_jones
from papers import pictures
from papers.mao.leakage import Leak
from papers.mao.quality import Quality
from papers.pictures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY

_COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY)
_BARS = {"none": "#666666", "dp-pg": BLUE, "dp-pgp": SKY, "dp-sgd": RED}


def every_figure(found: Sequence[Quality], leaks: Sequence[Leak], folder: Path) -> tuple[Path, ...]:
    """Draw all figures into `folder`."""
    figures = [slice_figure(one, folder) for one in found if one.slices]
    figures += [path for one in found for path in (epoch_figure(one, folder), epsilon_figure(one, folder))]
    return (*figures, attack_figure(leaks, folder)) if leaks else tuple(figures)


def slice_figure(one: Quality, folder: Path) -> Path:
    """Figure 3: histogram and density estimate of three parameters over the networks."""
    figure, axes = pictures.figure(2, len(one.slices), height=2.2)
    for part, (left, right) in zip(one.slices, zip(axes[::2], axes[1::2], strict=True), strict=True):
        values = torch.tensor(part.values, dtype=torch.float64)
        left.hist(part.values, bins=12, color=BLUE)
        left.set(ylabel="networks", title=part.name)
        width = sheather_jones(values[None])[0]
        at = torch.linspace(float(values.min() - 3 * width), float(values.max() + 3 * width), 300, dtype=torch.float64)
        kernels = torch.exp(-(((at[:, None] - values) / width) ** 2) / 2) / (width * math.sqrt(2 * math.pi))
        right.plot(at.tolist(), kernels.mean(1).tolist(), color=RED)
        right.set(ylabel="density", title=f"bandwidth {float(width):.2g}", xlim=left.get_xlim())
    figure.suptitle(f"Figure 3: three parameters of {one.models} of {one.network} on {one.data}")
    return pictures.save(figure, folder, f"fig-3-{one.data}")


def epoch_figure(one: Quality, folder: Path) -> Path:
    """Figure 4 or 5: train and test accuracy by epoch."""
    figure, axes = pictures.figure(2)
    epsilons = one.epsilons("dp-pg", min(point.epoch for point in one.points))
    for axis, part in zip(axes, ("train", "test"), strict=True):
        for curve, colour, label in (("none", BLACK, "none"), ("dp-sgd", "#999999", "DP-SGD")):
            points = one.of(curve)
            values = [getattr(point, part) for point in points]
            axis.plot([point.epoch for point in points], values, color=colour, marker="o", markersize=3, label=label)
        for colour, epsilon in zip(_COLOURS, epsilons, strict=False):
            points = one.of("dp-pg", epsilon=epsilon)
            values = [getattr(point, part) for point in points]
            label = f"DP-PG, claimed ε {epsilon:g}"
            axis.plot([point.epoch for point in points], values, color=colour, marker="s", markersize=3, label=label)
        axis.set(xlabel="epoch", ylabel=f"{part} accuracy", ylim=(0, 1.02))
    axes[1].legend(frameon=False, fontsize=7)
    number = 4 if one.data == "mnist" else 5
    figure.suptitle(f"Figure {number}: {one.network} on {one.data} by epoch")
    return pictures.save(figure, folder, f"fig-{number}")


def epsilon_figure(one: Quality, folder: Path) -> Path:
    """Figures 6 to 11: test accuracy by epsilon for DP-PG and for DP-PGP's three epsilons."""
    figure, axes = pictures.figure(2)
    left, right = axes
    (none,) = one.of("none", one.last)
    (mean,) = one.of("mean", one.last)
    values = [point.test for point in one.of("dp-pg", one.last)]
    left.plot(one.epsilons("dp-pg", one.last), values, color=_COLOURS[0], marker="o")
    left.axhline(none.test, color=BLACK, linewidth=0.8)
    left.set(xscale="log", xlabel="claimed ε of DP-PG", ylabel="test accuracy", ylim=(0, 1.02))
    for colour, (curve, label) in zip(
        _COLOURS,
        (("draw", "draws"), ("cluster", "k-means"), ("shift", "Laplace"), ("shift, as printed", "Laplace, as printed")),
        strict=False,
    ):
        values = [point.test for point in one.of(curve)]
        right.plot(one.epsilons(curve), values, color=colour, marker="s", markersize=3, label=label)
    right.axhline(mean.test, color=BLACK, linewidth=0.8)
    right.set(xscale="log", xlabel="one of DP-PGP's ε", ylim=(0, 1.02))
    right.set_xticks(one.epsilons("draw"), [f"{epsilon:g}" for epsilon in one.epsilons("draw")])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=7)
    numbers = "6 and 8 to 10" if one.data == "mnist" else "7 and 11"
    figure.suptitle(f"Figures {numbers}: {one.network} on {one.data} (lines: the collection's mean, the mean network)")
    return pictures.save(figure, folder, "fig-6" if one.data == "mnist" else "fig-7")


def attack_figure(leaks: Sequence[Leak], folder: Path) -> Path:
    """Figure 12: membership guessed right by class."""
    figure, (axis,) = pictures.figure(1, width=9.2)
    width = 0.8 / len(leaks)
    for place, leak in enumerate(leaks):
        known = [(index, value) for index, value in enumerate(leak.per_class) if value is not None]
        axis.bar(
            [index + (place - (len(leaks) - 1) / 2) * width for index, _ in known],
            [value for _, value in known],
            width,
            color=_BARS[leak.method],
            label=f"{leak.method} (test {leak.test:.2f})",
        )
    axis.axhline(0.5, color=BLACK, linewidth=0.8)
    lowest = min((value for leak in leaks for value in leak.per_class if value is not None), default=0.4)
    axis.set(
        xlabel="class",
        ylabel="membership guessed right",
        ylim=(min(0.4, lowest - 0.02), 1.0),
        xticks=range(len(leaks[0].per_class)),
    )
    axis.legend(frameon=False, fontsize=7, ncols=4)
    figure.suptitle("Figure 12: attacks on over-fitted networks")
    return pictures.save(figure, folder, "fig-12")
