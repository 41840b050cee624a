"""The paper's figures 3 to 10 from our runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from papers import pictures
from papers.ma import published
from papers.ma.cells import NOISES, Cell, CellResult
from papers.ma.plans import EPSILONS, TUNINGS
from papers.ma.privacy import Level
from papers.pictures import BLACK, BLUE, GREEN, ORANGE, RED

Results = Mapping[Cell, CellResult]

_figure = partial(pictures.figure, width=3.8, height=3.4)
_METHODS = {"none": (BLACK, "no noise"), "rdp-gan": (BLUE, "RDP-GAN (claimed)"), "dp-gan": (RED, "dp-gan (proven)")}


def every_figure(
    results: Results, levels: Sequence[Level], real: Mapping[str, Any], runs: Path, folder: Path
) -> tuple[Path, ...]:
    """Draw all figures into `folder`; `real` holds the real shares of Adult, `runs` the pictures that were made."""
    return (
        levels_figure(levels, folder),
        samples_figure(runs, folder),
        noise_figure(results, folder),
        digits_figure(results, folder),
        shares_figure(results, real, folder),
        classifiers_figure(results, folder),
        decays_figure(results, folder, "mnist", "fig-9"),
        decays_figure(results, folder, "adult", "fig-10"),
    )


def levels_figure(levels: Sequence[Level], folder: Path) -> Path:
    """Figure 3: both formulas and the accountant, over the noise."""
    figure, axes = _figure(2)
    for axis, batch in zip(axes, (64, 128), strict=True):
        for data, colour in (("adult", BLUE), ("mnist", RED)):
            chosen = [one for one in levels if (one.data, one.batch_size) == (data, batch)]
            sigmas = [one.sigma for one in chosen]
            axis.plot(sigmas, [one.theorem for one in chosen], color=colour, label=f"{data}: Theorem 3")
            axis.plot(sigmas, [one.moments for one in chosen], color=colour, linestyle="--", label=f"{data}: (23)")
            axis.plot(sigmas, [one.truth for one in chosen], color=colour, linestyle=":", label=f"{data}: accountant")
        axis.set(xlabel="noise σ", ylabel="ε of one iteration", yscale="log", title=f"batch {batch}")
    axes[0].legend(frameon=False, fontsize=7)
    return pictures.save(figure, folder, "fig-3")


def samples_figure(runs: Path, folder: Path) -> Path:
    """Figure 4: pictures made at both budgets by both methods."""
    shown = [("rdp-gan", 0.5), ("dp-gan", 0.5), ("rdp-gan", 5.0), ("dp-gan", 5.0)]
    figure, axes = _figure(4)
    for axis, (method, epsilon) in zip(axes, shown, strict=True):
        with np.load(runs / f"{Cell('mnist', method, epsilon).key}.npz") as arrays:
            axis.imshow(_tiled(arrays["x"], arrays["y"]), cmap="gray_r", vmin=0, vmax=1)
        axis.set(title=f"{method}, ε = {epsilon:g} ({'proven' if method == 'dp-gan' else 'claimed'})")
        axis.set_axis_off()
    return pictures.save(figure, folder, "fig-4")


def noise_figure(results: Results, folder: Path) -> Path:
    """Figure 5: accuracy as training goes on, by noise."""
    figure, (axis,) = _figure(1)
    cells = [("no noise", Cell("mnist", "none")), *((f"σ = {s:g}", Cell("mnist", "rdp-gan", sigma=s)) for s in NOISES)]
    for (label, cell), colour in zip(cells, (BLACK, GREEN, ORANGE, RED), strict=True):
        curve = results[cell].curve
        axis.plot([at for at, _ in curve], [100 * value for _, value in curve], color=colour, marker=".", label=label)
    axis.set(xlabel="iteration", ylabel="samples that show their digit (%)", ylim=(0, 100))
    axis.legend(frameon=False)
    return pictures.save(figure, folder, "fig-5")


def digits_figure(results: Results, folder: Path) -> Path:
    """Figure 6: accuracy of each digit at both budgets."""
    figure, axes = _figure(2)
    places = np.arange(10)
    for axis, epsilon in zip(axes, EPSILONS, strict=True):
        for shift, method in ((-0.2, "rdp-gan"), (0.2, "dp-gan")):
            found = results[Cell("mnist", method, epsilon)].by_class
            colour, label = _METHODS[method]
            axis.bar(
                places + shift, [100 * found.get(str(digit), 0.0) for digit in places], 0.4, color=colour, label=label
            )
        axis.set(xlabel="digit", ylabel="samples that show it (%)", title=f"ε = {epsilon:g}", xticks=places)
    axes[0].legend(frameon=False)
    return pictures.save(figure, folder, "fig-6")


def shares_figure(results: Results, real: Mapping[str, Any], folder: Path) -> Path:
    """Figure 7: the shares of every attribute's values."""
    figure, axes = _figure(4, 2)
    for axis, name in zip(axes, published.ATTRIBUTES, strict=True):
        places = np.arange(len(real[name]))
        axis.bar(places, real[name], color="#CCCCCC", label="real")
        for method, epsilon, style in (
            ("rdp-gan", 0.5, "--"),
            ("dp-gan", 0.5, "--"),
            ("rdp-gan", 5.0, "-"),
            ("dp-gan", 5.0, "-"),
        ):
            shares = results[Cell("adult", method, epsilon)].shares[name]
            axis.plot(places, shares, style, color=_METHODS[method][0], marker=".", label=f"{method}, {epsilon:g}")
        axis.set(title=name)
    axes[0].legend(frameon=False, fontsize=7)
    return pictures.save(figure, folder, "fig-7")


