"""Private relevances: the average over all records, with Laplace noise (Phan et al., eqs 10 to 12)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import nn

from noiseproof.errors import DataError, SettingError
from noiseproof.guarantees import Laplace, Randomness
from noiseproof.inputs.relevance import STABILISER, Start, relevances

Normalised = Literal["min-max", "magnitude"]
"""`min-max`: (R - least) / (most - least), the paper's; `magnitude`: |R| over the largest, so that 0 stays 0."""

_ENTRIES = 1 << 22
"""Features whose relevances are in memory at once."""


def normalise(relevance: torch.Tensor, how: Normalised = "min-max") -> torch.Tensor:
    """Each record's relevances in [0, 1], flat and in float64; a record whose relevances are all alike has 0 everywhere."""
    if how not in get_args(Normalised):
        raise SettingError(f"relevances are normalised by {' or '.join(get_args(Normalised))}, not by {how!r}.")
    flat = relevance.flatten(1).double().nan_to_num()
    flat = flat - flat.amin(1, keepdim=True) if how == "min-max" else flat.abs()
    return (flat / flat.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)).clamp(0, 1)


def average(
    module: nn.Module,
    features: torch.Tensor,
    *,
    normalised: Normalised = "min-max",
    start: Start = "predicted",
    stabiliser: float = STABILISER,
    feature_map: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """The records' mean normalised relevance of each feature, flat, in bounded memory. Private: it has no noise yet.

    With a `feature_map` the relevances are those of the mapped features, which the network then reads.
    """
    if not len(features):
        raise DataError("there is no record to average relevances over.")
    # A convolution's units take some hundred times the memory of its input.
    rows = max(1, min(1024, _ENTRIES // features[0].numel() // 16))
    total: torch.Tensor | None = None
    for first in range(0, len(features), rows):
        part = slice(first, first + rows)
        begin = start[part] if isinstance(start, torch.Tensor) else start
        inputs = features[part] if feature_map is None else feature_map(features[part])
        found = normalise(relevances(module, inputs, start=begin, stabiliser=stabiliser), normalised).sum(0)
        total = found if total is None else total + found
    assert total is not None
    return total / len(features)


@dataclass(frozen=True, eq=False)
class PrivateRelevance:
    """Relevances with noise, and what releasing them cost."""

    values: torch.Tensor
    claimed: float
    """epsilon_1: what the paper says it costs."""
    proven: float
    """What it costs if the network was public, under replace-one as under add-or-remove."""


def release_relevance(mean: torch.Tensor, records: int, epsilon: float, rng: Randomness) -> PrivateRelevance:
    """The mean relevances plus Lap(2d / (|D| epsilon)) on each.

    Formal guarantee
    ----------------
    epsilon-DP, and in fact epsilon / 2: each record's relevances lie in [0, 1], so that one record moves their mean over
    |D| by at most d / |D| in L1 norm, half of what lemma 1 allows for. Unit: record. Neighbours: replace-one; or
    add-or-remove, with |D| a public constant. Assumption: *the network that the relevances are of does not depend on the
    records, or its own cost is added*. Reference: Phan et al. 2017, lemmas 1 and 2.
    """
    width = mean.numel()
    mechanism = Laplace(2 * width / records, epsilon)
    scale = mechanism.scale(rng, width)
    proven = (width / records + rng.rounding(scale, width, 1)) / scale
    return PrivateRelevance(mechanism.release(mean.cpu(), rng), epsilon, proven)
