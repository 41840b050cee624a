"""Linear layers: the weight's gradient is a sum of outer products over positions, the bias's a sum of errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine.contributions import Blocks, Contribution, Explicit, in_pieces
from noiseproof.engine.outer_products import Factor, OuterProducts, Sums
from noiseproof.engine.rules.rule import PairRule, matched, records_first
from noiseproof.engine.tape import Contributions, Settle


def settle_linear(
    activation: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    record_dim: int = 0,
    *,
    weight_rows: slice | None = None,
    bias_rows: slice | None = None,
) -> Settle:
    """Contributions of y = W x + b at the positions of `activation`, where only some rows of W or b may be in use."""

    def settle(error: torch.Tensor) -> Contributions:
        errors = Factor(records_first(matched(error, weight.dtype), record_dim))
        activations = Factor(records_first(matched(activation, weight.dtype), record_dim))
        found: Contributions = []
        if weight.requires_grad:
            found.append((weight, _placed(OuterProducts(errors, activations), weight, weight_rows)))
        if bias is not None and bias.requires_grad:
            found.append((bias, _placed(Sums(errors), bias, bias_rows)))
        return found

    return settle


def _placed(part: Contribution, parameter: torch.Tensor, rows: slice | None) -> Contribution:
    return part if rows is None else Blocks([(rows, part)], parameter.shape)


class LinearRule(PairRule):
    """`nn.Linear`, with any number of dimensions between the records and the features."""

    module: nn.Linear

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""
        return settle_linear(activation, self.module.weight, self.module.bias, self.record_dim)


# Embeddings: a record's gradient has the errors of its positions in the rows that they looked up.


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


# Layers that normalise each record by itself, then scale and shift: every entry of the weight acts at many places.


def _settle_affine(
    module: nn.Module,
    normalised: Callable[[], torch.Tensor],
    reduce: Callable[[torch.Tensor], torch.Tensor],
    record_dim: int,
) -> Settle:
    """Contributions of y = w x^ + b, where `reduce` sums what one entry of w was applied to (records come first)."""

    def settle(error: torch.Tensor) -> Contributions:
        found: Contributions = []
        weight, bias = module.weight, getattr(module, "bias", None)
        for parameter, values in ((weight, lambda: error * normalised()), (bias, lambda: error)):
            if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                gradients = reduce(matched(values(), parameter.dtype).movedim(record_dim, 0))
                found.append((parameter, Explicit(gradients.reshape(-1, *parameter.shape))))
        return found

    return settle


class LayerNormRule(PairRule):
    """`nn.LayerNorm` and `nn.RMSNorm`: one weight a feature, used at every position."""

    module: nn.LayerNorm | nn.RMSNorm

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""
        layer = self.module
        shape = list(layer.normalized_shape)

        def normalised() -> torch.Tensor:
            if isinstance(layer, nn.RMSNorm):
                return F.rms_norm(activation, shape, None, layer.eps)
            return F.layer_norm(activation, shape, None, None, layer.eps)

        def over_positions(values: torch.Tensor) -> torch.Tensor:
            positions = tuple(range(1, values.dim() - len(shape)))
            return values.sum(positions) if positions else values

        return _settle_affine(layer, normalised, over_positions, self.record_dim)


class ChannelNormRule(PairRule):
    """`nn.GroupNorm` and `nn.InstanceNorm`: one weight a channel, used at every place."""

    module: nn.GroupNorm

    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""
        layer = self.module
        groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else activation.shape[1]

        def over_places(values: torch.Tensor) -> torch.Tensor:
            return values.flatten(2).sum(2) if values.dim() > 2 else values

        return _settle_affine(
            layer, lambda: F.group_norm(activation, groups, None, None, layer.eps), over_places, self.record_dim
        )
