"""Contributions to one parameter add up, in blocks and as wholes, written out or not."""

from __future__ import annotations

import pytest
import torch

from noiseproof.engine import contributions
from noiseproof.engine.contributions import (
    Blocks,
    Contribution,
    Explicit,
    Factor,
    OuterProducts,
    Sums,
    squared_lengths,
)


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


def factors(positions: int, *, time_major: bool) -> tuple[Factor, Factor]:
    generator = torch.Generator().manual_seed(positions)
    pair = [torch.randn(4, positions, width, dtype=torch.float64, generator=generator) for width in (3, 6)]
    if time_major:
        pair = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in pair]
    return Factor(pair[0]), Factor(pair[1])


@pytest.mark.parametrize("bytes_kept", [1, 10**9])
@pytest.mark.parametrize("pass_cost", [0, 10**9], ids=["written out", "gram"])
@pytest.mark.parametrize("positions", [1, 2, 9])
@pytest.mark.parametrize("time_major", [True, False])
def test_outer_products_do_not_depend_on_whether_they_are_written_out(
    monkeypatch, bytes_kept, pass_cost, positions, time_major
):
    monkeypatch.setattr(contributions, "KEPT_BYTES", bytes_kept)
    monkeypatch.setattr(contributions, "PIECE_BYTES", bytes_kept)
    monkeypatch.setattr(contributions, "PASS_COST", pass_cost)
    errors, activations = factors(positions, time_major=time_major)
    wanted = torch.einsum("bto,bti->boi", errors.vectors, activations.vectors)
    rows = wanted.flatten(1)
    weights = torch.linspace(0.5, 2, 4, dtype=torch.float64)
    vector = torch.linspace(-1, 1, 18, dtype=torch.float64).view(3, 6)
    found = OuterProducts(errors, activations)
    for _ in range(2):
        torch.testing.assert_close(found.inner(vector), rows @ vector.flatten())
        torch.testing.assert_close(found.weighted_sum(weights).flatten(), weights @ rows)
        torch.testing.assert_close(found.gram(), rows @ rows.T)
        torch.testing.assert_close(found.squared_norms(), rows.square().sum(1))
        torch.testing.assert_close(found.explicit(), wanted)


def test_another_use_adds_positions():
    first, second = OuterProducts(*factors(2, time_major=False)), OuterProducts(*factors(1, time_major=False))
    both = first.plus([second])
    assert isinstance(both, OuterProducts)
    torch.testing.assert_close(both.explicit(), first.explicit() + second.explicit())


def test_sums_over_positions():
    errors, _ = factors(3, time_major=True)
    rows = errors.vectors.sum(1)
    torch.testing.assert_close(Sums(errors).explicit(), rows)
    torch.testing.assert_close(Sums(errors).squared_norms(), rows.square().sum(1))
