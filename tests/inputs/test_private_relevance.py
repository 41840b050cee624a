"""Private relevances: averaged, noised, and what that costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from noiseproof.errors import DataError, SettingError
from noiseproof.guarantees import Reproducible, Secure
from noiseproof.inputs.private_relevance import average, normalise, release_relevance
from noiseproof.inputs.relevance import relevances


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    how=st.sampled_from(["min-max", "magnitude"]),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_normalised_relevances_lie_in_the_unit_interval_and_reach_one(seed, scale, how):
    relevance = scale * torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(seed)).double()
    found = normalise(relevance, how)
    assert found.shape == (5, 6)
    assert float(found.min()) >= 0
    torch.testing.assert_close(found.amax(1), torch.ones(5).double())
    if how == "min-max":
        assert (found.amin(1) == 0).all()


def test_a_record_whose_relevances_are_all_alike_counts_for_nothing():
    for constant in (0.0, 2.5):
        assert (normalise(torch.full((2, 4), constant)) == 0).all()
    assert (normalise(torch.zeros(2, 4), "magnitude") == 0).all()
    with pytest.raises(SettingError, match="min-max or magnitude"):
        normalise(torch.ones(1, 1), "rank")


def test_the_average_is_over_all_records_however_they_are_batched(monkeypatch):
    features = torch.rand(50, 6, generator=torch.Generator().manual_seed(1))
    expected = normalise(relevances(network(), features)).mean(0)
    torch.testing.assert_close(average(network(), features), expected)
    monkeypatch.setattr("noiseproof.inputs.private_relevance._ENTRIES", 6 * 16 * 7)
    torch.testing.assert_close(average(network(), features), expected)
    labels = torch.arange(50) % 3
    torch.testing.assert_close(
        average(network(), features, start=labels), normalise(relevances(network(), features, start=labels)).mean(0)
    )
    with pytest.raises(DataError, match="no record"):
        average(network(), features[:0])


def test_one_record_moves_the_average_by_no_more_than_what_the_proof_says():
    features = torch.rand(30, 6, generator=torch.Generator().manual_seed(2))
    other = features.clone()
    other[0] = 1 - features[0]
    moved = (average(network(), features) - average(network(), other)).abs().sum()
    assert 0 < float(moved) <= 6 / 30


def test_the_noise_is_lemma_1s_and_costs_half_of_what_is_claimed():
    mean, records, epsilon = torch.full((40_000,), 0.5, dtype=torch.float64), 1000, 0.3
    released = release_relevance(mean, records, epsilon, Reproducible(0))
    assert released.claimed == epsilon
    assert released.proven == pytest.approx(epsilon / 2)
    # False alarm: below 1e-6.
    scale = 2 * 40_000 / (records * epsilon)
    assert stats.kstest((released.values - mean).numpy(), stats.laplace(scale=scale).cdf).pvalue > 1e-6


def test_rounding_of_secure_noise_is_part_of_the_cost():
    released = release_relevance(torch.zeros(10, dtype=torch.float64), 100, 1.0, Secure())
    assert 0.5 < released.proven < 0.5 + 1e-6
