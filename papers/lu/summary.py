"""Means over the repeats of a data set, the curves of its figure, and the correlations of figure 2 over data sets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from noiseproof.methods.predictions import Sensitivity
from papers.lu.run import BASELINE, RunResult


@dataclass(frozen=True)
class Summary:
    """All repeats of one data set."""

    runs: tuple[RunResult, ...]

    @property
    def row(self) -> str:
        """The paper's name of the set."""
        return self.runs[0].row

    @property
    def data(self) -> str:
        """The named set that was used."""
        return self.runs[0].data

    @property
    def label(self) -> str:
        """The set as tables call it: whose row it stands for, if it is not the paper's own."""
        return f"{self.data}, for {self.row}" if self.data.startswith("retail") else self.data

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.runs[0].classes

    @property
    def epsilons(self) -> tuple[float, ...]:
        """The epsilons of the curves."""
        return tuple(sorted({point.epsilon for point in self.runs[0].points}))

    @property
    def curves(self) -> tuple[str, ...]:
        """The names of the curves, in the order they were measured."""
        return tuple(dict.fromkeys(point.curve for point in self.runs[0].points))

    def accuracy(self, loss: str, part: int) -> float:
        """Mean accuracy with a loss, on training (0) or test records (1)."""
        return fmean(run.accuracies[loss][part] for run in self.runs)

    @property
    def baseline(self) -> float:
        """Test accuracy of the baseline with the surrogate loss, which accuracy losses are relative to."""
        return self.accuracy(BASELINE, 1)

    @property
    def gap(self) -> float:
        """How much more accurate the baseline is on training than on test records."""
        return self.accuracy(BASELINE, 0) - self.baseline

    @property
    def leak(self) -> float:
        """What the shadow attack gains against the baseline."""
        return fmean(run.leak for run in self.runs)

    @property
    def leak_by_few(self) -> float:
        """What the attack of two of the shadow models gains."""
        return fmean(run.leak_by_few for run in self.runs)

    @property
    def leak_by_class(self) -> float:
        """What it gains with an attack network for each class."""
        return fmean(run.leak_by_class for run in self.runs)

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """The paper's chain for what was trained."""
        first = self.runs[0]
        return Sensitivity((first.features, 128, first.classes), first.records)

    @property
    def limit(self) -> float:
        """The accuracy loss that Algorithm 1 goes to as epsilon goes to 0."""
        return fmean(1 - run.limit / run.accuracies[BASELINE][1] for run in self.runs)

    def losses(self, curve: str) -> dict[float, float]:
        """Mean accuracy loss 1 - accuracy / baseline's, by the epsilons at which the curve was measured."""
        found: dict[float, list[float]] = {}
        for run in self.runs:
            for point in run.points:
                if point.curve == curve:
                    found.setdefault(point.epsilon, []).append(1 - point.accuracy / run.accuracies[BASELINE][1])
        return {epsilon: fmean(found[epsilon]) for epsilon in sorted(found)}

    def leaks(self, curve: str) -> dict[float, float]:
        """Mean leakage, by the same epsilons."""
        found: dict[float, list[float]] = {}
        for run in self.runs:
            for point in run.points:
                if point.curve == curve and point.leak is not None:
                    found.setdefault(point.epsilon, []).append(point.leak)
        return {epsilon: fmean(found[epsilon]) for epsilon in sorted(found)}

    def ran(self, curve: str, epsilon: float) -> dict[str, float | str]:
        """What was noted about the first repeat's point."""
        return next(p.ran for p in self.runs[0].points if (p.curve, p.epsilon) == (curve, epsilon))

    def theory(self, epsilon: float) -> float:
        """exp(epsilon) - 1, which bounds the leakage of epsilon-DP, and no more than the baseline's leakage."""
        return max(0.0, min(math.expm1(min(epsilon, 700.0)), self.leak))


def summaries(results: Sequence[RunResult]) -> tuple[Summary, ...]:
    """The results by data set, in their order."""
    by_data: dict[str, list[RunResult]] = {}
    for result in results:
        by_data.setdefault(result.data, []).append(result)
    return tuple(Summary(tuple(runs)) for runs in by_data.values())


def interpolated(losses: dict[float, float], epsilon: float, limit: float | None = None) -> float:
    """A loss between the epsilons that were measured, on a logarithmic scale; `limit` (or the first) below them all."""
    known = sorted(losses)
    if epsilon <= known[0]:
        return losses[known[0]] if limit is None else limit
    if epsilon >= known[-1]:
        return losses[known[-1]]
    high = next(index for index, value in enumerate(known) if value >= epsilon)
    low, up = known[high - 1], known[high]
    share = (math.log(epsilon) - math.log(low)) / (math.log(up) - math.log(low))
    return losses[low] + share * (losses[up] - losses[low])


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
