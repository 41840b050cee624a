"""Lemma 7: what the Taylor form costs in loss, measured on a linear network, beside its bound."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from noiseproof.data import Dataset
from noiseproof.methods.inputs.functional import Embedding
from noiseproof.methods.inputs.layers import error_bound
from noiseproof.methods.inputs.quadratic import solve

_ITERATIONS = 200
_RIDGE = 1e-3
"""Of each record's share, so that both losses have their minimum at a finite place."""


@dataclass(frozen=True)
class Lemma7:
    """Mean exact losses of the two minimisers, and how far their logits go."""

    records: int
    exact: float
    """At the minimiser of the exact loss."""
    taylor: float
    """At the minimiser of the Taylor form."""
    bound: float
    largest: float
    """The largest logit of the exact minimiser; the lemma's proof looks at logits between -1 and 1."""

    @property
    def error(self) -> float:
        """What the Taylor form costs."""
        return self.taylor - self.exact


def measure(dataset: Dataset, records: int) -> Lemma7:
    """Fit both losses without noise to at most so many records, on features of norm 1."""
    part = dataset.take(torch.arange(min(records, len(dataset))))
    features = Embedding(part.public.shape, "raw")(part.features).double()
    targets = functional.one_hot(part.labels, part.classes).double()
    ridge = _RIDGE * len(part)
    taylor = solve(features.T @ features, (targets - 0.5).T @ features, 4 * ridge)
    weights = taylor.clone(memory_format=torch.contiguous_format).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=_ITERATIONS, history_size=20, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def loss(at: torch.Tensor) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(features @ at, targets, reduction="sum")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(weights) + ridge / 2 * weights.square().sum()
        value.backward()
        return value

    optimizer.step(closure)
    with torch.no_grad():
        return Lemma7(
            len(part),
            float(loss(weights)) / len(part),
            float(loss(taylor)) / len(part),
            error_bound(part.classes),
            float((features @ weights).abs().max()),
        )
