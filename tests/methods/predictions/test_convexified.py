"""The convexified loss: what eq. 22 says, what the authors' program computes, and no overflow on the way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import SettingError
from noiseproof.methods.predictions import Convexified
from noiseproof.methods.predictions.convexified import log_mean_exp
from noiseproof.networks import Network, Training, fit_stack


def logits_with(losses: torch.Tensor, classes: int) -> torch.Tensor:
    """Logits (k, batch, classes) whose cross-entropies at label 0 are the losses (k, batch)."""
    logits = torch.zeros(*losses.shape, classes, dtype=losses.dtype)
    # With the other classes at 0, a first logit of -log((e^l - 1) / (C - 1)) has loss l.
    logits[..., 0] = math.log(classes - 1) - losses - torch.log1p(-torch.exp(-losses))
    return logits


def even(losses: torch.Tensor) -> torch.Tensor:
    return torch.full_like(losses, 1 / losses.shape[-1])


LOSSES = st.lists(st.floats(0.01, 5.0), min_size=1, max_size=8)


@settings(deadline=None, derandomize=True, max_examples=50)
@given(LOSSES, st.floats(0.1, 10.0), st.integers(2, 6))
def test_both_forms_are_the_logarithm_of_a_mean_of_exponentials(values, alpha, classes):
    losses = torch.tensor([values], dtype=torch.float64)
    labels = torch.zeros(losses.shape, dtype=torch.int64)
    logits = logits_with(losses, classes)
    exponentials = np.exp(alpha * np.array(values))
    paper = Convexified(alpha)(logits, labels, even(losses))
    assert float(paper) == pytest.approx(math.log(exponentials.mean()) / alpha, abs=1e-9)
    entries = np.concatenate([exponentials[:, None], np.ones((len(values), classes - 1))], axis=1)
    code = Convexified(alpha, "code")(logits, labels, even(losses))
    assert float(code) == pytest.approx(math.log(entries.mean()) / alpha, abs=1e-9)


@pytest.mark.parametrize("form", ["paper", "code"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_alpha_10_and_losses_of_50_have_finite_values_and_gradients(form, dtype):
    losses = torch.tensor([[50.0, 49.0, 1.0, 0.1]], dtype=dtype)
    logits = logits_with(losses, 3).requires_grad_()
    value = Convexified(10.0, form)(logits, torch.zeros(1, 4, dtype=torch.int64), even(losses))
    value.sum().backward()
    # The worst loss decides: 50 + log(1 / 4) / 10, and for the code's form one third of the entries.
    expected = 50 + math.log(1 / 4 if form == "paper" else 1 / 12) / 10
    assert float(value.detach()) == pytest.approx(expected, abs=1e-4)
    assert torch.isfinite(logits.grad).all()
    # Of all the weight that the four records could have the worst one has nearly all.
    share = logits.grad[0].norm(dim=1) / logits.grad[0].norm(dim=1).sum()
    assert float(share[0]) > 0.99


def test_a_small_alpha_is_the_mean_and_a_large_one_the_maximum():
    losses = torch.tensor([[0.5, 1.0, 3.0]], dtype=torch.float64)
    assert float(log_mean_exp(losses, even(losses), torch.tensor([1e-6]))) == pytest.approx(1.5, abs=1e-5)
    assert float(log_mean_exp(losses, even(losses), torch.tensor([1e3]))) == pytest.approx(3.0, abs=2e-3)


def test_records_without_a_share_count_for_nothing():
    losses = torch.tensor([[0.5, 1.0, 70.0]], dtype=torch.float64)
    shares = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    alpha = torch.tensor([2.0], dtype=torch.float64)
    assert float(log_mean_exp(losses, shares, alpha)) == float(log_mean_exp(losses[:, :2], shares[:, :2], alpha))


def test_a_stack_with_several_alphas_trains_each_network_as_if_alone():
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(40, 5, generator=generator)
    labels = torch.randint(3, (40,), generator=generator)
    network, everyone = Network("lu-mlp", (5,), 3), torch.arange(40)

    def trained(alpha, count):
        training = Training(epochs=3, batch_size=16, lr=0.01, l2=1e-3, loss=Convexified(alpha, "code"))
        return fit_stack(network, features, labels, [everyone] * count, training, seeds=[7] * count)

    together = trained((0.5, 5.0), 2)
    for index, alpha in enumerate((0.5, 5.0)):
        alone = trained(alpha, 1)
        for name, value in alone.parameters.items():
            torch.testing.assert_close(together.parameters[name][index], value[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("alpha", "form"), [(0.0, "paper"), (-1.0, "paper"), (math.nan, "code"), (1.0, "other")])
def test_impossible_settings_are_refused(alpha, form):
    with pytest.raises(SettingError):
        Convexified(alpha, form)


def test_as_many_alphas_as_networks_are_needed():
    with pytest.raises(SettingError, match="3 networks"):
        Convexified((1.0, 2.0))(torch.zeros(3, 2, 2), torch.zeros(3, 2, dtype=torch.int64), torch.full((3, 2), 0.5))
