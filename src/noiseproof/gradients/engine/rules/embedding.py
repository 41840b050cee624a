"""Embeddings: a record's gradient has the errors of its positions in the rows that they looked up."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from noiseproof.gradients.engine.contribution import Contribution
from noiseproof.gradients.engine.room import in_pieces
from noiseproof.gradients.engine.rules.rule import PairRule, matched
from noiseproof.gradients.engine.tape import Contributions, Settle


class Lookups(Contribution):
    """Row `index[i, t]` of g_i gets the error e_it; errors (B, T, D), indices (B, T)."""

    def __init__(self, errors: torch.Tensor, indices: torch.Tensor, rows: int) -> None:
        self._errors, self._indices, self._rows = errors, indices, rows

    def explicit(self) -> torch.Tensor:
        """The gradients themselves, (B, rows, D)."""
        records, _, width = self._errors.shape
        gradients = self._errors.new_zeros(records, self._rows, width)
        return gradients.scatter_add_(1, self._indices.unsqueeze(2).expand_as(self._errors), self._errors)

    def squared_norms(self) -> torch.Tensor:
        """||g_i||^2, (B,): inner products of errors at positions that looked up the same row."""
        same = self._indices.unsqueeze(2) == self._indices.unsqueeze(1)
        return (torch.bmm(self._errors, self._errors.transpose(1, 2)) * same).sum((1, 2))

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """sum_i w_i g_i, (rows, D)."""
        errors = self._errors * weights[:, None, None]
        total = errors.new_zeros(self._rows, errors.shape[-1])
        return total.index_add_(0, self._indices.reshape(-1), errors.reshape(-1, errors.shape[-1]))

    def inner(self, vector: torch.Tensor) -> torch.Tensor:
        """<g_i, v>, (B,)."""
        return (self._errors * vector[self._indices]).sum((1, 2))

    def gram(self) -> torch.Tensor:
        """<g_i, g_k>, (B, B), a block of records at a time."""
        records, positions, width = self._errors.shape
        errors, indices = self._errors.reshape(-1, width), self._indices.reshape(-1)
        total = errors.new_zeros(records, records)
        step = in_pieces(errors.element_size() * records * positions**2)
        for start in range(0, records, step):
            some = slice(start * positions, (start + step) * positions)
            products = (errors[some] @ errors.T) * (indices[some, None] == indices)
            total[start : start + step] = products.view(-1, positions, records, positions).sum((1, 3))
        return total

    def only(self, records: torch.Tensor) -> Contribution:
        """The gradients of some records, by index."""
        return Lookups(self._errors[records], self._indices[records], self._rows)

    def plus(self, others: Sequence[Contribution]) -> Contribution:
        """The sum with other uses of the same table: their positions are further positions."""
        uses = [self, *(other for other in others if isinstance(other, Lookups))]
        if len(uses) <= len(others):
            return super().plus(others)
        return Lookups(
            torch.cat([use._errors for use in uses], dim=1),
            torch.cat([use._indices for use in uses], dim=1),
            self._rows,
        )


class EmbeddingRule(PairRule):
    """`nn.Embedding`; the padding row gets no gradient."""

    module: nn.Embedding

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""
        weight, padding = self.module.weight, self.module.padding_idx

        def settle(error: torch.Tensor) -> Contributions:
            indices = activation.movedim(self.record_dim, 0).long()
            errors = matched(error, weight.dtype).movedim(self.record_dim, 0)
            indices = indices.reshape(indices.shape[0], -1)
            errors = errors.reshape(*indices.shape, -1)
            if padding is not None:
                errors = errors.masked_fill((indices == padding).unsqueeze(2), 0.0)
            return [(weight, Lookups(errors, indices, weight.shape[0]))]

        return settle
