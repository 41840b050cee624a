"""Batches are Poisson samples at the stated rate; a loader that samples otherwise is refused."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset

from noiseproof.engine.sampling import PoissonSampler, Schedule, check_loader
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import Reproducible

RECORDS = TensorDataset(torch.arange(100.0))


def test_every_record_is_drawn_at_the_rate_and_independently():
    sampler = PoissonSampler(50, 0.2, 20_000, Reproducible(0))
    drawn = torch.zeros(20_000, 50)
    for step, batch in enumerate(sampler):
        drawn[step, batch] = 1
    # Inclusion counts are binomial, sizes too (which fails if records were drawn together); two tests at 5e-7 each.
    inclusion = stats.chisquare(drawn.sum(0), [4000.0] * 50, sum_check=False).statistic / 0.8
    assert stats.chi2.sf(inclusion, 50) > 5e-7
    sizes = torch.bincount(drawn.sum(1).long(), minlength=51)
    expected = 20_000 * stats.binom.pmf(range(51), 50, 0.2)
    kept = expected > 20
    assert stats.chi2.sf((((sizes.numpy() - expected) ** 2 / expected)[kept]).sum(), kept.sum()) > 5e-7


def test_empty_batches_are_drawn_like_any_other():
    sizes = [len(batch) for batch in PoissonSampler(2, 0.1, 200, Reproducible(1))]
    assert len(sizes) == 200
    assert 0 in sizes


@pytest.mark.parametrize("sample_rate", [0.0, -0.1, 1.5, float("nan")])
def test_a_rate_outside_its_range_is_refused(sample_rate):
    with pytest.raises(SettingError, match="rate"):
        PoissonSampler(10, sample_rate, 1, Reproducible(0))


def test_a_loader_with_shuffled_batches_is_refused_with_its_samplers_name():
    with pytest.raises(UnsupportedError, match="BatchSampler"):
        check_loader(DataLoader(RECORDS, batch_size=10, shuffle=True), 0.1, 100)


def test_a_loader_at_another_rate_is_refused():
    loader = DataLoader(RECORDS, batch_sampler=PoissonSampler(100, 0.2, 5, Reproducible(0)))
    with pytest.raises(UnsupportedError, match=r"0\.2"):
        check_loader(loader, 0.1, 100)
    check_loader(loader, 0.2, 100)


# Schedules follow their formulas and depend on nothing but the step.


def test_each_kind_follows_its_formula():
    assert [Schedule(2.0).at(t) for t in (0, 5, 999)] == [2.0] * 3
    assert Schedule(2.0, "exponential", 0.1).at(7) == pytest.approx(2 * math.exp(-0.7))
    assert [Schedule(2.0, "step", 0.5, every=10).at(t) for t in (0, 9, 10, 25)] == [2.0, 2.0, 1.0, 0.5]


@pytest.mark.parametrize("start", [0.0, -1.0, math.inf, math.nan])
def test_a_schedule_starts_at_a_positive_number(start):
    with pytest.raises(SettingError):
        Schedule(start)


def test_a_step_schedule_needs_a_factor_and_an_interval():
    with pytest.raises(SettingError):
        Schedule(1.0, "step", 0.0)
    with pytest.raises(SettingError):
        Schedule(1.0, "step", 0.5, every=0)
