"""Embeddings: positions that look up the same row add up, within a record."""

from __future__ import annotations

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
