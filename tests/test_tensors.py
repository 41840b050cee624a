"""Numbers that are not finite are found wherever they are, and generators follow every bit of a seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noiseproof.tensors import all_finite, seeded, seeded_generator


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("place", [0, 7, 999])
def test_one_number_that_is_not_finite_is_found(wrong, dtype, place):
    numbers = torch.ones(1000, dtype=dtype)
    assert all_finite(numbers)
    numbers[place] = wrong
    assert not all_finite(numbers)
    assert not all_finite(numbers.view(10, 100).t())


def test_numbers_whose_squares_and_sums_overflow_are_finite():
    for dtype in (torch.float16, torch.float32, torch.float64):
        assert all_finite(torch.full((100,), torch.finfo(dtype).max, dtype=dtype))


def test_opposite_infinities_do_not_cancel():
    assert not all_finite(torch.tensor([[float("inf"), 1.0], [float("-inf"), 1.0]]).t())


def test_whole_numbers_and_nothing_are_finite():
    assert all_finite(torch.arange(10))
    assert all_finite(torch.tensor([True, False]))
    assert all_finite(torch.empty(0, 3))


@given(st.integers(0, 2**62))
def test_a_short_seed_is_torchs_own(seed):
    expected = torch.Generator().manual_seed(seed)
    assert torch.equal(seeded_generator(seed).get_state(), expected.get_state())
    before = torch.get_rng_state()
    with seeded(seed):
        drawn = torch.rand(3)
    assert torch.equal(drawn, torch.rand(3, generator=expected))
    assert torch.equal(torch.get_rng_state(), before)


@given(st.integers(2**64, 2**300), st.integers(0, 299))
def test_every_bit_of_a_long_seed_counts(seed, bit):
    drawn = torch.randint(2**62, (2,), generator=seeded_generator(seed))
    assert torch.equal(drawn, torch.randint(2**62, (2,), generator=seeded_generator(seed)))
    other = seed ^ 1 << bit if seed ^ 1 << bit >= 2**63 else seed + 1
    assert not torch.equal(drawn, torch.randint(2**62, (2,), generator=seeded_generator(other)))
    with seeded(seed):
        assert torch.equal(drawn, torch.randint(2**62, (2,)))
    # torch's own seeding knows 2^32 states, in which the first word leaves no freedom to the 623 others.
    words = seeded_generator(seed).get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    filled = torch.Generator().manual_seed(int(words[0])).get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
    assert (words[1:] != filled[1:]).mean() > 0.9
