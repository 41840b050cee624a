"""What holds of seeded randomness alone; the rest is in test_randomness.py."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from noiseproof import kernels
from noiseproof.errors import SettingError
from noiseproof.privacy import Reproducible


def test_the_seed_is_all_there_is():
    value = torch.zeros(1000)
    assert torch.equal(Reproducible(3).add_gaussian(value, 1.0), Reproducible(3).add_gaussian(value, 1.0))
    assert not torch.equal(Reproducible(3).add_gaussian(value, 1.0), Reproducible(4).add_gaussian(value, 1.0))
    with pytest.raises(SettingError, match="seed"):
        Reproducible(-1)


def test_the_same_key_gives_the_same_child_whatever_was_drawn_before():
    early, late = Reproducible(3), Reproducible(3)
    late.uniform((10,))
    late.spawn(9)
    assert torch.equal(early.spawn(7).uniform((5,)), late.spawn(7).uniform((5,)))
    assert not torch.equal(early.spawn(7).uniform((5,)), early.spawn(8).uniform((5,)))
    assert not torch.equal(early.spawn(7).spawn(8).uniform((5,)), early.spawn(8).spawn(7).uniform((5,)))
    with pytest.raises(SettingError, match="key"):
        early.spawn(-1)


def test_reproducible_randomness_can_be_put_aside_and_taken_up_again():
    rng = Reproducible(5)
    rng.uniform((3,))
    again = pickle.loads(pickle.dumps(rng))
    assert torch.equal(rng.uniform((3,)), again.uniform((3,)))


def test_values_of_reproducible_randomness_are_not_rounded():
    assert Reproducible(0).rounding(1.0, 10**6) == 0


def test_a_sample_takes_time_for_its_size_not_for_the_records():
    # A trillion records: anything proportional to them would not come back.
    sample = Reproducible(6).poisson_sample(10**12, 1e-9)
    assert 0 < sample.numel() < 2000
    assert sample[-1] < 10**12


@pytest.mark.parametrize(("dtype", "largest"), [(torch.float32, 5.42), (torch.float64, 8.29)])
def test_the_rarest_bits_give_finite_normals_of_either_sign(dtype, largest, monkeypatch):
    class Extremes:
        def fill(self, array):
            array[0::3], array[1::3], array[2::3] = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max, 0

    monkeypatch.setattr(kernels, "compiled", None)  # whose rarest bits are tested with it
    rng = Reproducible(0)
    monkeypatch.setattr(rng, "_streams", lambda: lambda block: Extremes())
    drawn = rng.add_gaussian(torch.zeros(6, dtype=dtype), 2.0)
    assert torch.equal(drawn[:3], drawn[3:])
    assert drawn[0] == -drawn[1] == pytest.approx(-2 * largest, rel=1e-2)
    assert drawn[2] == 0
