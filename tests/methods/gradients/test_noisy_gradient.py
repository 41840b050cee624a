"""The exact draw of Noisy Gradient has the law of the plain one; algorithm 2 clips to the batch's quantile."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import nn

from noiseproof.engine import PerRecordGradients
from noiseproof.errors import SettingError
from noiseproof.methods.gradients import NoisyGradients, QuantileGradients
from noiseproof.methods.gradients.noisy_gradient import noisy_sum, plain_noisy_sum
from noiseproof.privacy import Reproducible
from noiseproof.privacy.events import NonPrivateDpEvent

CLIP, NOISE, DRAWS = 1.0, 0.7, 3_000
ALARM = 1e-6
"""False-alarm rate of each statistical test here."""


def batch(records, width):
    """Per-record gradients that are these random vectors themselves: the loss is linear."""
    module = nn.Linear(width, 1, bias=False).double()
    vectors = torch.randn(records, width, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    engine = PerRecordGradients(module)
    return engine.backward(module(vectors).squeeze(1)), engine, vectors


@pytest.fixture(scope="module", params=[(4, 7), (3, 3), (5, 3), (1, 6)], ids=str)
def draws(request):
    """Many sums by both draws; with more records than parameters the span leaves no room outside, and so on."""
    gradients, engine, vectors = batch(*request.param)
    rng = Reproducible(1)
    exact = torch.stack([noisy_sum(gradients, engine, CLIP, NOISE, rng) for _ in range(DRAWS)])
    # The algorithm as it is printed, for many draws at once.
    noise = torch.randn((20 * DRAWS, *vectors.shape), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    noised = vectors + NOISE * noise
    plain = (noised / noised.norm(dim=2, keepdim=True).clamp_min(CLIP)).sum(1)
    return exact.detach(), plain


def test_means_agree(draws):
    exact, plain = draws
    error = (exact.var(0) / len(exact) + plain.var(0) / len(plain)).sqrt()
    bound = stats.norm.isf(ALARM / 2 / exact.shape[1])
    assert ((exact.mean(0) - plain.mean(0)).abs() < bound * error).all()


def test_covariances_agree(draws):
    exact, plain = draws

    def moments(sums):
        centred = sums - sums.mean(0)
        products = torch.einsum("ni,nj->nij", centred, centred)
        return products.mean(0), products.var(0) / len(sums)

    (a, va), (b, vb) = moments(exact), moments(plain)
    bound = stats.norm.isf(ALARM / 2 / a.numel())
    assert ((a - b).abs() < bound * (va + vb).sqrt()).all()


def test_norms_and_projections_have_the_same_law(draws):
    exact, plain = draws
    direction = torch.randn(exact.shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for measure in (lambda s: s.norm(dim=1), lambda s: s @ direction, lambda s: s[:, 0] * s[:, -1]):
        # One record alone has an atom at the clipping norm, which rounding would tear apart.
        a, b = measure(exact).numpy().round(9), measure(plain).numpy().round(9)
        assert stats.ks_2samp(a, b).pvalue > ALARM / 3


def test_the_plain_draw_has_the_same_law_too():
    gradients, engine, _ = batch(4, 7)
    exact_rng, plain_rng = Reproducible(3), Reproducible(4)
    exact = torch.stack([noisy_sum(gradients, engine, CLIP, NOISE, exact_rng).norm() for _ in range(1000)])
    plain = torch.stack([plain_noisy_sum(gradients, CLIP, NOISE, plain_rng).norm() for _ in range(1000)])
    assert stats.ks_2samp(exact.detach().numpy(), plain.detach().numpy()).pvalue > ALARM


@pytest.mark.parametrize("draw", ["exact", "plain"])
def test_without_noise_it_is_the_mean_of_clipped_gradients(draw):
    gradients, engine, vectors = batch(4, 7)
    expected = (vectors / vectors.norm(dim=1, keepdim=True).clamp_min(CLIP)).sum(0)
    if draw == "exact":
        found = noisy_sum(gradients, engine, CLIP, 0.0, Reproducible(0))
    else:
        found = plain_noisy_sum(gradients, CLIP, 0.0, Reproducible(0))
    torch.testing.assert_close(found, expected)


def test_no_update_leaves_the_ball_of_radius_clip():
    module = nn.Linear(6, 1, bias=False)
    gradients = NoisyGradients(module, max_grad_norm=0.5, noise_multiplier=3.0, sample_rate=0.5, rng=Reproducible(0))
    for (x,) in gradients.batches(100 * torch.randn(20, 6), steps=30):
        gradients.backward(module(x).squeeze(1) if len(x) else None)
        assert float(module.weight.grad.norm()) <= 0.5 * (1 + 1e-5)


def test_a_huge_gradient_keeps_its_direction_so_nothing_is_private():
    module = nn.Linear(6, 1, bias=False)
    gradients = NoisyGradients(module, max_grad_norm=0.5, noise_multiplier=3.0, sample_rate=1.0, rng=Reproducible(0))
    canary = torch.zeros(1, 6)
    canary[0, 2] = 1e7
    for (x,) in gradients.batches(canary, steps=1):
        gradients.backward(module(x).squeeze(1))
    torch.testing.assert_close(module.weight.grad, canary / 1e7 * 0.5, atol=1e-5, rtol=0)
    assert gradients.events.event == NonPrivateDpEvent()


def test_the_tensor_by_tensor_variant_needs_the_plain_draw():
    with pytest.raises(SettingError):
        NoisyGradients(
            nn.Linear(2, 1), max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0), by="tensor"
        )


@pytest.mark.parametrize("by", ["all", "layer"])
def test_the_quantile_is_of_the_batch_and_layers_share_it_by_the_root_of_their_number(by):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    x = torch.randn(9, 3)
    engine = PerRecordGradients(module)
    norms = engine.backward(module(x).squeeze(1)).squared_norms().sqrt()
    engine.close()
    gradients = QuantileGradients(module, noise_multiplier=1e-9, sample_rate=1.0, rng=Reproducible(0), by=by)
    for (batch_,) in gradients.batches(x, steps=1):
        gradients.backward(module(batch_).squeeze(1))
    assert gradients.max_grad_norm == pytest.approx(float(norms.median()), rel=1e-5)
    limit = gradients.max_grad_norm if by == "all" else gradients.max_grad_norm / math.sqrt(2)
    for layer in module:
        norm = math.sqrt(sum(float(p.grad.square().sum()) for p in layer.parameters()))
        assert norm <= limit * (1 + 1e-4)


def test_an_empty_batch_moves_nothing_where_the_algorithm_has_nothing_to_say():
    module = nn.Linear(3, 1)
    gradients = QuantileGradients(module, noise_multiplier=1.0, sample_rate=1e-9, rng=Reproducible(0))
    for _ in gradients.batches(torch.randn(5, 3), steps=1):
        gradients.backward(None)
    assert float(module.weight.grad.abs().sum()) == 0


@pytest.mark.parametrize("share", ["root", "count", "printed", "own"])
def test_a_layers_share_of_the_quantile_is_what_its_reading_says(share):
    # Two layers of one record each way: norms 3 and 4 in the first record, 6 and 8 in the second.
    squared = torch.tensor([[9.0, 16.0], [36.0, 64.0]])
    module = nn.Linear(1, 1)
    gradients = QuantileGradients(
        module, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0), by="layer", share=share
    )
    gradients.max_grad_norm = 5.0
    clipped = gradients._layer_weights(squared.clone(), 1.0) * squared.sqrt()
    expected = {
        "root": [[3.0, 5 / math.sqrt(2)], [5 / math.sqrt(2), 5 / math.sqrt(2)]],
        "count": [[2.5, 2.5], [2.5, 2.5]],
        "printed": [[2.5, 2.5], [5.0, 5.0]],
        "own": [[3.0, 4.0], [4.5, 6.0]],
    }[share]
    torch.testing.assert_close(clipped, torch.tensor(expected), rtol=2e-5, atol=0)
    gradients.close()
