"""Losses of classes and numbers: slopes of at most 1, the minimisers that they are named for, answers within bounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.data.dataset import Public
from noiseproof.errors import SettingError
from noiseproof.networks.objectives import Objective

NUMBERS = Public(shape=(2,), classes=(), task="regression", target_bounds=(0.0, 10.0))
COUNTS = Public(shape=(2,), classes=(), task="count", target_bounds=(0.0, 10.0))
CLASSES = Public(shape=(2,), classes=("no", "yes"), class_shares=(0.9, 0.1))
LOSSES = ["squared", "huber", "quantile", "poisson"]


@given(
    st.sampled_from(LOSSES),
    st.floats(-1e6, 1e6),
    st.floats(0, 1),
    st.floats(0.05, 0.95),
    st.floats(0.01, 2.0),
)
@settings(deadline=None, derandomize=True, max_examples=300)
def test_no_output_and_no_target_make_a_slope_steeper_than_one(loss, output, target, level, huber):
    outputs = torch.tensor([[output]], dtype=torch.float64, requires_grad=True)
    Objective(loss, level=level, huber=huber).losses(outputs, torch.tensor([target]).double()).sum().backward()
    assert float(outputs.grad.abs()) <= 1 + 1e-12


def best(objective, targets):
    """The one answer that minimises the loss over all targets."""
    outputs = torch.linspace(-3, 1, 40_001, dtype=torch.float64)[:, None, None].expand(-1, len(targets), 1)
    means = objective.losses(outputs, targets.expand(len(outputs), -1)).mean(1)
    return float(objective.answers(outputs[means.argmin(), :1])[0, 0])


def test_each_loss_is_least_at_what_it_predicts():
    targets = torch.tensor([0.0, 0.1, 0.1, 0.2, 0.9], dtype=torch.float64)
    assert best(Objective("squared"), targets) == pytest.approx(0.26, abs=1e-3)
    assert best(Objective("poisson"), targets) == pytest.approx(0.26, abs=1e-3)
    assert best(Objective("quantile", level=0.7), targets) == pytest.approx(0.2, abs=1e-3)
    # One target pulls with its sign alone, the others with their residuals over the width.
    assert best(Objective("huber", huber=0.4), targets) == pytest.approx(0.2, abs=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_answers_stay_within_the_public_bounds(loss):
    answers = Objective(loss).answers(torch.tensor([[-1e9], [0.0], [1e9]]))
    assert ((answers >= 0) & (answers <= 1)).all()
    assert NUMBERS.in_units(answers)[1] == pytest.approx(5.0)


def test_the_task_decides_what_auto_is():
    assert Objective.of(NUMBERS, {}).loss == "squared"
    assert Objective.of(COUNTS, {}).loss == "poisson"
    assert Objective.of(CLASSES, {}).loss == "cross-entropy"


def test_cross_entropy_is_torchs_own_to_the_last_bit():
    outputs, labels = torch.randn(7, 2), torch.arange(7) % 2
    expected = torch.nn.functional.cross_entropy(outputs, labels, reduction="none")
    assert torch.equal(Objective().losses(outputs, labels), expected)


def test_class_weights_are_public_numbers_or_follow_from_declared_shares():
    given_by_hand = Objective.of(CLASSES, {"class_weights": (1.0, 30.0)})
    assert given_by_hand.class_weights == (1.0, 30.0)
    balanced = Objective.of(CLASSES, {"class_weights": "balanced"}).class_weights
    assert sum(share * weight for share, weight in zip((0.9, 0.1), balanced, strict=True)) == pytest.approx(1.0)
    outputs, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    assert given_by_hand.losses(outputs, labels).tolist() == pytest.approx([math.log(2), 30 * math.log(2)])
    undeclared = Public(shape=(2,), classes=("no", "yes"))
    with pytest.raises(SettingError, match="private unless the schema declares them"):
        Objective.of(undeclared, {"class_weights": "balanced"})
    with pytest.raises(SettingError, match="as many weights"):
        Objective.of(CLASSES, {"class_weights": (1.0,)})


@pytest.mark.parametrize(
    ("public", "given_settings", "message"),
    [
        (CLASSES, {"loss": "huber"}, "not for classes"),
        (CLASSES, {"interval": 0.9}, "not for classes"),
        (NUMBERS, {"class_weights": (1.0, 2.0)}, "for classes"),
        (COUNTS, {"threshold": 0.2}, "for classes"),
    ],
)
def test_settings_of_another_task_are_refused_in_words(public, given_settings, message):
    with pytest.raises(SettingError, match=message):
        Objective.of(public, given_settings)
