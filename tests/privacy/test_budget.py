from __future__ import annotations

import dataclasses
import math

import pytest

from noiseproof.errors import SettingError
from noiseproof.privacy import Budget


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan])
def test_an_epsilon_is_finite_and_positive(epsilon):
    with pytest.raises(SettingError, match="epsilon"):
        Budget(epsilon)


@pytest.mark.parametrize("delta", [-1e-9, 1, 2, math.nan])
def test_a_delta_is_at_least_0_and_below_1(delta):
    with pytest.raises(SettingError, match="delta"):
        Budget(1, delta)


def test_neighbours_are_named():
    with pytest.raises(SettingError, match="add-or-remove, replace-one"):
        Budget(1, neighbours="unbounded")


def test_queries_are_at_least_one():
    with pytest.raises(SettingError, match="queries"):
        Budget(1, queries=0)


def test_a_budget_does_not_change():
    budget = Budget(1, 0.0, "replace-one", 10)
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.epsilon = 2
