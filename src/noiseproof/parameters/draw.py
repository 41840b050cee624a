"""The exponential mechanism's draw for every coordinate of a collection, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees import Exponential, Randomness
from noiseproof.parameters.collection import Collection
from noiseproof.parameters.density import Density, scores
from noiseproof.progress import SILENT, Progress

_BLOCK = 1 << 11
"""Coordinates that are drawn together. Fixed: which random numbers a coordinate gets depends on it."""
_LEAST_EPSILON = 1e-6
"""Below it, what is beyond a grid's end would no longer be as good as impossible."""


@dataclass(frozen=True, eq=False)
class Draw:
    """One published value for each coordinate."""

    values: torch.Tensor
    fixed: int
    """How many coordinates are the same in all models, and so were published as they are."""
    points: int
    """How many points the longest grid had."""


def draw(
    collection: Collection,
    density: Density,
    mechanism: Exponential,
    rng: Randomness,
    *,
    columns: torch.Tensor | None = None,
    progress: Progress = SILENT,
) -> Draw:
    """Draw every coordinate (or those at `columns`) with probability proportional to exp(epsilon u / 2 du).

    Formal guarantee
    ----------------
    One coordinate's draw is `mechanism.epsilon`-DP for one model if grid and bandwidth do not depend on the models
    (`PublicDensity`) and the mechanism's sensitivity is `true_sensitivity` at least; the draws of all coordinates are
    draws from the same models and compose. With a `FittedDensity` nothing is guaranteed: the models' range and spread
    decide what can be drawn. Scores are computed to some 1e-13 in float64, which is below the mechanism's own
    rounding. Neighbours: one model left out, or exchanged.
    """
    if mechanism.epsilon < _LEAST_EPSILON:
        raise SettingError(f"epsilon must be at least {_LEAST_EPSILON} to draw parameters by, not {mechanism.epsilon}.")
    count = collection.parameters if columns is None else len(columns)
    drawn = torch.empty(count, dtype=collection.rows.dtype, device=collection.rows.device)
    fixed = points = 0
    with progress.task("drawing parameters", count) as task:
        for start in range(0, count, _BLOCK):
            part = slice(start, min(start + _BLOCK, count))
            rows = collection.rows[:, part] if columns is None else collection.rows[:, columns[part]]
            values = rows.double().t().contiguous()
            grid, width = density.grid(values)
            chosen = mechanism.release(scores(values, grid, width, density), rng)
            drawn[part] = grid.at(chosen).to(drawn.dtype)
            fixed += int((width == 0).sum())
            points = max(points, int(grid.points.max()))
            task.advance(part.stop - part.start)
    return Draw(drawn, fixed, points)
