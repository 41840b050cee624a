"""Methods at the gradients spend what they were given, and their cards say what is true of what ran."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import noiseproof as npf
from noiseproof.data import Dataset, Public
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import accountants
from noiseproof.privacy.events import sampled_gaussian

PROVEN = ["dp-sgd", "dp-sgd-bounded", "dp-sgd-adaptive"]
UNPROVEN = ["noisy-gradient", "quantile-flat", "quantile-layer"]


@pytest.fixture(scope="module")
def blobs():
    """Two classes that a line separates."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(600) % 2
    features = (0.5 + 0.2 * torch.randn(600, 4, generator=generator) + 0.3 * (labels[:, None] - 0.5)).clamp(0, 1)
    return Dataset("blobs", features, labels, Public(shape=(4,), classes=("a", "b")))


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_a_proven_method_stays_within_its_budget_by_the_steps_it_took(blobs, name, neighbours):
    card = npf.train(name, blobs, epsilon=2, neighbours=neighbours, seed=0, epochs=3, network="linear").card
    event = sampled_gaussian(card.ran["sample_rate"], card.ran["noise_multiplier"], card.ran["steps"])
    spent = accountants.epsilon(event, 1e-5, neighbours=neighbours).epsilon
    assert card.verdict == "rehearsal"
    assert card.proven.epsilon == pytest.approx(spent, rel=1e-9)
    assert 2 * 0.98 < spent <= 2


@pytest.mark.parametrize("kind", ["exponential", "step"])
def test_a_schedule_of_noise_is_calibrated_and_accounted_for_step_by_step(blobs, kind):
    decay = 0.02 if kind == "exponential" else 0.8
    card = npf.train(
        "dp-sgd", blobs, epsilon=2, seed=0, epochs=10, sigma_schedule=kind, sigma_decay=decay, every=4, network="linear"
    ).card
    assert 2 * 0.98 < card.proven.epsilon <= 2


def test_a_noise_that_is_given_is_used_and_its_epsilon_told(blobs):
    card = npf.train("dp-sgd", blobs, epsilon=2, seed=0, noise_multiplier=5.0, epochs=3, network="linear").card
    assert card.ran["noise_multiplier"] == 5.0
    assert card.proven.epsilon == card.claimed.epsilon != 2


@pytest.mark.parametrize("name", UNPROVEN)
def test_a_published_method_without_an_epsilon_claims_and_proves_none(blobs, name):
    release = npf.train(name, blobs, epsilon=2, seed=0, epochs=3, network="linear")
    assert release.card.claimed is None
    assert release.card.proven is None
    assert release.card.verdict == "nothing proven"
    assert "states no" in release.card.why or "states none" in release.card.why


@pytest.mark.parametrize("name", [*PROVEN, *UNPROVEN])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "adadelta"])
def test_any_torch_optimizer_learns_from_the_noised_gradients(blobs, name, optimizer):
    rates = {"sgd": 4.0 if name in PROVEN else 0.3, "adam": 0.05, "adagrad": 0.3, "adadelta": 3.0}
    release = npf.train(
        name,
        blobs,
        epsilon=8,
        seed=0,
        epochs=20,
        batch_size=100,
        optimizer=optimizer,
        lr=rates[optimizer],
        network="linear",
    )
    assert npf.accuracy(release, blobs) > 0.6


def test_the_micro_batch_changes_memory_alone(blobs):
    modules = [
        npf.train("dp-sgd", blobs, epsilon=2, seed=3, epochs=2, micro_batch_size=size, network="linear").module
        for size in (512, 37)
    ]
    torch.testing.assert_close(*(module.state_dict() for module in modules), rtol=1e-4, atol=1e-5)


def test_a_layer_that_mixes_records_is_refused_with_its_replacement(blobs):
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    with pytest.raises(UnsupportedError, match="GroupNorm"):
        npf.train("dp-sgd", blobs, epsilon=2, seed=0, network=module)


def test_an_adaptive_clipping_norm_takes_no_schedule(blobs):
    with pytest.raises(SettingError, match="schedules"):
        npf.train("dp-sgd-adaptive", blobs, epsilon=2, seed=0, sigma_schedule="step", sigma_decay=0.5)


@pytest.mark.parametrize(
    "setting", [{"max_grad_norm": 0.0}, {"epochs": -1.0}, {"momentum": 1.0}, {"optimizer": "lbfgs"}]
)
def test_a_setting_outside_its_range_is_refused_before_anything_is_spent(blobs, setting):
    with pytest.raises(SettingError):
        npf.train("dp-sgd", blobs, epsilon=2, seed=0, **setting)


def test_secure_training_stays_within_the_budget_with_its_own_inexactness_counted_in(blobs):
    card = npf.train("dp-sgd", blobs, epsilon=2, epochs=3, network="linear").card
    assert card.randomness == "secure"
    assert card.proven.epsilon <= 2
    event = sampled_gaussian(card.ran["sample_rate"], card.ran["noise_multiplier"], card.ran["steps"])
    assert card.proven.epsilon >= accountants.epsilon(event, 1e-5).epsilon


class Borrowing(nn.Module):
    """A network whose second layer's weights are used outside of that layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, values):
        return torch.tanh(self.first(values)) @ self.second.weight.T + self.second.bias


@pytest.mark.parametrize("name", [*PROVEN, *UNPROVEN])
def test_networks_may_use_their_parameters_anywhere(name):
    dataset = Dataset("d", torch.rand(20, 4), torch.arange(20) % 2, Public((4,), ("a", "b")))
    release = npf.train(name, dataset, seed=0, network=Borrowing(), epochs=1, batch_size=10)
    assert release.predict(dataset.features).shape == (20, 2)


def test_settings_that_a_method_would_ignore_are_refused():
    for name in ("quantile-flat", "quantile-layer"):
        for setting in ("max_grad_norm", "micro_batch_size"):
            with pytest.raises(SettingError, match=f"no setting '{setting}'"):
                npf.methods.build(name, {setting: 1})
