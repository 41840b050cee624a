"""Contributions to one parameter add up, in blocks and as wholes, written out or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof.engine import PerRecordGradients, clip_weights, contributions, products
from noiseproof.engine.contributions import Blocks, Contribution, Explicit, squared_lengths
from noiseproof.engine.persons import Owners
from noiseproof.engine.products import Factor, OuterProducts, ScaledRows, SparseRows, Sums


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
    monkeypatch.setattr(products, "PASS_COST", pass_cost)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # by a kernel, and without
def test_shares_of_a_vector_are_rows(dtype):
    generator = torch.Generator().manual_seed(0)
    vectors, shares = (
        torch.randn(4, 3, dtype=dtype, generator=generator),
        torch.randn(9, dtype=dtype, generator=generator),
    )
    owners, rows = (
        torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]),
        torch.tensor([4, 4, 1, 0, 5, 2, 4, 2, 2]),
    )  # record 3 has none
    wanted = torch.zeros(4, 6, 3, dtype=dtype)
    for share, owner, row in zip(shares, owners, rows, strict=True):
        wanted[owner, row] += share * vectors[owner]
    flat, weights = wanted.flatten(1), torch.linspace(0.5, 2, 4, dtype=dtype)
    found, vector = ScaledRows(vectors, shares, owners, rows, torch.Size((6, 3))), torch.randn(6, 3, dtype=dtype)
    part, persons = found.some_rows(slice(1, 5)), Owners(torch.tensor([0, 0, 1, 1]), 2)
    other = SparseRows(torch.ones(1, 3, dtype=dtype), torch.tensor([3]), torch.tensor([0]), 4, torch.Size((6, 3)))
    torch.testing.assert_close(found.explicit(), wanted)
    torch.testing.assert_close(found.squared_norms(), flat.square().sum(1))
    torch.testing.assert_close(found.weighted_sum(weights).flatten(), weights @ flat)
    torch.testing.assert_close(found.inner(vector), flat @ vector.flatten())
    torch.testing.assert_close(found.only(torch.tensor([2, 0])).explicit(), wanted[[2, 0]])
    torch.testing.assert_close(part.explicit(), wanted[:, 1:5])
    torch.testing.assert_close(part.squared_norms(), wanted[:, 1:5].flatten(1).square().sum(1))
    torch.testing.assert_close(found.by_person(persons).explicit(), wanted.view(2, 2, 6, 3).sum(1))
    torch.testing.assert_close(found.plus([other]).explicit(), wanted + other.explicit())


# Whatever the scale of inputs, a record's share of a clipped sum is at most the clipping norm.


class Twice(nn.Module):
    """A layer used twice, the second time to take away most of what the first gave."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 5)

    def forward(self, inputs):
        return self.layer(inputs) - self.layer(inputs * (1 + 1e-4))


class Positions(nn.Module):
    """A layer at four positions whose errors cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, inputs):
        signs = torch.tensor([1.0, -1.0, 1.0, -1.0])
        near = inputs.unsqueeze(1) + 1e-3 * torch.arange(4.0)[:, None]
        return (self.layer(near) * signs[:, None]).sum(1)


class Words(nn.Module):
    """A table whose rows are looked up with errors that cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 5)

    def forward(self, inputs):
        found = self.table((inputs[:, :1].long() % 4).expand(-1, 6))
        return (found * (inputs - inputs.roll(1, 1))[:, :6, None]).sum(1)


class Bright(nn.Module):
    """A convolution over pictures that are nearly white, whose errors sum to zero over places."""

    def __init__(self, *, frozen: bool) -> None:
        super().__init__()
        self.layer, self.norm, self.head = nn.Conv2d(1, 32, 5), nn.InstanceNorm2d(32), nn.Linear(800, 5)
        self.head.requires_grad_(not frozen)

    def forward(self, inputs):
        return self.head(self.norm(self.layer(inputs.amax() + 1e-3 * inputs)).flatten(1))


SCALED = {
    "a layer used twice": (lambda: Twice(6), (6,)),
    "four positions": (Positions, (6,)),
    "words": (Words, (6,)),
    "bright pictures": (lambda: Bright(frozen=False), (1, 9, 9)),
    "bright pictures and a frozen head": (lambda: Bright(frozen=True), (1, 9, 9)),
    "a recurrent layer": (lambda: Last(), (4, 6)),
    "attention": (lambda: Attending(), (4, 6)),
}


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(6, 5, batch_first=True)

    def forward(self, inputs):
        return self.layer(inputs)[0][:, -1]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, inputs):
        found = self.layer(inputs, inputs, inputs)[0]
        return (found[:, 0] - found[:, 1])[:, :5]


def share(batch, record: int, max_grad_norm: float) -> float:
    """The length of what one record adds to the clipped sum, worked out in float64 from the weights that it gets."""
    return float(batch.only(torch.tensor([record])).clipped_vector(max_grad_norm).double().norm())


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("scale", [1.0, 255.0, 1e4])
@pytest.mark.parametrize("max_grad_norm", [1e-3, 1.0])
@pytest.mark.parametrize("kept", [0, 2**27])
def test_no_record_adds_more_than_the_clipping_norm(monkeypatch, kind, scale, max_grad_norm, kept):
    monkeypatch.setattr(contributions, "KEPT_BYTES", kept)
    build, shape = SCALED[kind]
    for seed in range(3):
        torch.manual_seed(seed)
        network = build()
        inputs = torch.rand(4, *shape) * scale
        with PerRecordGradients(network, check=False) as engine:
            batch = engine.backward((network(inputs) * torch.randn(4, 5) * 10).sum(1))
        weights = clip_weights(batch.squared_norms(), max_grad_norm)
        whole = batch.weighted_vector(weights).double()
        for record in range(4):
            assert share(batch, record, max_grad_norm) <= max_grad_norm
            without = batch.weighted_vector(weights.where(torch.arange(4) != record, 0.0)).double()
            assert (whole - without).norm() <= 1.02 * max_grad_norm  # as the sum shows it, with the others' rounding


def test_norms_are_not_stated_longer_than_needed():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv1d(1, 16, 3), nn.Flatten(), nn.Linear(64, 5))
    with PerRecordGradients(network) as engine:
        batch = engine.backward(network(torch.randn(8, 1, 6)).sum(1))
    exact = sum(part.double().flatten(1).square().sum(1) for part in batch.materialise())
    assert bool((batch.squared_norms() >= exact * (1 - 1e-5)).all())
    assert bool((batch.squared_norms() <= exact * 1.01).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_in_half_precision_are_clipped_and_summed_in_float32(dtype):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 3)).to(dtype)
    with PerRecordGradients(network) as engine:
        losses = network(torch.randn(50, 40, dtype=dtype)).float().square().sum(1) * 30
        batch = engine.backward(losses)
        assert batch.squared_norms().dtype == torch.float32
        assert batch.clipped_vector(0.5).dtype == torch.float32
        for record in range(50):
            assert share(batch, record, 0.5) <= 0.5
        # One record moves a sum over many by no more than its norm.
        many = engine.backward(network(torch.ones(8192, 40, dtype=dtype)).float().sum(1)).clipped_vector(1.0).double()
        fewer = engine.backward(network(torch.ones(8191, 40, dtype=dtype)).float().sum(1)).clipped_vector(1.0).double()
    assert (many - fewer).norm() <= 1.01
