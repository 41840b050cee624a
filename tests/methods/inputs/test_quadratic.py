"""The coefficients of a data set's quadratic loss: their sensitivity, their noise, their minimiser."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import nn

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import SettingError
from noiseproof.methods.inputs import Functional
from noiseproof.methods.inputs.functional import Embedding
from noiseproof.methods.inputs.layers import first_order, taylor_loss
from noiseproof.methods.inputs.quadratic import Quadratic, solve
from noiseproof.privacy import Budget, Reproducible, Secure

WIDTH, CLASSES = 5, 3


def dataset(features: torch.Tensor, labels: torch.Tensor) -> Dataset:
    public = Public(shape=(features.shape[1],), classes=tuple("abc"[:CLASSES]))
    return Dataset("test", features, labels, public)


def some(records: int, seed: int = 0) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(records, WIDTH, generator=generator)
    return dataset(features, torch.randint(CLASSES, (records,), generator=generator))


def signed(features: torch.Tensor, norm: int) -> torch.Tensor:
    """Features of norm 1 of any sign, which is the worst that a map can give."""
    flat = features.double() * 2 - 1
    return flat / torch.linalg.vector_norm(flat, ord=norm, dim=1, keepdim=True)


def quadratic(law: str = "gaussian", neighbours: str = "add-or-remove", share: float = 0.5, **budget) -> Quadratic:
    norm = 2 if law == "gaussian" else 1
    return Quadratic(
        lambda features: signed(features, norm),
        WIDTH,
        CLASSES,
        law,
        share,
        Budget(**{"epsilon": 1.0, "delta": 1e-5, "neighbours": neighbours, **budget}),
    )


@given(
    seed=st.integers(0, 100_000),
    share=st.floats(0.05, 0.95),
    law=st.sampled_from(["gaussian", "laplace"]),
    neighbours=st.sampled_from(["add-or-remove", "replace-one"]),
)
@settings(deadline=None, derandomize=True, max_examples=150)
def test_one_record_moves_the_sums_by_no_more_than_one(seed, share, law, neighbours):
    records = some(4, seed)
    plan = quadratic(law, neighbours, share)
    without = [0, 1, 2] if neighbours == "replace-one" else [0, 1]
    moved = plan.sums(records.take(torch.tensor([0, 1, 3]))) - plan.sums(records.take(torch.tensor(without)))
    assert float(torch.linalg.vector_norm(moved, ord=2 if law == "gaussian" else 1)) <= 1


def numbers(records: int, seed: int) -> Dataset:
    """Records with a number to predict, one of them beyond its bounds, which must not count for more."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.rand(records, generator=generator).round(decimals=1)
    labels[0] = 7.0
    public = Public(shape=(WIDTH,), classes=(), task="regression", target_bounds=(0.0, 1.0))
    return Dataset("test", torch.rand(records, WIDTH, generator=generator), labels, public)


@given(
    seed=st.integers(0, 100_000),
    share=st.floats(0.05, 0.95),
    law=st.sampled_from(["gaussian", "laplace"]),
    neighbours=st.sampled_from(["add-or-remove", "replace-one"]),
)
@settings(deadline=None, derandomize=True, max_examples=100)
def test_so_it_is_of_numbers(seed, share, law, neighbours):
    records = numbers(4, seed)
    plan = replace(quadratic(law, neighbours, share), classes=1, numeric=True)
    without = [0, 1, 2] if neighbours == "replace-one" else [1, 2]
    there = [3, 1, 2] if neighbours == "replace-one" else [0, 1, 2]
    moved = plan.sums(records.take(torch.tensor(there))) - plan.sums(records.take(torch.tensor(without)))
    assert float(torch.linalg.vector_norm(moved, ord=2 if law == "gaussian" else 1)) <= 1


