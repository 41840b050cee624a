"""Multi-head attention: four linear layers around a part without parameters."""

from __future__ import annotations

import inspect
from math import sqrt
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine.contributions import Explicit
from noiseproof.engine.rules.linear import settle_linear
from noiseproof.engine.rules.rule import InterceptRule
from noiseproof.engine.tape import Contributions

_SIGNATURE = inspect.signature(F.multi_head_attention_forward)


class AttentionRule(InterceptRule):
    """`nn.MultiheadAttention`, to oneself or to others, with masks, dropout and the options it was built with."""

    module: nn.MultiheadAttention
    functions = (F.multi_head_attention_forward,)

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
        if self.module.bias_k is not None and self.module.bias_v is not None:
            keys, values = self._append(keys, self.module.bias_k), self._append(values, self.module.bias_v)
            mask, padding = _one_more(mask), _one_more(padding)
        heads, (length, records, width) = self.module.num_heads, queries.shape
        queries, keys, values = (
            part.reshape(len(part), records, heads, width // heads).permute(1, 2, 0, 3)
            for part in (queries, keys, values)
        )
        if self.module.add_zero_attn:
            keys, values = F.pad(keys, (0, 0, 0, 1)), F.pad(values, (0, 0, 0, 1))
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
            weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropout)
            attended = weights @ values
            weights = weights.mean(1) if option["average_attn_weights"] else weights
        else:
            attended = F.scaled_dot_product_attention(queries, keys, values, mask, dropout)
        joined = attended.permute(2, 0, 1, 3).reshape(length, records, width)
        output = self._linear(joined, self.module.out_proj.weight, self.module.out_proj.bias)
        if alone:
            return output.squeeze(1), None if weights is None else weights.squeeze(0)
        return output, weights

    def _project(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        layer = self.module
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
        """A linear map at (length, records) positions, captured; by only some rows of the parameters, if given."""
        output = F.linear(
            inputs,
            weight if weight_rows is None else weight[weight_rows],
            bias if bias is None or bias_rows is None else bias[bias_rows],
        )
        activation = inputs.detach()
        settle = settle_linear(activation, weight, bias, 1, weight_rows=weight_rows, bias_rows=bias_rows)
        self.tape.attach((output,), self.path, settle, inputs=(inputs,), keep=(activation,), record_dim=1)
        return output

    def _append(self, sequence: torch.Tensor, extra: torch.Tensor) -> torch.Tensor:
        """`sequence` with one more position, which is the same parameter for every record."""
        added = extra.expand(1, sequence.shape[1], -1)

        def settle(error: torch.Tensor) -> Contributions:
            return [(extra, Explicit(error.movedim(1, 0).unsqueeze(1)))]

        self.tape.attach((added,), self.path, settle, inputs=(), record_dim=1)
        return torch.cat([sequence, added])


def _one_more(mask: torch.Tensor | None) -> torch.Tensor | None:
    """A mask that lets the position appended to the keys be seen."""
    return None if mask is None else F.pad(mask, (0, 1))
