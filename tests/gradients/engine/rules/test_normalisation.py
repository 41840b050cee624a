"""Layers that normalise each record by itself have the gradients of single-record autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

SMALL = st.integers(1, 4)


@given(
    records=st.integers(1, 4),
    middle=st.lists(SMALL, max_size=2),
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
    records=st.integers(1, 4), groups=st.integers(1, 3), per_group=SMALL, places=st.lists(st.integers(2, 4), max_size=3)
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
