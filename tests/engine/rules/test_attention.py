"""Multi-head attention has torch's own outputs and the gradients of single-record autograd, in all its options."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from noiseproof.engine import PerRecordGradients


class Attending(nn.Module):
    """Outputs and attention weights, one row a record, from one to three records-first sequences."""

    def __init__(self, layer: nn.MultiheadAttention, **options: object) -> None:
        super().__init__()
        self.layer, self.options = layer, options

    def forward(self, *sequences: torch.Tensor) -> torch.Tensor:
        if not self.layer.batch_first:
            sequences = tuple(sequence.transpose(0, 1) for sequence in sequences)
        query = sequences[0]
        key = sequences[1] if len(sequences) > 1 else query
        value = sequences[2] if len(sequences) > 2 else key
        output, weights = self.layer(query, key, value, **self.options)
        output = output if self.layer.batch_first else output.transpose(0, 1)
        return output.flatten(1) if weights is None else torch.cat([output.flatten(1), weights.flatten(1)], dim=1)


@given(
    records=st.integers(1, 4),
    sequences=st.integers(1, 3),
    heads=st.integers(1, 2),
    bias=st.booleans(),
    extra_bias=st.booleans(),
    zero=st.booleans(),
    other_widths=st.booleans(),
    batch_first=st.booleans(),
    weights=st.booleans(),
    averaged=st.booleans(),
    masked=st.sampled_from([None, "additive", "boolean"]),
)
@settings(deadline=None, derandomize=True, max_examples=80)
def test_gradients_are_those_of_single_records(
    agree, records, sequences, heads, bias, extra_bias, zero, other_widths, batch_first, weights, averaged, masked
):
    torch.manual_seed(records)
    other = {"kdim": 3, "vdim": 5} if other_widths and sequences == 3 else {}
    layer = nn.MultiheadAttention(
        4, heads, bias=bias, add_bias_kv=extra_bias, add_zero_attn=zero, batch_first=batch_first, **other
    )
    shapes = [(records, 3, 4), (records, 5, other.get("kdim", 4)), (records, 5, other.get("vdim", 4))]
    sources = 3 if sequences == 1 else 5
    mask = None
    if masked is not None:
        mask = torch.ones(3, sources, dtype=torch.bool).triu(1)
        mask = mask if masked == "boolean" else torch.zeros(3, sources).masked_fill(mask, -2.0).double()
    module = Attending(layer, need_weights=weights, average_attn_weights=averaged, attn_mask=mask)
    agree(module, *(torch.randn(shape) for shape in shapes[:sequences]))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_masks_of_single_records_and_heads(weights, batch_first):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, batch_first=batch_first, add_bias_kv=True).double()
    inputs = torch.randn(3, 5, 4, dtype=torch.float64)
    padding = torch.zeros(3, 5, dtype=torch.float64)
    padding[torch.arange(5) >= torch.tensor([5, 3, 2])[:, None]] = -torch.inf
    mask = torch.randn(6, 5, 5, dtype=torch.float64)
    module = Attending(layer, need_weights=weights, key_padding_mask=padding, attn_mask=mask)
    expected = torch.autograd.grad(module(inputs).sin().sum(), list(module.parameters()))
    with PerRecordGradients(module) as engine:
        found = engine.backward(module(inputs).sin().sum(1)).weighted_sum(torch.ones(3, dtype=torch.float64))
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_a_causal_hint_changes_nothing_beside_its_mask(agree):
    torch.manual_seed(0)
    mask = nn.Transformer.generate_square_subsequent_mask(5).double()
    module = Attending(nn.MultiheadAttention(4, 2), need_weights=False, attn_mask=mask, is_causal=True)
    agree(module, torch.randn(3, 5, 4))


def test_one_sequence_without_a_record_dimension_is_one_record():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2).double()
    inputs = torch.randn(5, 4, dtype=torch.float64)
    expected = torch.autograd.grad(layer(inputs, inputs, inputs)[0].sin().sum(), list(layer.parameters()))
    with PerRecordGradients(layer) as engine:
        output, weights = layer(inputs, inputs, inputs)
        batch = engine.backward(output.sin().sum().unsqueeze(0))
    assert output.shape == (5, 4)
    assert weights.shape == (5, 5)
    for ours, torchs in zip(batch.materialise(), expected, strict=True):
        torch.testing.assert_close(ours[0], torchs)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("length", [4, 6])  # as many positions as records, and not
def test_transformers_in_both_layouts(agree, batch_first, length):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Transformer(4, 2, 1, 1, 8, dropout=0.0, batch_first=batch_first)

        def forward(self, source, target):
            if batch_first:
                return self.inside(source, target)
            return self.inside(source.transpose(0, 1), target.transpose(0, 1)).transpose(0, 1)

    torch.manual_seed(0)
    agree(Model(), torch.randn(4, length, 4), torch.randn(4, 3, 4))


def test_dropout_is_drawn_once():
    torch.manual_seed(0)
    module = Attending(nn.MultiheadAttention(4, 2, dropout=0.5, batch_first=True), need_weights=True).double()
    inputs = torch.randn(3, 5, 4, dtype=torch.float64)
    with PerRecordGradients(module) as engine:
        torch.manual_seed(1)
        found = engine.backward(module(inputs).sum(1)).weighted_sum(torch.ones(3, dtype=torch.float64))
        torch.manual_seed(1)
        module(inputs).sum().backward()
    for gradient, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)
