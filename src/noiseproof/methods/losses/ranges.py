"""Counts of ranges of a number's values: halves of its range, halves of these and so on, and what they say of each value."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import torch

_FINER = 1.2
"""How much more a record adds to the range that it lies in than to the one twice as long."""
_SEEN = 1.0
"""A difference between neighbouring numbers' counts is noise up to so many standard deviations."""
_USUAL = 4
"""Where noise is doubted to leave anything, halves are taken to differ by the total over this."""
_HAIR = 1 - 1e-9


@cache
def halves(numbers: int, missing: bool) -> torch.Tensor:
    """What a record in each slot adds to every range, (ranges, slots), its norm 1; the slot for missing values is alone.

    Noise on each value hides halves of the range, which are sums of many values; noise on halves does not, and what they cost
    is a little more noise on single values.

    >>> halves(2, missing=True)
    tensor([[1.0000, 0.0000, 0.0000],
            [0.0000, 1.0000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    depth = max(1, (numbers - 1).bit_length())
    weights = _FINER ** torch.arange(depth, dtype=torch.float64)
    weights /= weights.norm()
    rows: list[torch.Tensor] = []
    parts = [(0, numbers, 0)] if numbers == 1 else [*_split(0, numbers, 0)]
    while parts:
        first, last, level = parts.pop(0)
        row = torch.zeros(numbers + missing, dtype=torch.float64)
        # A value that is alone earlier than others has what these add to their longer ranges and their own together.
        row[first:last] = weights[level] if last - first > 1 else weights[level:].norm()
        rows.append(row)
        parts += _split(first, last, level + 1) if last - first > 1 else ()
    if missing:
        rows.append(torch.eye(numbers + 1, dtype=torch.float64)[-1])
    return _HAIR * torch.stack(rows)


def _split(first: int, last: int, level: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    middle = (first + last) // 2
    return (first, middle, level), (middle, last, level)


def slot_counts(
    noisy: torch.Tensor, adds: torch.Tensor, sigma: float, records: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The counts of single slots that fit noisy ones of ranges best and are `records` together; and their covariance."""
    covariance = torch.linalg.inv(adds.T @ adds) * sigma**2
    found = covariance @ (adds.T @ noisy) / sigma**2
    each = covariance.sum(1)
    return found + each * (records - found.sum()) / each.sum(), covariance - torch.outer(each, each) / each.sum()


def smoothed(
    counts: torch.Tensor, widths: torch.Tensor, covariance: torch.Tensor, *, doubted: bool = False
) -> torch.Tensor:
    """Noisy counts of a number's slots without differences that are likely noise: there, counts are as slots are wide.

    Halves of the range are compared, then halves of these: the part of a difference that noise explains is taken away (a
    non-negative garrote on a tree of Haar's). Where noise is `doubted` to leave anything, as much is taken away as it would
    be of a difference of a quarter of what there is to divide. Slots beyond the numbers', for what is missing, are left alone.
    """
    found, sums, noise = counts.clone(), _sums(counts.double().numpy()), _sums(covariance.double().numpy())
    wide = _sums(widths.double().numpy())
    parts = [(0, len(widths), max(0.0, float(sums[len(widths)])))]
    while parts:
        first, last, total = parts.pop()
        if last - first == 1:
            found[first] = total
            continue
        middle = (first + last) // 2
        share = (wide[middle] - wide[first]) / (wide[last] - wide[first])
        left, right = sums[middle] - sums[first], sums[last] - sums[middle]
        more = (1 - share) * left - share * right
        steps = np.array([share - 1, 1.0, -share])
        ends = [first, middle, last]
        # The differences of sums up to each end, weighed as in `more`.
        spread = steps @ noise[np.ix_(ends, ends)] @ steps
        seen = max(0.0, 1 - _SEEN**2 * spread / more**2) if more else 0.0
        usual = (total / _USUAL) ** 2
        likely = usual / max(usual + spread, 1e-300) if doubted else 1.0
        part = float(min(max(0.0, share * total + more * min(seen, likely)), total))
        parts += [(first, middle, part), (middle, last, total - part)]
    return found


def _sums(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Sums up to each place, from 0, along every axis."""
    for axis in range(values.ndim):
        values = np.insert(values.cumsum(axis), 0, 0.0, axis=axis)
    return values
