"""Layers whose weights act on vectors: linear, embeddings, scales of layers that normalise each record, attention."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from noiseproof.engine.contributions import Blocks, Contribution, Factor, OuterProducts, SparseRows, Sums, widened
from noiseproof.engine.graph import Contributions
from noiseproof.engine.rules.rule import InterceptRule, LayerRule, register_rule


def linear_contributions(
    inputs: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    record_dim: int,
    weight_rows: slice | None,
    bias_rows: slice | None,
    errors: torch.Tensor,
) -> Contributions:
    """Those of y = W x + b at every position of `inputs`, where only some rows of W or b may be in use."""
    parts = (widened(part, weight.dtype) for part in (errors, inputs))
    outer, inner = (Factor(part.movedim(record_dim, 0) if record_dim else part) for part in parts)
    found: Contributions = []
    if weight.requires_grad:
        found.append((weight, _placed(OuterProducts(outer, inner), weight, weight_rows)))
    if bias is not None and bias.requires_grad:
        found.append((bias, _placed(Sums(outer), bias, bias_rows)))
    return found


def _placed(part: Contribution, parameter: torch.Tensor, rows: slice | None) -> Contribution:
    return part if rows is None else Blocks([(rows, part)], parameter.shape)


@register_rule(nn.Linear, NonDynamicallyQuantizableLinear)
class LinearRule(LayerRule):
    """`nn.Linear`, with any number of dimensions between the records and the features."""

    layer: nn.Linear
    names = ("weight", "bias")

    def contributions(self, inputs: torch.Tensor, errors: torch.Tensor) -> Contributions:
        """Outer products for the weight, sums for the bias."""
        return linear_contributions(inputs, self.layer.weight, self.layer.bias, self.record_dim, None, None, errors)


@register_rule(nn.Embedding)
class EmbeddingRule(LayerRule):
    """`nn.Embedding`: a record has the errors of its positions in the rows that they looked up, but for the padding's."""

    layer: nn.Embedding
    names = ("weight",)

    def contributions(self, inputs: torch.Tensor, errors: torch.Tensor) -> Contributions:
        """The rows that are not zero."""
        weight, padding = self.layer.weight, self.layer.padding_idx
        indices = inputs.movedim(self.record_dim, 0).long().flatten()
        values = widened(errors, weight.dtype).movedim(self.record_dim, 0).reshape(len(indices), -1)
        records = inputs.shape[self.record_dim]
        owners = torch.arange(records, device=indices.device).repeat_interleave(len(indices) // max(1, records))
        if padding is not None:
            values = values.masked_fill((indices == padding).unsqueeze(1), 0.0)
        return [(weight, SparseRows(values, owners, indices, records, weight.shape))]


class _ScaleRule(LayerRule):
    """y = w x^ + b, where x^ is the record's own input, normalised."""

    names = ("weight", "bias")

    @abstractmethod
    def normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """The inputs without scale and shift."""

    @abstractmethod
    def reduced(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over what one entry of the weight was applied to; records come first."""

    def contributions(self, inputs: torch.Tensor, errors: torch.Tensor) -> Contributions:
        """Written out, since weights are small."""
        found: Contributions = []
        for name in self.names:
            parameter = getattr(self.layer, name, None)
            if isinstance(parameter, nn.Parameter) and parameter.requires_grad:
                values = errors * self.normalised(inputs) if name == "weight" else errors
                gradients = self.reduced(widened(values, parameter.dtype).movedim(self.record_dim, 0))
                found.append((parameter, gradients.reshape(-1, *parameter.shape)))
        return found


@register_rule(nn.LayerNorm, nn.RMSNorm)
class LayerNormRule(_ScaleRule):
    """`nn.LayerNorm` and `nn.RMSNorm`: one weight a feature, used at every position."""

    layer: nn.LayerNorm | nn.RMSNorm

    def normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """By each position's own moments."""
        shape = list(self.layer.normalized_shape)
        if isinstance(self.layer, nn.RMSNorm):
            return functional.rms_norm(inputs, shape, None, self.layer.eps)
        return functional.layer_norm(inputs, shape, None, None, self.layer.eps)

    def reduced(self, values: torch.Tensor) -> torch.Tensor:
        """Over positions."""
        positions = tuple(range(1, values.dim() - len(self.layer.normalized_shape)))
        return values.sum(positions) if positions else values


@register_rule(nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class ChannelNormRule(_ScaleRule):
    """`nn.GroupNorm` and `nn.InstanceNorm`: one weight a channel, used at every place."""

    layer: nn.GroupNorm

    def normalised(self, inputs: torch.Tensor) -> torch.Tensor:
        """By the moments of each group of channels."""
        groups = self.layer.num_groups if isinstance(self.layer, nn.GroupNorm) else inputs.shape[1]
        return functional.group_norm(inputs, groups, None, None, self.layer.eps)

    def reduced(self, values: torch.Tensor) -> torch.Tensor:
        """Over places."""
        return values.flatten(2).sum(2) if values.dim() > 2 else values


_SIGNATURE = inspect.signature(functional.multi_head_attention_forward)


@register_rule(nn.MultiheadAttention)
class AttentionRule(InterceptRule):
    """`nn.MultiheadAttention`, to oneself or to others, with masks, dropout and the options it was built with."""

    layer: nn.MultiheadAttention
    functions = (functional.multi_head_attention_forward,)

    @classmethod
    def suits(cls, layer: nn.Module) -> bool:
        """Not with a reparametrised output, which is a layer of its own inside."""
        return super().suits(layer) and not hasattr(layer.out_proj, "parametrizations")

    def replacement(self, function: Any, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What is run in place of `multi_head_attention_forward`; its arguments are sequence-first."""
        given = _SIGNATURE.bind(*args, **kwargs)
        given.apply_defaults()
        option = given.arguments
        query, key, value = option["query"], option["key"], option["value"]
        alone = query.dim() == 2
        if alone:
            same, shared = key is query, value is key
            query = query.unsqueeze(1)
            key = query if same else key.unsqueeze(1)
            value = key if shared else value.unsqueeze(1)
        queries, keys, values = self._project(query, key, value)
        mask = option["attn_mask"]
        padding = option["key_padding_mask"]
        if padding is not None and alone:
            padding = padding.unsqueeze(0)
        if self.layer.bias_k is not None and self.layer.bias_v is not None:
            keys, values = self._append(keys, self.layer.bias_k), self._append(values, self.layer.bias_v)
            mask, padding = _one_more(mask), _one_more(padding)
        heads, (length, records, width) = self.layer.num_heads, queries.shape
        queries, keys, values = (
            part.reshape(len(part), records, heads, width // heads).permute(1, 2, 0, 3)
            for part in (queries, keys, values)
        )
        if self.layer.add_zero_attn:
            keys, values = functional.pad(keys, (0, 0, 0, 1)), functional.pad(values, (0, 0, 0, 1))
            mask, padding = _one_more(mask), _one_more(padding)
        if mask is not None and mask.dim() == 3:
            mask = mask.view(records, heads, *mask.shape[1:])
        if padding is not None:
            padding = padding[:, None, None, :]
            mask = padding if mask is None else mask + padding
        dropout = option["dropout_p"] if option["training"] else 0.0
        weights: torch.Tensor | None = None
        if option["need_weights"]:
            scores = (queries / sqrt(queries.shape[-1])) @ keys.transpose(2, 3)
            weights = functional.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropout)
            attended = weights @ values
            weights = weights.mean(1) if option["average_attn_weights"] else weights
        else:
            attended = functional.scaled_dot_product_attention(queries, keys, values, mask, dropout)
        joined = attended.permute(2, 0, 1, 3).reshape(length, records, width)
        output = self._linear(joined, self.layer.out_proj.weight, self.layer.out_proj.bias)
        if alone:
            return output.squeeze(1), None if weights is None else weights.squeeze(0)
        return output, weights

    def _project(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        layer = self.layer
        packed: torch.Tensor | None = layer.in_proj_weight
        width, bias = layer.embed_dim, layer.in_proj_bias
        if packed is not None and query is key and key is value:
            queries, keys, values = self._linear(query, packed, bias).chunk(3, dim=-1)
            return queries, keys, values
        separate = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        projected = []
        for place, inputs in enumerate((query, key, value)):
            rows = slice(place * width, (place + 1) * width)
            if packed is not None:
                projected.append(self._linear(inputs, packed, bias, rows, rows))
            else:
                projected.append(self._linear(inputs, separate[place], bias, None, rows))
        return projected[0], projected[1], projected[2]

    def _linear(
        self,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        weight_rows: slice | None = None,
        bias_rows: slice | None = None,
    ) -> torch.Tensor:
        """A linear map at (length, records) positions, recorded; by only some rows of the parameters, if given."""
        output = functional.linear(
            inputs,
            weight if weight_rows is None else weight[weight_rows],
            bias if bias is None or bias_rows is None else bias[bias_rows],
        )
        given = inputs.detach()
        contributions = partial(linear_contributions, given, weight, bias, 1, weight_rows, bias_rows)
        self.recorder.record((output,), self.path, contributions, inputs=(inputs,), keep=(given,), record_dim=1)
        return output

    def _append(self, sequence: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        """`sequence` with one more position, which is the same parameter for every record."""
        added = extra.expand(1, sequence.shape[1], -1)

        def contributions(error: torch.Tensor) -> Contributions:
            return [(extra, error.movedim(1, 0).unsqueeze(1))]

        self.recorder.record((added,), self.path, contributions, inputs=(), record_dim=1)
        return torch.cat([sequence, added])


def _one_more(mask: torch.Tensor | None) -> torch.Tensor | None:
    """A mask that lets the position appended to the keys be seen."""
    return None if mask is None else functional.pad(mask, (0, 1))
