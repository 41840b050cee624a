"""Contributions to one parameter add up, in blocks and as wholes."""

from __future__ import annotations

import pytest
import torch

from noiseproof.engine.contributions import Blocks, Contribution, Explicit, squared_lengths


def rows_of(contribution: Contribution) -> torch.Tensor:
    return contribution.explicit().flatten(1)


def block(start: int, stop: int, seed: int) -> Blocks:
    generator = torch.Generator().manual_seed(seed)
    part = torch.randn(4, stop - start, 2, dtype=torch.float64, generator=generator)
    return Blocks([(slice(start, stop), Explicit(part))], torch.Size((6, 2)))


@pytest.mark.parametrize("second", [(2, 4), (0, 2), (1, 3), (4, 6)], ids=["beside", "the same", "overlapping", "apart"])
def test_blocks_add_up(second):
    left, right = block(0, 2, 0), block(*second, 1)
    both = left.plus([right])
    expected = rows_of(left) + rows_of(right)
    weights = torch.linspace(0.5, 2, 4, dtype=torch.float64)
    vector = torch.linspace(-1, 1, 12, dtype=torch.float64).view(6, 2)
    torch.testing.assert_close(rows_of(both), expected)
    torch.testing.assert_close(both.squared_norms(), expected.square().sum(1))
    torch.testing.assert_close(both.weighted_sum(weights).flatten(), weights @ expected)
    torch.testing.assert_close(both.inner(vector), expected @ vector.flatten())
    torch.testing.assert_close(both.gram(), expected @ expected.T)
    some = torch.tensor([2, 0])
    torch.testing.assert_close(rows_of(both.only(some)), expected[some])


def test_a_block_and_a_whole_add_up():
    whole = Explicit(torch.ones(4, 6, 2, dtype=torch.float64))
    part = block(1, 3, 2)
    for both in (part.plus([whole]), whole.plus([part])):
        torch.testing.assert_close(rows_of(both), rows_of(part) + 1)


@pytest.mark.parametrize("columns", [1, 4096, 4097, 100_000, 400_000, 3_000_000])
@pytest.mark.parametrize("value", [0.1, 0.7, 1.3])
def test_rounding_does_not_shorten_long_rows(columns, value):
    # Equal numbers round the same way in every partial sum, which is the worst case.
    rows = torch.full((2, columns), value)
    exact = columns * float(rows[0, 0]) ** 2
    assert (squared_lengths(rows).double() / exact).sqrt() == pytest.approx([1, 1], abs=5e-6)
