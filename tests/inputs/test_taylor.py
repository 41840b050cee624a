"""The Taylor loss, its noise, and the exact numbers of the paper."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.autograd.functional import hessian, jacobian
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.guarantees import Reproducible, Secure
from noiseproof.inputs import LossNoise, error_bound, taylor_loss
from noiseproof.inputs.taylor import first_order, sensitivity


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3), st.integers(0, 2))
@settings(deadline=None, derandomize=True, max_examples=200)
def test_the_loss_is_the_one_that_the_authors_program_writes(logits, label):
    z = torch.tensor([logits], dtype=torch.float64)
    y = functional.one_hot(torch.tensor([label]), 3).double()
    theirs = (z.clamp(min=0) - z * y + math.log(2) - z.abs() / 2 + z.square() / 8).sum(1)
    ours = taylor_loss(z, first_order(torch.tensor([label]), 3).double())
    torch.testing.assert_close(ours, theirs)


def test_value_slope_and_curvature_at_zero_are_those_of_cross_entropy():
    labels = torch.tensor([0, 2, 1])
    coefficients, y = first_order(labels, 3).double(), functional.one_hot(labels, 3).double()

    def taylor(z):
        return taylor_loss(z, coefficients).sum()

    def exact(z):
        return functional.binary_cross_entropy_with_logits(z, y, reduction="sum")

    zero = torch.zeros(3, 3, dtype=torch.float64)
    torch.testing.assert_close(taylor(zero), exact(zero))
    torch.testing.assert_close(jacobian(taylor, zero), jacobian(exact, zero))
    torch.testing.assert_close(hessian(taylor, zero), hessian(exact, zero))


def test_the_papers_exact_numbers():
    assert sensitivity(10, 25) == 1812.5
    assert error_bound(1) == pytest.approx((math.e**2 + 2 * math.e - 1) / (math.e * (1 + math.e) ** 2))
    assert error_bound(10) == pytest.approx(3.1466, abs=1e-4)
    published = LossNoise(10, 25, 0.15, 1800)
    assert published.scale == pytest.approx(1812.5 / (0.15 * 1800))
    assert published.local_epsilon(Reproducible(0)) == pytest.approx(0.298, abs=5e-4)
    assert 0 < published.local_epsilon(Secure()) - published.local_epsilon(Reproducible(0)) < 1e-7


def test_the_error_stays_below_lemma_7_where_logits_lie_within_one_of_zero():
    z = torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]
    for label in (0, 1):
        y = torch.full_like(z, float(label))
        exact = functional.binary_cross_entropy_with_logits(z, y, reduction="none")
        assert float((taylor_loss(z, 0.5 - y)[:, None] - exact).abs().max()) < error_bound(1)


def test_every_coefficient_gets_its_own_laplace_noise():
    noise = LossNoise(4, 3, 0.5, 10)
    exact = first_order(torch.zeros(10_000, dtype=torch.int64), 4)
    found = noise.perturb(exact, Reproducible(0)) - exact
    law = stats.laplace(scale=noise.scale)
    for column in found.T:
        assert stats.kstest(column.double().numpy(), law.cdf).pvalue > 1e-6  # false alarm: 1e-6
    with pytest.raises(SettingError, match="epsilon"):
        LossNoise(4, 3, 0.0, 10)
