"""Work in blocks gives the same whatever the threads, and whatever the memory looks like."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.privacy.blocks import BLOCK, add_in_blocks, check_value, in_blocks
from noiseproof.privacy.randomness import Bits

KEY = bytes(range(32))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def streams(block):
    return Bits(KEY, block)


def add_bits(old, where, bits, new):
    np.add(old, bits.uniform(old.shape), out=new, casting="same_kind")


@pytest.mark.parametrize("count", [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_blocks_cover_everything_once_with_a_stream_of_their_own(count, threads):
    for number in (1, 3):
        threads(number)
        seen = np.zeros(count, dtype=int)
        first = {}

        def work(block, bits, seen=seen, first=first):
            seen[block] += 1
            first[block.start] = bits.integer(64)

        in_blocks(count, streams, work)
        assert (seen == 1).all()
        pieces = -(-count // BLOCK)
        starts = [count * piece // pieces for piece in range(pieces)]
        assert first == {start: Bits(KEY, number).integer(64) for number, start in enumerate(starts)}


def test_blocks_are_worked_on_in_a_forked_process_too(threads):
    threads(3)
    here = _sum_of_blocks()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_sum_of_blocks).get(timeout=120) == here


def _sum_of_blocks():
    # Without torch's own operations, whose threads do not survive a fork.
    values = np.empty(3 * BLOCK)

    def work(block, bits):
        values[block] = bits.uniform((block.stop - block.start,))

    in_blocks(3 * BLOCK, streams, work)
    return float(values.sum())


def test_an_error_in_a_thread_is_an_error(threads):
    threads(2)

    def work(block, bits):
        raise NoiseproofError("this block is bad.")

    with pytest.raises(NoiseproofError, match="this block"):
        in_blocks(2 * BLOCK, streams, work)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_shape_dtype_and_value_stay(dtype):
    value = torch.arange(24.0).reshape(2, 3, 4).to(dtype)
    result = add_in_blocks(value, None, streams, add_bits)
    assert result.shape == value.shape
    assert result.dtype == dtype
    assert torch.equal(value, torch.arange(24.0).reshape(2, 3, 4).to(dtype))
    work = torch.float64 if dtype == torch.float64 else torch.float32
    expected = value.to(work) + torch.from_numpy(Bits(KEY, 0).uniform((2, 3, 4)))
    assert torch.allclose(result, expected.to(dtype))


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded", "needing gradients"])
def test_the_layout_of_the_memory_does_not_matter(layout):
    value = {
        "transposed": torch.rand(30, 40).t(),
        "strided": torch.rand(30, 40)[::2, 1::3],
        "expanded": torch.rand(30, 1).expand(30, 40),
        "needing gradients": torch.rand(30, 40, requires_grad=True),
    }[layout]
    plain = value.detach().clone(memory_format=torch.contiguous_format)
    result = add_in_blocks(value, None, streams, add_bits)
    assert torch.equal(result, add_in_blocks(plain, None, streams, add_bits))
    assert not result.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_result_can_be_written_where_the_value_is_or_elsewhere(dtype):
    value = torch.rand(BLOCK + 5, dtype=torch.float32).to(dtype)
    expected = add_in_blocks(value, None, streams, add_bits)
    elsewhere = torch.empty(2, BLOCK + 5, dtype=dtype).t()[:, 0]  # not contiguous
    assert add_in_blocks(value, elsewhere, streams, add_bits) is elsewhere
    assert torch.equal(elsewhere, expected)
    assert add_in_blocks(value, value, streams, add_bits) is value
    assert torch.equal(value, expected)


def test_what_cannot_be_released_is_refused_without_being_told():
    for bad in (float("nan"), float("inf"), -float("inf")):
        value = torch.tensor([271828.0, bad])
        with pytest.raises(NoiseproofError, match="NaN or infinite") as error:
            check_value(value)
        assert "271828" not in str(error.value)
    with pytest.raises(SettingError, match="int64"):
        check_value(torch.tensor([271828]))
    for out in (torch.empty(3), torch.empty(2, dtype=torch.float64)):
        with pytest.raises(SettingError, match="out must have"):
            check_value(torch.ones(2), out)


def test_values_whose_sum_overflows_are_values():
    check_value(torch.full((10,), 3e38))
    check_value(torch.empty(0))
