"""dp-mf: proven for records in a fixed order, by the strategy's sensitivity; with sampling, by rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import noiseproof as npf
from noiseproof.errors import SettingError
from noiseproof.methods import build
from noiseproof.methods.gradients.descent import make_optimizer, schedule_lr
from noiseproof.methods.gradients.dp_mf import learning_rates
from noiseproof.privacy import Budget, accountants
from noiseproof.privacy.events import ComposedDpEvent, GaussianDpEvent, sampled_gaussian
from noiseproof.privacy.factorization import Workload


@pytest.fixture(scope="module")
def digits():
    return npf.load("digits")


@pytest.mark.parametrize("strategy", ["banded", "toeplitz", "buffered", "tree"])
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_a_training_in_fixed_order_is_one_gaussian_mechanism(digits, strategy, neighbours):
    release = npf.train(
        "dp-mf", digits.train, epsilon=2, neighbours=neighbours, network="linear", epochs=3, strategy=strategy, seed=0
    )
    card = release.card
    stated = accountants.epsilon(GaussianDpEvent(card.ran["noise_multiplier"]), 1e-5, neighbours=neighbours).epsilon
    assert card.proven.epsilon == pytest.approx(stated)
    assert card.proven.epsilon <= 2
    assert "fixed order, each record at most 3 times" in card.ran["sampler"]
    assert card.ran["batch_size"] == pytest.approx(len(digits.train) / 3)  # three batches an epoch, and the divisor
    assert not any("Poisson" in assumption for assumption in card.proven.assumptions)


def test_sampled_rounds_are_accounted_as_sampled_mechanisms(digits):
    settings = {"sampled": True, "bands": 4, "batch_size": 50, "epochs": 3}
    release = npf.train("dp-mf", digits.train, epsilon=2, network="linear", seed=0, **settings)
    ran, steps = release.card.ran, release.card.ran["steps"]
    rate = 50 * 4 / len(digits.train)
    stated = accountants.epsilon(sampled_gaussian(rate, ran["noise_multiplier"], -(-steps // 4)), 1e-5).epsilon
    assert release.card.proven.epsilon == pytest.approx(stated)
    assert any("Poisson" in assumption for assumption in release.card.proven.assumptions)


def test_what_is_planned_is_what_is_charged(digits):
    budget = Budget(2.0, 1e-5)
    for settings in ({}, {"sampled": True, "bands": 4, "batch_size": 50}):
        method = build("dp-mf", {"epochs": 2, **settings})
        release = npf.train("dp-mf", digits.train, epsilon=2, network="linear", seed=0, epochs=2, **settings)
        ran = ComposedDpEvent([event for event, count in release.event_log for _ in range(count)])
        planned = accountants.epsilon(method.planned_event(digits.train, budget), 1e-5).epsilon
        assert planned == pytest.approx(accountants.epsilon(ran, 1e-5).epsilon)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_the_workload_has_the_learning_rates_of_the_training(schedule):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = make_optimizer("sgd", [parameter], 2.0)
    schedule_lr(optimizer, schedule, 7)
    seen = []
    for _ in range(7):
        before = parameter.item()
        parameter.grad = torch.ones(1)
        optimizer.step()
        seen.append((before - parameter.item()) / 2)
    assert seen == pytest.approx(learning_rates(schedule, 7) or np.ones(7), abs=1e-5)


def test_it_learns_without_a_sampler(digits):
    release = npf.train("dp-mf", digits.train, epsilon=8, seed=0)
    assert npf.accuracy(release, digits.test) > 0.9


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sigma_schedule": "time", "sigma_decay": 0.1}, "one strategy for all steps"),
        ({"sampled": True, "strategy": "tree"}, "sampling is accounted for with banded"),
        ({"bands": 0}, "bands"),
    ],
)
def test_what_has_no_proof_is_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        build("dp-mf", settings)


@pytest.mark.parametrize(
    ("settings", "steps", "coordinates", "kind"),
    [
        ({}, 440, 39_700, "banded"),
        ({"strategy": "auto"}, 440, 39_700, "dense"),
        ({"strategy": "auto"}, 440, 10**6, "banded"),
        ({"strategy": "auto"}, 3000, 10, "banded"),
        ({"strategy": "auto", "sampled": True}, 440, 10, "banded"),
    ],
)
def test_a_dense_strategy_is_taken_where_memory_allows(settings, steps, coordinates, kind):
    assert build("dp-mf", settings).kind(steps, coordinates) == kind


def noise_left(method, records, budget):
    """The root mean square of the weights' noise, in learning rates times clipping norms over batches."""
    steps, rate = method.steps(records), method.rate(records)
    plan = method.planned(steps)
    sigma = method.calibrated(rate, method.charged(rate, steps), budget)
    sensitivity = plan.largest_column if rate < 1 else plan.sensitivity
    return sigma * sensitivity * plan.variances(Workload(method.momentum)).mean() ** 0.5


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_sampled_bands_are_as_many_as_leave_the_least_noise(epsilon):
    budget = Budget(epsilon)
    method = build("dp-mf", {"epochs": 10, "batch_size": 100, "momentum": 0.0})
    found = method.least_noise(1600, budget)
    tried = {bands: noise_left(replace(found, bands=bands), 1600, budget) for bands in (1, 2, 4, 8, 16)}
    assert tried[found.bands] <= 1.01 * min(tried.values())
    assert (found.bands == 1) == (epsilon == 0.5)  # dp-sgd's own sampling is best where epsilon is small
