"""A mixture of product distributions over a table's columns, fitted to noisy marginals and sampled from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import torch
from torch.nn import functional

Columns = tuple[int, ...]
"""One column or two, or two and the last, by their places, in rising order."""

_NOISE = 0.9
"""The share of the errors that noise alone would leave at which a marginal is fitted: the rest would be learned by heart."""
_ROWS = 4096
"""Rows whose columns' or components' probabilities are looked at together."""
_FAR = 30.0
"""Logits stay within this, so that none of a column's shares is lost in float32."""


@dataclass(frozen=True)
class Measurement:
    """A noised marginal: shares of the records in every cell of some columns, and the noise's standard deviation."""

    columns: Columns
    shares: torch.Tensor
    sigma: float


@dataclass(frozen=True)
class _Target:
    """Measured shares, and the weight of each: 1 for the most exact, 0 for what was not measured."""

    shares: torch.Tensor
    weight: torch.Tensor


class Mixture:
    """p(record) = 1/K sum_k prod_j p_kj(value of column j): all pairs' marginals are one product of thin matrices.

    Formal guarantee
    ----------------
    None is needed: it reads noised marginals and public sizes alone, and so is post-processing of what was paid for.
    """

    def __init__(self, sizes: Sequence[int], components: int, generator: torch.Generator) -> None:
        self.sizes = tuple(sizes)
        self.generator = generator
        """Where its start and its samples come from."""
        self._logits = torch.randn(components, sum(sizes), generator=generator).requires_grad_()
        column = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self._member = functional.one_hot(column, len(sizes)).float()
        ends = torch.tensor(sizes).cumsum(0).tolist()
        self._slices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]

    def start_at(self, shares: Sequence[torch.Tensor], spread: float = 0.3) -> None:
        """Begin with all components near these one-way shares, so that little is dependent that was not measured."""
        likely = torch.cat([part.clamp_min(1e-4).log() for part in shares])
        with torch.no_grad():
            self._logits.mul_(spread).add_(likely)

    def probabilities(self) -> torch.Tensor:
        """p_kj side by side, (components, slots): a softmax over every column's slots."""
        raised = self._logits.clamp(-_FAR, _FAR).exp()
        return raised / (raised @ self._member @ self._member.T)

    def pairs(self) -> dict[Columns, torch.Tensor]:
        """The model's shares of every pair of columns."""
        with torch.no_grad():
            probabilities = self.probabilities()
            joint = (probabilities.T @ probabilities).double() / len(probabilities)
        places = combinations(range(len(self.sizes)), 2)
        return {(one, other): joint[self._slices[one], self._slices[other]] for one, other in places}

    def fit(self, measurements: Sequence[Measurement], steps: int, lr: float) -> float:
        """Fit all marginals by weighted least squares, from where the model stands, but not their noise; the loss at the end."""
        optimizer = torch.optim.Adam([self._logits], lr=lr, betas=(0.9, 0.99))
        finest = min(one.sigma for one in measurements)
        single, pair, triple = self._targets(measurements, finest)
        # Where a marginal's errors are as large as its noise alone would leave them, it is not fitted further.
        noise = _NOISE * finest**2
        single_noise = noise * (single.weight > 0).float() @ self._member
        pair_noise = noise * self._by_pair((pair.weight > 0).float())
        triple_noise = noise * len(triple.shares) * self._by_pair((triple.weight > 0).float())
        loss = torch.zeros(())
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizer.zero_grad(set_to_none=True)
            probabilities = self.probabilities()
            singles = ((probabilities.mean(0) - single.shares).square() * single.weight) @ self._member
            joint = probabilities.T @ probabilities / len(probabilities)
            pairs = self._by_pair((joint - pair.shares).square() * pair.weight)
            loss = (singles - single_noise).clamp_min(0).sum() + (pairs - pair_noise).clamp_min(0).sum()
            if len(triple.shares):
                joints = self._by_last(probabilities)
                triples = self._by_pair((joints - triple.shares).square().sum(0) * triple.weight)
                loss = loss + (triples - triple_noise).clamp_min(0).sum()
            if not float(loss.detach()):
                break
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    def _by_pair(self, cells: torch.Tensor) -> torch.Tensor:
        """Sums over the cells of every pair of columns, from those of every pair of slots."""
        return self._member.T @ cells @ self._member

    def _by_last(self, probabilities: torch.Tensor) -> torch.Tensor:
        """The model's shares of every pair of slots with every value of the last column, (values, slots, slots)."""
        last = probabilities[:, self._slices[-1]].T
        return (last.unsqueeze(2) * probabilities).transpose(1, 2) @ probabilities / len(probabilities)

    def _targets(self, measurements: Sequence[Measurement], finest: float) -> tuple[_Target, _Target, _Target]:
        """What was measured of slots, of pairs of slots, and of these with each value of the last column."""
        slots = sum(self.sizes)
        values = self.sizes[-1] if any(len(one.columns) == 3 for one in measurements) else 0
        shapes = ((slots,), (slots, slots), (values, slots, slots))
        found = tuple(_Target(torch.zeros(shape), torch.zeros(shape[-2:])) for shape in shapes)
        for one in measurements:
            places = tuple(self._slices[column] for column in one.columns[:2])
            target = found[len(one.columns) - 1]
            if len(one.columns) == 3:
                target.shares[(slice(None), *places)] = one.shares.movedim(-1, 0)
            else:
                target.shares[places] = one.shares
            target.weight[places] = (finest / one.sigma) ** 2
        return found[0], found[1], found[2]

    def sample(self, rows: int, *, even_target: bool = False) -> torch.Tensor:
        """Places of each column's value, (rows, columns), as evenly as whole numbers allow, so that little is left to chance.

        Every component is drawn equally often, and its columns' values as often as they are likely. With `even_target`
        the last column is drawn anew, given all the others.
        """
        with torch.no_grad():
            probabilities = self.probabilities()
        order = torch.randperm(rows, generator=self.generator)
        component = (torch.arange(rows) % len(probabilities))[order]
        found = torch.empty(rows, len(self.sizes), dtype=torch.int64)
        for place, part in enumerate(self._slices):
            ends = probabilities[:, part].double().cumsum(1)
            drawn = evenly(component, self.generator)[:, None]
            some = zip(component.split(_ROWS), drawn.split(_ROWS), strict=True)
            found[:, place] = torch.cat([torch.searchsorted(ends[own], each) for own, each in some]).squeeze(1)
        found.clamp_(max=torch.tensor(self.sizes) - 1)
        if even_target and len(self.sizes) > 1:
            found[:, -1] = self._target(found, probabilities)
        return found

    def _target(self, found: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        """The last column given the others: as often as it is likely among rows that are alike.

        Alike are rows with one value of the column that tells most of it, in the order of their probabilities.
        """
        last = self._slices[-1]
        logs = probabilities.clamp_min(1e-30).log().T.contiguous()
        likely = torch.cat(
            [
                reduce(torch.add, (logs[part][rows[:, place]] for place, part in enumerate(self._slices[:-1]))).softmax(
                    1
                )
                @ probabilities[:, last]
                for rows in found.split(_ROWS)
            ]
        ).double()
        likely /= likely.sum(1, keepdim=True)
        joint = (probabilities.T @ probabilities[:, last]).double() / len(probabilities)
        told = joint * (joint / (joint.sum(1, keepdim=True) * joint[last].sum(0))).clamp_min(1e-30).log()
        most = int(torch.stack([told[part].sum() for part in self._slices[:-1]]).argmax())
        score = likely @ torch.linspace(0, 0.5, likely.shape[1], dtype=torch.float64)
        order = (found[:, most] + score).argsort()
        drawn = torch.full((len(found),), likely.shape[1] - 1)
        rest = torch.ones(len(found), dtype=torch.float64)
        for value in range(likely.shape[1] - 1):
            # Systematic sampling among the rows that have no value yet: each with its own probability.
            share = (likely[order, value] / rest[order].clamp_min(1e-30)).clamp(max=1)
            ends = (share.cumsum(0) + torch.rand(1, dtype=torch.float64, generator=self.generator)).floor()
            taken = ends.diff(prepend=torch.zeros(1, dtype=torch.float64)) > 0.5
            drawn[order[taken]] = value
            order, rest = order[~taken], rest - likely[:, value]
        return drawn


def evenly(strata: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Numbers in [0, 1), each uniform by itself, that lie evenly within each stratum, in random order.

    Args:
        strata: Whole numbers from 0, (rows,).
        generator: Where they come from.

    Returns:
        One a row, float64.
    """
    order = (strata + torch.rand(len(strata), dtype=torch.float64, generator=generator)).argsort()
    counts = torch.bincount(strata)
    own = strata[order]
    rank = torch.arange(len(strata)) - (counts.cumsum(0) - counts)[own]
    found = torch.empty(len(strata), dtype=torch.float64)
    found[order] = (rank + torch.rand(len(strata), dtype=torch.float64, generator=generator)) / counts[own]
    return found
