"""Linear layers: the weight's gradient is a sum of outer products over positions, the bias's a sum of errors."""

from __future__ import annotations

import torch
from torch import nn

from noiseproof.gradients.engine.contribution import Blocks, Contribution
from noiseproof.gradients.engine.outer_products import Factor, OuterProducts, Sums
from noiseproof.gradients.engine.rules.rule import PairRule, matched, records_first
from noiseproof.gradients.engine.tape import Contributions, Settle


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
