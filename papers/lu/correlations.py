"""Figure 2: do stability, accuracy gap and privacy leakage rise together?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

PAIRS: Mapping[str, tuple[str, str]] = {
    "oaro-gap": ("stability bound (OARO)", "accuracy gap"),
    "oaro-leak": ("stability bound (OARO)", "privacy leakage"),
    "leak-gap": ("privacy leakage", "accuracy gap"),
}


@dataclass(frozen=True)
class Correlation:
    """Three coefficients with two-sided p-values; None where there are too few points or all of one value."""

    points: int
    pearson: float | None
    pearson_p: float | None
    spearman: float | None
    spearman_p: float | None
    kendall: float | None
    kendall_p: float | None


def correlate(first: Sequence[float], second: Sequence[float]) -> Correlation:
    """Pearson's, Spearman's and Kendall's correlation of two measures over data sets."""
    from scipy import stats

    a, b = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(len(a), None, None, None, None, None, None)
    found: list[float] = []
    for test in (stats.pearsonr, stats.spearmanr, stats.kendalltau):
        result = test(a, b)
        found += [float(result.statistic), float(result.pvalue)]
    return Correlation(len(a), *found)
