"""The paper's statistics: for each factor, is a measure normal at each level, and do the levels differ?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

Measure = Literal["accuracy", "convergence"]

FACTORS: Mapping[str, tuple[Any, ...]] = {
    "data": ("mnist", "cifar10", "svhn"),
    "model": ("cnn", "lstm"),
    "optimizer": ("sgd", "adam"),
    "sigma": (0.1, 0.5),
    "clip": (0.8, 1.4),
    "sequence": ("AC", "CA"),
}
"""The six factors of the experiment and their levels, in the paper's order (its Table 1)."""


def normality(cells: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Shapiro-Wilk for each level of each factor: its statistic, the number of cells and the p-value.

    A training that diverged has no finite loss; the levels that it belongs to are then not tested (NaN).
    """
    rows = []
    for factor, levels in FACTORS.items():
        for level in levels:
            sample = _sample(cells, factor, level, measure)
            statistic, p = math.nan, math.nan
            if np.isfinite(sample).all() and np.ptp(sample) > 0:
                statistic, p = (float(value) for value in stats.shapiro(sample))
            rows.append({"factor": factor, "level": level, "statistic": statistic, "df": len(sample), "p": p})
    return pd.DataFrame(rows)


def significance(cells: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Mann-Whitney for each factor of two levels, and Kruskal-Wallis for every factor.

    As SPSS prints it: U and Wilcoxon's W belong to the *second* level; Z is U standardised with the correction for
    ties and without one for continuity; p is two-sided from the normal. For two levels H is the square of Z.
    """
    rows = []
    for factor, levels in FACTORS.items():
        samples = [_sample(cells, factor, level, measure) for level in levels]
        row: dict[str, Any] = {"factor": factor, "U": math.nan, "W": math.nan, "Z": math.nan, "p": math.nan}
        if len(samples) == 2:
            row.update(zip("UWZp", mann_whitney(*samples), strict=True))
        row["H"], row["H p"] = kruskal_wallis(samples)
        rows.append(row)
    return pd.DataFrame(rows)


def mann_whitney(first: NDArray[np.float64], second: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """(U, W, Z, p) of the second sample against the first."""
    together = np.concatenate([first, second])
    ranks = stats.rankdata(together)
    m, n, total = len(first), len(second), len(together)
    w = float(ranks[m:].sum())
    u = w - n * (n + 1) / 2
    _, ties = np.unique(together, return_counts=True)
    corrected = total + 1 - float((ties.astype(float) ** 3 - ties).sum()) / (total * (total - 1))
    deviation = math.sqrt(m * n / 12 * corrected)
    # Where all values are equal nothing speaks against the levels being the same.
    z = (u - m * n / 2) / deviation if deviation else 0.0
    return u, w, z, float(2 * stats.norm.sf(abs(z)))


def kruskal_wallis(samples: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """(H, p) of two samples or more."""
    if len(np.unique(np.concatenate(samples))) == 1:
        return 0.0, 1.0
    statistic, p = stats.kruskal(*samples)
    return float(statistic), float(p)


def _sample(cells: pd.DataFrame, factor: str, level: Any, measure: Measure) -> NDArray[np.float64]:
    return np.asarray(cells.loc[cells[factor] == level, measure], dtype=np.float64)
