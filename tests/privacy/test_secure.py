"""Noise on the lattice: exact sums, a support that tells nothing, and a sensitivity that grows as stated."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from noiseproof.errors import SettingError
from noiseproof.privacy import Secure, discrete_noise, randomness, secure
from noiseproof.privacy.randomness import Bits
from noiseproof.privacy.secure import _below

KEY = bytes(range(32))
LAWS = {"gaussian": discrete_noise.gaussian, "laplace": discrete_noise.laplace}
property_test = settings(deadline=None, derandomize=True, max_examples=60)
any_scale = st.floats(1e-250, 1e250)


def add(value, scale, law="gaussian", nonce=0):
    value = np.asarray(value)
    out = np.empty(value.shape, dtype=value.dtype)
    secure.add(LAWS[law](), value, scale, Bits(KEY, nonce), out)
    return out


@property_test
@given(any_scale)
def test_the_step_is_a_power_of_two_between_2_to_the_minus_32_and_31_of_the_scale(scale):
    step = secure.step(scale)
    assert math.frexp(step)[0] == 0.5
    assert 2.0**31 <= scale / step < 2.0**32


@property_test
@given(any_scale, st.sampled_from(sorted(LAWS)), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_what_leaves_is_the_rounded_value_plus_noise_that_does_not_know_it(scale, law, value):
    value = np.array(value) * scale
    step = secure.step(scale)
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
    step = secure.step(scale)
    apart = add(first, scale) - add(second, scale)  # the same noise, so that it is the rounded values' difference
    exact = np.abs(first - second)
    assert (np.abs(apart) <= exact + step).all()
    assert np.linalg.norm(apart) <= np.linalg.norm(exact) + step * math.sqrt(len(first)) * (1 + 1e-12)


def test_neighbours_have_the_same_support():
    # Values that differ in their last bits only, or by far less than a step, or lie between lattice points.
    scale = 1.0
    step = secure.step(scale)
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
    largest = 2.0**61 * secure.step(1.0)
    result = add(np.array([largest, 2 * largest, 1e300, np.finfo(float).max, -1e300]), 1.0)
    assert np.allclose(result, [largest] * 4 + [-largest])
    # Where value over step is more than float64 holds.
    assert np.isfinite(add(np.array([1e300, -1e300]), 1e-250)).all()


@pytest.mark.parametrize("law", LAWS)
def test_scales_of_their_own_have_lattices_of_their_own(law):
    scale = np.array([1e-3, 1.0, 5.0, 1e9])
    value = np.array([0.1, 0.2, 0.3, 0.4])
    result = add(value, scale, law)
    steps = np.array([secure.step(each) for each in scale])
    assert np.array_equal(result / steps, np.rint(result / steps))
    one = add(value[:1], 1e-3, law)
    assert add(value[:1], scale[:1], law) == one


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-300, 1e300])
def test_what_is_no_scale_is_refused(scale):
    with pytest.raises(SettingError, match="greater than 0"):
        secure.step(scale)
    with pytest.raises(SettingError, match="greater than 0"):
        randomness.check_scales(torch.tensor([1.0, scale], dtype=torch.float64), torch.Size([2]))


def test_scales_must_fit_the_value():
    with pytest.raises(SettingError, match="do not fit"):
        randomness.check_scales(torch.ones(3), torch.Size([2]))
    with pytest.raises(SettingError, match="do not fit"):
        randomness.check_scales(torch.ones(2, 2), torch.Size([2]))
    assert randomness.check_scales(torch.ones(2), torch.Size([3, 2])).dtype == torch.float64


# What holds of secure randomness alone; the rest is in test_randomness.py.


def test_secure_randomness_does_not_repeat_itself():
    value = torch.zeros(100)
    drawn = [Secure().add_gaussian(value, 1.0), Secure().add_gaussian(value, 1.0)]
    rng = Secure()
    drawn += [
        rng.add_gaussian(value, 1.0),
        rng.spawn(0).add_gaussian(value, 1.0),
        rng.spawn(0).add_gaussian(value, 1.0),
    ]
    assert len({tuple(noise.tolist()) for noise in drawn}) == len(drawn)


def test_every_call_takes_a_new_key_from_the_system(monkeypatch):
    asked = []

    def entropy(count):
        asked.append(count)
        return bytes(count)

    monkeypatch.setattr("noiseproof.privacy.secure.os.urandom", entropy)
    rng = Secure()
    assert asked == []
    rng.add_gaussian(torch.zeros(3), 1.0)
    rng.add_laplace(torch.zeros(3), 1.0)
    rng.uniform((3,))
    rng.poisson_sample(10, 0.5)
    rng.choose(torch.zeros(3))
    assert asked == [32] * 5


def test_rounding_is_a_step_a_coordinate():
    rng = Secure()
    assert rng.rounding(1.0, 1) == 2.0**-31
    assert rng.rounding(1.5, 4) == 2 * 2.0**-31
    assert rng.rounding(1.5, 4, norm=1) == 4 * 2.0**-31
    # The largest network of the papers: less than a millionth of the noise.
    assert rng.rounding(1.1, 3_274_634) < 1e-6


def test_secure_noise_lies_on_the_lattice_whatever_the_value():
    for value in (0.0, 0.1, 1 / 3, 1e-12):
        noisy = Secure().add_gaussian(torch.full((1000,), value, dtype=torch.float64), 1.0) * 2.0**31
        assert torch.equal(noisy, noisy.round())


def test_rates_between_two_16_bit_numbers_are_met():
    # All of the rate is in the digits after the first 16: ties decide everything.
    rate = 2.0**-16 * 0.75
    count = sum(Secure._for_test(bytes([i] * 32)).poisson_sample(4_000_000, rate).numel() for i in range(10))
    assert stats.binomtest(count, 40_000_000, rate).pvalue > 1e-6


def test_a_uniform_is_compared_as_far_as_it_takes():
    class Chosen:
        def __init__(self, *words):
            self.words = list(words)

        def integer(self, bits):
            return self.words.pop(0)

    limit = Fraction(5 * 2**64 + 7, 2**128)
    assert _below(limit, Chosen(4))
    assert not _below(limit, Chosen(6))
    assert _below(limit, Chosen(5, 6))
    assert not _below(limit, Chosen(5, 8))
    assert not _below(limit, Chosen(5, 7, 1))


def test_a_tests_key_has_32_bytes():
    with pytest.raises(SettingError, match="32 bytes"):
        Secure._for_test(b"short")