def test_without_noise_the_solution_of_numbers_is_least_squares():
    """scikit-learn's ridge, of the targets' distance from the middle of their range."""
    records = numbers(200, 0)
    phi = signed(records.features, 2)
    centred = records.labels.double().clamp(0, 1) - 0.5
    found = solve(phi.T @ phi, (centred @ phi)[None], 0.3, numeric=True)[:, 0]
    ridge = Ridge(alpha=0.3, fit_intercept=False).fit(phi.numpy(), centred.numpy())
    torch.testing.assert_close(found, torch.from_numpy(ridge.coef_), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_no_smaller_noise_would_do(law, neighbours):
    plan = quadratic(law, neighbours)
    one = torch.zeros(1, WIDTH)
    one[0, 0] = 1.0
    exact = Quadratic(lambda features: features.double(), WIDTH, CLASSES, law, 0.5, plan.budget)
    with_it = exact.sums(dataset(one, torch.zeros(1, dtype=torch.int64)))
    if neighbours == "add-or-remove":
        moved, most = with_it, 1.0
    else:
        # Opposite features of one class: c moves by as much as it can, S does not move.
        moved = with_it - exact.sums(dataset(-one, torch.zeros(1, dtype=torch.int64)))
        most = math.sqrt(0.5) if law == "gaussian" else 0.5
    assert float(torch.linalg.vector_norm(moved, ord=2 if law == "gaussian" else 1)) == pytest.approx(most, rel=1e-3)


def test_sums_do_not_depend_on_how_records_are_batched(monkeypatch):
    whole = quadratic().sums(some(100))
    monkeypatch.setattr("noiseproof.methods.inputs.quadratic._ENTRIES", 7 * WIDTH)
    torch.testing.assert_close(quadratic().sums(some(100)), whole)


def test_wide_maps_are_summed_in_float32_products_and_float64_totals(monkeypatch):
    exact = quadratic().sums(some(500))
    monkeypatch.setattr("noiseproof.methods.inputs.quadratic._WIDE", 1)
    torch.testing.assert_close(quadratic().sums(some(500)), exact, rtol=1e-5, atol=1e-4)


def test_what_is_released_is_symmetric_and_around_the_truth():
    plan, records = quadratic(epsilon=1e4), some(300)
    second, first = plan.release(plan.sums(records), Reproducible(0))
    phi = plan.embed(records.features)
    torch.testing.assert_close(second, second.T, rtol=0, atol=0)
    torch.testing.assert_close(second, phi.T @ phi, rtol=0, atol=1.0)
    centred = nn.functional.one_hot(records.labels, CLASSES).double() - 1 / CLASSES
    torch.testing.assert_close(first, centred.T @ phi, rtol=0, atol=1.0)


@pytest.mark.parametrize("rng", [Reproducible(0), Secure._for_test(bytes(range(32)))], ids=["seeded", "secure"])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_the_noise_on_second_moments_is_as_large_as_its_spread_says(law, rng):
    wide = Quadratic(lambda features: features, 200, CLASSES, law, 0.5, Budget(1.0, 1e-5))
    zeros = torch.zeros(200 * 201 // 2 + CLASSES * 200, dtype=torch.float64)
    second, _ = wide.release(zeros, rng)
    # The largest eigenvalue of a symmetric random matrix is within 15% of its limit at this size, but for one in a million.
    assert float(torch.linalg.eigvalsh(second).abs().max()) == pytest.approx(wide.spread(rng), rel=0.15)


def test_the_solution_minimises_the_taylor_loss():
    records, ridge = some(200), 1e-9
    plan = quadratic()
    phi = plan.embed(records.features)
    centred = nn.functional.one_hot(records.labels, CLASSES).double() - 1 / CLASSES
    weights = solve(phi.T @ phi, centred.T @ phi, ridge)
    # The paper's own coefficients: what was left out moves all classes alike.
    shift = 4 * torch.linalg.solve(phi.T @ phi, phi.sum(0)) * (1 / 2 - 1 / CLASSES)
    whole = (weights - shift[:, None]).requires_grad_()
    taylor_loss(phi @ whole, first_order(records.labels, CLASSES).double()).sum().backward()
    assert float(whole.grad.abs().max()) < 1e-6
    same = torch.softmax(phi @ weights, 1)
    torch.testing.assert_close(torch.softmax(phi @ whole.detach(), 1), same)


def test_second_moments_that_noise_left_indefinite_are_solved_without_their_negative_part():
    second = torch.diag(torch.tensor([4.0, -3.0])).double()
    weights = solve(second, torch.tensor([[1.0, 1.0]]).double(), 1.0)
    torch.testing.assert_close(weights, torch.tensor([[4 / 5], [4.0]]).double())


def test_gaussian_noise_needs_a_delta():
    with pytest.raises(SettingError, match="laplace"):
        quadratic(delta=0.0)
    assert quadratic("laplace", delta=0.0).proof().epsilon == 1.0


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_the_proof_is_the_budget(law, neighbours):
    proof = quadratic(law, neighbours).proof()
    assert proof.epsilon == pytest.approx(1.0, rel=1e-6)
    assert proof.delta == (1e-5 if law == "gaussian" else 0.0)


@given(
    st.sampled_from(["raw", "fourier"]),
    st.sampled_from([1, 2]),
    st.integers(0, 1000),
    st.sampled_from([0.0, 1e-20, 1.0]),
)
@settings(deadline=None, derandomize=True, max_examples=50)
def test_embedded_records_have_norm_one_whatever_they_are(name, norm, seed, size):
    embedding = Embedding((WIDTH,), name, width=40, norm=norm)
    with torch.no_grad():
        embedding.scale.copy_(torch.rand(embedding.width, generator=torch.Generator().manual_seed(seed)) + 0.01)
    norms = torch.linalg.vector_norm(embedding(size * some(20, seed).features).double(), ord=norm, dim=1)
    assert float((norms - 1).abs().max()) < 1e-5


def test_the_map_follows_from_the_shape():
    assert Embedding((1, 28, 28)).name == "scattering"
    assert Embedding((1, 28, 28)).width == 81 * 49 + 1
    assert Embedding((1, 8, 8)).name == "raw"
    assert Embedding((14,)).width == 15
    with pytest.raises(SettingError, match="setting features"):
        Functional(features="bins")
    with pytest.raises(SettingError, match="setting width"):
        Functional(features="fourier", width=0)


def test_an_eigenvalue_that_the_ridge_leaves_just_above_zero_does_not_make_weights_large():
    """A release of functional once had an AUC of 0.884 where most had 0.95: noise had left S + ridge nearly singular."""
    second = torch.diag(torch.tensor([10.0, -0.999])).double()
    weights = solve(second, torch.tensor([[1.0, 1.0]]).double(), 1.0)
    assert weights.abs().max() <= 4.0
