"""Noise on the lattice: exact sums, a support that tells nothing, and a sensitivity that grows as stated."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError
from noiseproof.guarantees import lattice, strips
from noiseproof.guarantees.chacha import Bits

KEY = bytes(range(32))
LAWS = {"gaussian": strips.gaussian, "laplace": strips.laplace}
property_test = settings(deadline=None, derandomize=True, max_examples=60)
any_scale = st.floats(1e-250, 1e250)


def add(value, scale, law="gaussian", nonce=0):
    value = np.asarray(value)
    out = np.empty(value.shape, dtype=value.dtype)
    lattice.add(LAWS[law](), value, scale, Bits(KEY, nonce), out)
    return out


@property_test
@given(any_scale)
def test_the_step_is_a_power_of_two_between_2_to_the_minus_32_and_31_of_the_scale(scale):
    step = lattice.step(scale)
    assert math.frexp(step)[0] == 0.5
    assert 2.0**31 <= scale / step < 2.0**32


@property_test
@given(any_scale, st.sampled_from(sorted(LAWS)), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_what_leaves_is_the_rounded_value_plus_noise_that_does_not_know_it(scale, law, value):
    value = np.array(value) * scale
    step = lattice.step(scale)
    noise = add(np.zeros(len(value)), scale, law) / step
    result = add(value, scale, law) / step
    # Both are integers below 2^53, so that float64 holds them exactly.
    assert np.array_equal(result, np.rint(result))
    assert np.array_equal(result - noise, np.rint(value / step))


@property_test
@given(
    st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30),
    st.lists(st.floats(-1e3, 1e3), min_size=30, max_size=30),
    st.floats(1e-3, 1e12),
)
def test_rounding_adds_at_most_a_step_a_coordinate_to_a_difference(first, difference, scale):
    first = np.array(first)
    second = first + np.array(difference[: len(first)])
    step = lattice.step(scale)
    apart = add(first, scale) - add(second, scale)  # the same noise, so that it is the rounded values' difference
    exact = np.abs(first - second)
    assert (np.abs(apart) <= exact + step).all()
    assert np.linalg.norm(apart) <= np.linalg.norm(exact) + step * math.sqrt(len(first)) * (1 + 1e-12)


def test_neighbours_have_the_same_support():
    # Values that differ in their last bits only, or by far less than a step, or lie between lattice points.
    scale = 1.0
    step = lattice.step(scale)
    for value in (0.0, 0.1, np.nextafter(0.1, 1), 1e-300, math.pi, 12345.678):
        result = add(np.full(2000, value), scale)
        assert np.array_equal(result / step, np.rint(result / step))
    # Down to the lowest digit: both parities, and every digit modulo 16, occur for both of two neighbours.
    digits = [set((add(np.full(2000, value), scale) / step % 16).astype(int)) for value in (0.1, 0.1 + step / 2)]
    assert digits[0] == digits[1] == set(range(16))


def test_a_float32_is_the_rounding_of_the_exact_sum():
    value = np.linspace(-5, 5, 1000, dtype=np.float32)
    assert np.array_equal(add(value, 0.7), add(value.astype(np.float64), 0.7).astype(np.float32))


def test_values_far_outside_are_clipped_alike():
    largest = 2.0**61 * lattice.step(1.0)
    result = add(np.array([largest, 2 * largest, 1e300, np.finfo(float).max, -1e300]), 1.0)
    assert np.allclose(result, [largest] * 4 + [-largest])
    # Where value over step is more than float64 holds.
    assert np.isfinite(add(np.array([1e300, -1e300]), 1e-250)).all()


@pytest.mark.parametrize("law", LAWS)
def test_scales_of_their_own_have_lattices_of_their_own(law):
    scale = np.array([1e-3, 1.0, 5.0, 1e9])
    value = np.array([0.1, 0.2, 0.3, 0.4])
    result = add(value, scale, law)
    steps = np.array([lattice.step(each) for each in scale])
    assert np.array_equal(result / steps, np.rint(result / steps))
    one = add(value[:1], 1e-3, law)
    assert add(value[:1], scale[:1], law) == one


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_what_is_no_scale_is_refused(scale):
    with pytest.raises(SettingError, match="greater than 0"):
        lattice.step(scale)
    with pytest.raises(SettingError, match="greater than 0"):
        lattice.check_scales(torch.tensor([1.0, scale], dtype=torch.float64), torch.Size([2]))


def test_scales_must_fit_the_value():
    with pytest.raises(SettingError, match="do not fit"):
        lattice.check_scales(torch.ones(3), torch.Size([2]))
    with pytest.raises(SettingError, match="do not fit"):
        lattice.check_scales(torch.ones(2, 2), torch.Size([2]))
    assert lattice.check_scales(torch.ones(2), torch.Size([3, 2])).dtype == torch.float64
