"""Sums of outer products do not depend on whether they are written out."""

from __future__ import annotations

import pytest
import torch

from noiseproof.engine import contributions, outer_products
from noiseproof.engine.outer_products import Factor, OuterProducts, Sums


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
def test_all_ways_agree(monkeypatch, bytes_kept, pass_cost, positions, time_major):
    monkeypatch.setattr(contributions, "KEPT_BYTES", bytes_kept)
    monkeypatch.setattr(contributions, "PIECE_BYTES", bytes_kept)
    monkeypatch.setattr(outer_products, "PASS_COST", pass_cost)
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
