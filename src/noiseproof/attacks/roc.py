"""ROC curves of weighted scores, computed for many bootstrap weightings at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

_ELEMENTS = 1 << 22
"""How many weights are held at a time, so that memory does not grow with records times resamples."""


@dataclass(frozen=True)
class Roc:
    """False and true positive rates (weightings, points) of "member if the score is at least a point's threshold".

    The first point accuses nobody. Scores that are equal are one point: the attack cannot tell them apart.
    """

    fpr: torch.Tensor
    tpr: torch.Tensor

    @classmethod
    def of(cls, scores: torch.Tensor, member: torch.Tensor, weights: torch.Tensor) -> Roc:
        """The curves of scores (records,) for each row of weights (weightings, records)."""
        ordered, order = scores.sort(descending=True, stable=True)
        last = torch.ones(len(scores), dtype=torch.bool)
        last[:-1] = ordered[:-1] != ordered[1:]
        weights = weights[:, order]
        inside = member[order]

        def rates(mask: torch.Tensor) -> torch.Tensor:
            counted = (weights * mask).cumsum(1)[:, last]
            return torch.nn.functional.pad(counted / counted[:, -1:], (1, 0))

        return cls(rates(~inside), rates(inside))

    @property
    def auc(self) -> torch.Tensor:
        """Area under each curve: how often a member scores above a non-member, ties counting half."""
        return torch.trapezoid(self.tpr, self.fpr, dim=1)

    def tpr_at(self, fpr: float) -> torch.Tensor:
        """The largest true positive rate whose false positive rate is at most `fpr`; not interpolated."""
        return self.tpr.where(self.fpr <= fpr + 1e-12, 0.0).amax(1)


def best_threshold(scores: torch.Tensor, member: torch.Tensor) -> float:
    """The threshold above which accusing has the largest advantage on these scores, half-way to the next score."""
    curve = Roc.of(scores, member, torch.ones(1, len(scores), dtype=torch.float64))
    distinct = scores.double().unique().flip(0)
    best = int((curve.tpr - curve.fpr).argmax())
    if best == 0:
        return math.inf
    if best == len(distinct):
        return -math.inf
    return float((distinct[best - 1] + distinct[best]) / 2)


def resamples(member: torch.Tensor, count: int, seed: int) -> Iterator[torch.Tensor]:
    """Bootstrap weights, some rows at a time: members are drawn from members and non-members from non-members."""
    generator = torch.Generator().manual_seed(seed)
    sides = [side.nonzero().flatten() for side in (member, ~member)]
    rows = max(1, _ELEMENTS // len(member))
    for start in range(0, count, rows):
        weights = torch.zeros(min(rows, count - start), len(member), dtype=torch.float64)
        for side in sides:
            drawn = side[torch.randint(len(side), (len(weights), len(side)), generator=generator)]
            weights.scatter_add_(1, drawn, torch.ones(drawn.shape, dtype=torch.float64))
        yield weights


def bootstrap(
    statistic: Callable[[torch.Tensor], torch.Tensor], member: torch.Tensor, *, count: int, level: float, seed: int
) -> torch.Tensor:
    """Percentile intervals (2, statistics) of `statistic`, which maps weights (rows, records) to (rows, statistics)."""
    values = torch.cat([statistic(weights) for weights in resamples(member, count, seed)])
    tail = (1 - level) / 2
    return values.quantile(torch.tensor([tail, 1 - tail], dtype=values.dtype), dim=0)
