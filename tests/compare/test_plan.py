"""A plan says what to run, refuses what makes no sense, and survives the way to another process."""

from __future__ import annotations

import json

import pytest

from noiseproof.compare import Plan, Task
from noiseproof.errors import SettingError


def test_without_methods_all_that_are_registered_run_and_the_baseline_once():
    tasks = Plan(epsilons=(1.0, 3.0)).tasks(("none", "a", "b"))
    assert tasks == (Task("none", 1.0), Task("a", 1.0), Task("b", 1.0), Task("a", 3.0), Task("b", 3.0))


def test_the_baseline_runs_though_it_was_not_asked_for():
    assert Plan(methods=("b",)).tasks(("none", "a", "b")) == (Task("none", 3.0), Task("b", 3.0))


def test_a_plan_survives_json():
    plan = Plan("people.csv", "income", "people.json", (0.5, 1.0), methods=("a",), seed=4, imports=("mine",))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_rows_of_different_tasks_have_different_files():
    tasks = Plan(epsilons=(0.5, 1.0, 1.5)).tasks(("none", "a", "a-1"))
    assert len({task.key for task in tasks}) == len(tasks)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilons": ()},
        {"epsilons": (0.0,)},
        {"epsilons": (1.0, 1.0)},
        {"delta": 1.0},
        {"neighbours": "cousins"},
        {"methods": ("a", "a")},
        {"queries": 0},
        {"trials": 4},
    ],
)
def test_what_makes_no_sense_is_refused(change):
    with pytest.raises(SettingError):
        Plan(**change)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="there are none, a"):
        Plan(methods=("c",)).tasks(("none", "a"))
