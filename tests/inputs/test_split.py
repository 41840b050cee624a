"""The beta split: more budget for features that matter more, all of it spent."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError
from noiseproof.inputs import split


@given(
    relevance=st.lists(st.floats(-1e30, 1e30, allow_subnormal=False), min_size=1, max_size=30),
    floor=st.floats(1e-6, 1.0),
    power=st.sampled_from([1.0, 2.0, 4.0]),
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_beta_is_positive_and_sums_to_the_number_of_features(relevance, floor, power):
    values = torch.tensor(relevance, dtype=torch.float64)
    beta = split(values, floor, power)
    assert (beta > 0).all()
    torch.testing.assert_close(beta.sum(), torch.tensor(float(len(relevance))).double())
    order = values.abs().argsort()
    assert (beta[order].diff() >= -1e-9).all()


def test_beta_is_in_proportion_to_the_size_of_relevance():
    beta = split(torch.tensor([1.0, -3.0, 0.5, 0.5]), floor=1e-3)
    torch.testing.assert_close(beta, torch.tensor([0.8, 2.4, 0.4, 0.4]).double())
    torch.testing.assert_close(
        split(torch.tensor([1.0, 3.0]), floor=1e-3, power=2.0), torch.tensor([0.2, 1.8]).double()
    )


def test_relevances_of_all_zeros_split_evenly():
    assert (split(torch.zeros(5)) == 1).all()


def test_a_feature_without_relevance_keeps_the_floor():
    beta = split(torch.tensor([0.0, 1.0]), floor=0.1)
    torch.testing.assert_close(beta, torch.tensor([0.1, 2.0]).double() * 2 / 2.1)


def test_an_impossible_floor_or_power_is_refused():
    for floor, power in ((0.0, 1.0), (1.5, 1.0), (0.1, 0.0), (0.1, -1.0)):
        with pytest.raises(SettingError):
            split(torch.ones(2), floor, power)
