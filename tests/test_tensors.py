"""Numbers that are not finite are found wherever they are, and large ones are not taken for them."""

from __future__ import annotations

import pytest
import torch

from noiseproof.tensors import all_finite


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
