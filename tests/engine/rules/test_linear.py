"""Embeddings: positions that look up the same row add up, within a record."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn


@given(
    records=st.integers(1, 5),
    positions=st.lists(st.integers(1, 4), max_size=2),
    rows=st.integers(2, 6),
    width=st.integers(1, 4),
    padding=st.one_of(st.none(), st.integers(0, 1)),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_gradients_are_those_of_single_records(agree, records, positions, rows, width, padding):
    torch.manual_seed(rows)
    agree(nn.Embedding(rows, width, padding_idx=padding), torch.randint(0, rows, (records, *positions)))


def test_a_table_used_twice_adds_up(agree):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, left, right):
            return torch.cat([self.table(left), 2 * self.table(right)], dim=1)

    torch.manual_seed(0)
    agree(Twice(), torch.randint(0, 5, (4, 3)), torch.randint(0, 5, (4, 2)))


# Linear layers have the gradients of single-record autograd, with any dimensions between records and features.


SMALL = st.integers(1, 5)


@given(
    records=st.integers(1, 6),
    middle=st.lists(SMALL, max_size=3),
    columns=SMALL,
    rows=SMALL,
    bias=st.booleans(),
    double=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_gradients_are_those_of_single_records_of_linear(agree, records, middle, columns, rows, bias, double):
    torch.manual_seed(records + 10 * columns)
    module = nn.Linear(columns, rows, bias=bias)
    agree(module, torch.randn(records, *middle, columns), dtype=torch.float64 if double else torch.float32)


@pytest.mark.parametrize("positions", [2, 40])
@pytest.mark.parametrize("width", [3, 60])
def test_gram_over_positions_and_written_out_gradients_give_the_same(agree, positions, width):
    torch.manual_seed(0)
    agree(nn.Linear(width, width + 1), torch.randn(4, positions, width))


def test_inputs_need_not_be_contiguous(agree):
    torch.manual_seed(0)
    agree(nn.Linear(4, 3), torch.randn(5, 4, 7).transpose(1, 2))
    agree(nn.Linear(4, 3), torch.randn(5, 8)[:, ::2])
    agree(nn.Linear(4, 3), torch.randn(1, 4).expand(5, 4))


# Layers that normalise each record by itself have the gradients of single-record autograd.


NORMALISATION_SMALL = st.integers(1, 4)


@given(
    records=st.integers(1, 4),
    middle=st.lists(NORMALISATION_SMALL, max_size=2),
    shape=st.lists(st.integers(2, 4), min_size=1, max_size=2),
    root_mean_square=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_over_features(agree, records, middle, shape, root_mean_square):
    torch.manual_seed(0)
    module = nn.RMSNorm(shape) if root_mean_square else nn.LayerNorm(shape)
    agree(module, torch.randn(records, *middle, *shape))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm_without_bias(agree, bias):
    agree(nn.LayerNorm(5, bias=bias), torch.linspace(-1, 1, 30).view(2, 3, 5))


@given(
    records=st.integers(1, 4),
    groups=st.integers(1, 3),
    per_group=NORMALISATION_SMALL,
    places=st.lists(st.integers(2, 4), max_size=3),
)
@settings(deadline=None, derandomize=True, max_examples=40)
def test_over_groups_of_channels(agree, records, groups, per_group, places):
    torch.manual_seed(0)
    # One value a group would be normalised to nothing.
    agree(nn.GroupNorm(groups, groups * (per_group + 1)), torch.randn(records, groups * (per_group + 1), *places))


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.InstanceNorm1d, (6,)), (nn.InstanceNorm2d, (3, 4)), (nn.InstanceNorm3d, (2, 3, 2))]
)
def test_over_places(agree, layer, shape):
    torch.manual_seed(0)
    agree(layer(3, affine=True), torch.randn(4, 3, *shape))
