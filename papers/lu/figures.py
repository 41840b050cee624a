"""The paper's figures from our runs: figure 2, and for each data set accuracy loss and leakage over epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from papers import pictures
from papers.lu import published
from papers.lu.summary import PAIRS, Summary
from papers.pictures import BLACK, BLUE, GREEN, ORANGE, PURPLE, RED, SKY

# Published in blues, DP-SGD in greys, proven in warm colours.
_LOOKS = {
    "neuron-gaussian": (BLUE, "-", "o", "Alg. 1, Gaussian (claimed)"),
    "neuron-laplace": (SKY, "-", "s", "Alg. 1, Laplace (claimed)"),
    "dp-sgd-naive": ("#BBBBBB", ":", "", "DP-SGD, naive"),
    "dp-sgd-advanced": ("#999999", ":", "", "DP-SGD, advanced"),
    "dp-sgd-zcdp": ("#666666", "--", "", "DP-SGD, zCDP"),
    "dp-sgd-rdp": (BLACK, "-", "", "DP-SGD, RDP"),
    "dp-sgd-rdp-program": (BLACK, ":", "x", "DP-SGD, RDP, program's loss"),
    "logits": (RED, "-", "^", "logits (proven)"),
    "teachers": (ORANGE, "-", "v", "teachers (proven)"),
    "votes": (PURPLE, "-", "D", "votes (proven)"),
}


def every_figure(found: Sequence[Summary], folder: Path) -> tuple[Path, ...]:
    """Draw all figures into `folder`."""
    return (correlation_figure(found, folder), *(curve_figure(one, folder) for one in found))


def curve_figure(one: Summary, folder: Path) -> Path:
    """Figures 3 to 13: accuracy loss and leakage of one data set over the epsilons."""
    number = int(published.number(one.row, "figure"))
    figure, (left, right) = pictures.figure(2)
    for curve in one.curves:
        colour, style, marker, label = _LOOKS[curve]
        looks = {"color": colour, "linestyle": style, "marker": marker, "markersize": 4, "label": label}
        for axis, values in ((left, one.losses(curve)), (right, one.leaks(curve))):
            axis.plot(list(values), list(values.values()), **looks)  # type: ignore[arg-type]
    left.axhline(one.limit, color=BLUE, linewidth=0.8, alpha=0.5)
    left.text(one.epsilons[-1], one.limit, "limit of Alg. 1", color=BLUE, fontsize=7, ha="right", va="bottom")
    theory = [one.theory(epsilon) for epsilon in one.epsilons]
    right.plot(one.epsilons, theory, color=GREEN, linewidth=1, label=r"$e^\epsilon - 1$, at most the baseline's")
    right.axhline(one.leak, color=GREEN, linewidth=0.8, alpha=0.5, linestyle="--")
    left.set(
        xscale="log", xlabel="ε of one answer", ylabel="accuracy loss", ylim=(min(-0.05, left.get_ylim()[0]), 1.03)
    )
    right.set(xscale="log", xlabel="ε of one answer", ylabel="privacy leakage (TPR - FPR)")
    pictures.legend_below(figure, right, 4, fontsize=7)
    figure.suptitle(f"Figure {number}: {one.label} (test accuracy of the baseline {one.baseline:.3f})")
    return pictures.save(figure, folder, f"fig-{number}")


def correlation_figure(found: Sequence[Summary], folder: Path) -> Path:
    """Figure 2: each data set as a point, ours and theirs."""
    figure, axes = pictures.figure(3)
    printed = published.rows()
    theirs = {"oaro": printed["oaro"], "gap": printed["convexified_gap"], "leak": printed["leak"]}
    ours = {
        "oaro": [one.sensitivity.stability for one in found],
        "gap": [one.gap for one in found],
        "leak": [one.leak for one in found],
    }
    for axis, (pair, (first, second)) in zip(axes, PAIRS.items(), strict=True):
        a, b = pair.split("-")
        axis.scatter(ours[a], ours[b], color=BLUE, label="ours")
        axis.scatter(theirs[a], theirs[b], facecolors="none", edgecolors="#999999", label="theirs")
        axis.set(xlabel=first, ylabel=second, xscale="log" if a == "oaro" else "linear")
    axes[0].legend(frameon=False)
    figure.suptitle("Figure 2: stability bound, accuracy gap and leakage of the baselines")
    return pictures.save(figure, folder, "fig-2")
