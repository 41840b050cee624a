"""Pictures of studies: figures of one style, made without pyplot, and saved beside the tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's colours, which everybody can tell apart.
BLACK, BLUE, SKY, RED, ORANGE, GREEN, PURPLE = (
    "#000000", "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7",
)  # fmt: skip


def figure(columns: int, rows: int = 1, *, width: float = 4.6, height: float = 4.0) -> tuple[Figure, list[Axes]]:
    """A figure of rows times columns axes of that many inches each, row by row."""
    from matplotlib.figure import Figure

    # Not through pyplot, which would keep every figure open and ask for a display.
    made = Figure(figsize=(width * columns, height * rows), dpi=150, layout="constrained")
    axes: list[Axes] = list(made.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return made, axes


def legend_below(picture: Figure, axis: Axes, columns: int, *, fontsize: int | None = None) -> None:
    """One legend for the whole figure, from what is drawn on one axis."""
    handles, labels = axis.get_legend_handles_labels()
    picture.legend(handles, labels, frameon=False, loc="outside lower center", ncols=columns, fontsize=fontsize)


def save(picture: Figure, folder: Path, name: str) -> Path:
    """Write a figure as a PNG."""
    path = folder / f"{name}.png"
    picture.savefig(path)
    return path
