"""Linear layers have the gradients of single-record autograd, with any dimensions between records and features."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

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
def test_gradients_are_those_of_single_records(agree, records, middle, columns, rows, bias, double):
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
