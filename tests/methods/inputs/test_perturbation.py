"""Noise on inputs: its law, its scales, and the local epsilon that it really gives."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from noiseproof.errors import DataError, SettingError
from noiseproof.methods.inputs.adlm import canary_records
from noiseproof.methods.inputs.layers import SECOND_ORDER, LossNoise
from noiseproof.methods.inputs.perturbation import ConstantNoise, InputNoise, PerturbedRecords, SharedNoise, Source
from noiseproof.methods.inputs.relevance import split
from noiseproof.privacy import Reproducible, Secure


def noise(beta: torch.Tensor, epsilon: float = 0.075) -> InputNoise:
    """The noise of the paper's MNIST network."""
    return InputNoise(2.0 * 14 * 14 * 25, epsilon, 1800, beta)


def test_the_published_settings_give_ten_point_eight_where_less_than_a_tenth_is_claimed():
    identical = noise(torch.ones(784))
    assert identical.local_epsilon(Reproducible(0)) == pytest.approx(10.8)
    # The proof does not care how the budget is split, since the parts sum to the same.
    adaptive = noise(split(torch.rand(784, generator=torch.Generator().manual_seed(0))))
    assert adaptive.local_epsilon(Reproducible(0)) == pytest.approx(10.8)
    # Were the split made over 32 x 32 padded pixels, as the authors shipped it, the parts of 28 x 28 would sum to more.
    assert noise(torch.full((784,), 11.7 / 10.8)).local_epsilon(Reproducible(0)) == pytest.approx(11.7)


def test_rounding_of_secure_noise_is_part_of_the_local_epsilon():
    assert 10.8 < noise(torch.ones(784)).local_epsilon(Secure()) < 10.8 + 1e-6


@pytest.mark.parametrize("rng", [Reproducible(3), Secure._for_test(bytes(range(32)))], ids=["seeded", "secure"])
def test_every_feature_gets_laplace_noise_of_its_own_scale(rng):
    beta = torch.tensor([0.5, 1.0, 1.5]).double()
    perturbed = InputNoise(12.0, 2.0, 3, beta).perturb(torch.full((20_000, 3), 0.25), rng)
    assert perturbed.dtype == torch.float32
    for column, part in zip(perturbed.T, beta, strict=True):
        law = stats.laplace(loc=0.25, scale=12.0 / 2.0 / 3 / float(part))
        assert stats.kstest(column.double().numpy(), law.cdf).pvalue > 1e-6  # false alarm: 1e-6
    ranks = stats.spearmanr(perturbed[:, 0].numpy(), perturbed[:, 1].numpy())
    assert abs(ranks.statistic) < 5 / 20_000**0.5  # false alarm: below 1e-6


def test_records_are_perturbed_in_place_where_asked_and_in_pieces_alike(monkeypatch):
    features = torch.rand(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    kept = features.clone()
    mechanism = InputNoise(1.0, 1.0, 1, torch.ones(4))
    apart = mechanism.perturb(features, Reproducible(1))
    torch.testing.assert_close(features, kept)
    assert mechanism.perturb(features, Reproducible(1), out=features) is features
    torch.testing.assert_close(features, apart)
    monkeypatch.setattr("noiseproof.methods.inputs.perturbation._ENTRIES", 12)
    assert mechanism.perturb(kept, Reproducible(1)).shape == kept.shape


def test_a_constant_feature_gets_the_same_noise_as_any_other():
    features = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(5))
    features[:, 0] = 1.0
    perturbed = InputNoise(1.0, 1.0, 1, torch.ones(2)).perturb(features, Reproducible(2))
    assert stats.kstest((perturbed[:, 0] - 1).double().numpy(), stats.laplace.cdf).pvalue > 1e-6


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_feature_outside_its_public_bounds_is_refused_without_naming_it(value):
    features = torch.rand(5, 3)
    features[2, 1] = value
    with pytest.raises(DataError, match="outside its public bounds") as refused:
        InputNoise(1.0, 1.0, 1, torch.ones(3)).perturb(features, Reproducible(0))
    assert str(value) not in str(refused.value)


def test_a_part_of_nothing_is_refused():
    with pytest.raises(SettingError, match="floor"):
        InputNoise(1.0, 1.0, 1, torch.tensor([0.0, 2.0]))
    with pytest.raises(SettingError, match="epsilon"):
        InputNoise(1.0, 0.0, 1, torch.ones(2))


def test_a_batchs_picture_is_one_draw_and_the_bias_has_its_own():
    mechanism = InputNoise(1.0, 1.0, 1, torch.ones(6))
    assert mechanism.picture((1, 2, 3), Reproducible(0)).shape == (1, 2, 3)
    bias = mechanism.bias(20_000, Reproducible(0))
    assert stats.kstest((bias - 1).double().numpy(), stats.laplace.cdf).pvalue > 1e-6


def test_the_programs_numbers_for_cifar_10_are_noise_of_scale_one_half():
    # Shares .25 / 1.5 / .75, D_h = 2 * 3 * 10 * 10 * 9 and batches of 7,200.
    assert InputNoise(5400.0, 1.5, 7200, torch.ones(1200)).bias_scale == pytest.approx(0.5)


def seen(kind: type[Source], coefficients: str, seed: int = 0) -> Source:
    records = canary_records(0, 300, (4,), 10)
    inputs = InputNoise(100.0, 1.0, 300, torch.ones(4))
    return kind(records, inputs, LossNoise(10, 25, 0.15, 1800), coefficients, Reproducible(seed))  # type: ignore[arg-type]


def test_all_orders_have_noise_as_algorithm_1_prints_them():
    batch = seen(PerturbedRecords, "all-orders").batch(torch.arange(300))
    scale = 1812.5 / 0.15 / 1800  # D_F of 25 units and 10 classes: 6.7
    for noised, exact in ((batch.coefficients[:, 1:], 0.5), (batch.second[:, 1:], SECOND_ORDER)):
        standard = ((noised - exact) / scale).flatten().double().numpy()
        assert stats.kstest(standard, stats.laplace.cdf).pvalue > 1e-6
    assert seen(PerturbedRecords, "first-order").batch(torch.arange(3)).second is None
    shared = seen(SharedNoise, "all-orders").batch(torch.arange(3))
    assert shared.second.shape == (1, 10)


def test_the_matrix_is_one_draw_for_a_whole_training_and_leaves_labels_as_they_are():
    source = seen(SharedNoise, "matrix")
    assert source.matrix.shape == (10, 25)
    assert stats.kstest((source.matrix / (1812.5 / 0.15 / 1800)).flatten().double(), stats.laplace.cdf).pvalue > 1e-6
    first, second = (source.batch(torch.arange(3)) for _ in range(2))
    torch.testing.assert_close(first.coefficients, second.coefficients)
    assert not torch.equal(first.features, second.features)
    # The program adds its picture to the inputs and leaves the bias alone.
    assert first.bias is None


def test_constant_noise_is_one_draw_for_all_batches():
    source = seen(ConstantNoise, "hidden")
    first, second = (source.batch(torch.arange(start, start + 3)) for start in (0, 30))
    assert torch.equal(first.features, second.features)  # the records are alike
    assert torch.equal(first.hidden, second.hidden)
    afresh = seen(SharedNoise, "hidden")
    assert torch.equal(afresh.batch(torch.arange(3)).features, first.features)
    assert not torch.equal(afresh.batch(torch.arange(3)).features, first.features)
