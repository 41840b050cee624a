"""What holds of secure randomness alone; the rest is in test_randomness.py."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from scipy import stats

from noiseproof.errors import SettingError
from noiseproof.guarantees import Secure
from noiseproof.guarantees.secure import _below


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

    monkeypatch.setattr("noiseproof.guarantees.secure.os.urandom", entropy)
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