def classifiers_figure(results: Results, folder: Path) -> Path:
    """Figure 8: classifiers of real records on synthetic ones, and the reverse."""
    figure, axes = _figure(2)
    for axis, measure in zip(axes, ("accuracy", "synthetic_to_real"), strict=True):
        for shift, method in ((-0.2, "rdp-gan"), (0.2, "dp-gan")):
            heights = [100 * getattr(results[Cell("adult", method, epsilon)], measure) for epsilon in EPSILONS]
            axis.bar(np.arange(2) + shift, heights, 0.4, color=_METHODS[method][0], label=_METHODS[method][1])
        plain = results[Cell("adult", "none")]
        axis.axhline(100 * plain.majority, color=BLACK, linestyle=":", label="the commonest class")
        axis.axhline(100 * plain.real_to_real, color=GREEN, linestyle="--", label="real to real")
        title = (
            "taught by real, tested on synthetic" if measure == "accuracy" else "taught by synthetic, tested on real"
        )
        axis.set(
            title=title,
            ylabel="accuracy (%)",
            ylim=(50, 100),
            xticks=range(2),
            xticklabels=[f"ε = {e:g}" for e in EPSILONS],
        )
    axes[0].legend(frameon=False, fontsize=7)
    return pictures.save(figure, folder, "fig-8")


def decays_figure(results: Results, folder: Path, data: str, name: str) -> Path:
    """Figures 9 and 10: accuracy by decay rate, for every schedule."""
    figure, axes = _figure(4)
    for axis, tuning in zip(axes, TUNINGS, strict=True):
        cells = sorted(
            (cell for cell in results if (cell.data, cell.method, cell.tuning) == (data, "rdp-gan", tuning)),
            key=lambda cell: cell.decay or 0.0,
        )
        axis.plot(
            [cell.decay or 0.0 for cell in cells],
            [100 * results[cell].accuracy for cell in cells],
            color=BLUE,
            marker="o",
        )
        axis.set(title=f"{data}: {tuning}", xlabel="k", ylabel="real to synthetic (%)")
    return pictures.save(figure, folder, name)


def _tiled(pictures: Any, labels: Any) -> Any:
    """Eight pictures of each digit, one column a digit."""
    side = pictures.shape[-1]
    sheet = np.zeros((8 * side, 10 * side))
    for digit in range(10):
        for row, picture in enumerate(pictures[labels == digit][:8, 0]):
            sheet[row * side : (row + 1) * side, digit * side : (digit + 1) * side] = picture
    return sheet
