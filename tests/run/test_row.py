"""An owner's rehearsal spends no query; settings and the budget's course follow from public facts."""

from __future__ import annotations

import pytest
import torch

from noiseproof import methods, releases
from noiseproof.data import Dataset, load
from noiseproof.data.dataset import Public
from noiseproof.errors import BudgetError, DataError
from noiseproof.privacy import Budget, Card, Reproducible
from noiseproof.progress import SILENT
from noiseproof.run import Plan, RowKey, resolve
from noiseproof.run.row import Rehearsal, compute_row, spending


class Coins(releases.PredictionRelease):
    """Answers at random: all its noise and nothing else."""

    def _answer(self, features, rng):
        return torch.rand(len(features), 2, generator=rng.generator)

    def tensors(self):
        return {}

    @classmethod
    def restore(cls, saved):
        raise NotImplementedError


@pytest.fixture
def coins():
    card = Card(
        method="coins", place="predictions", neighbours="add-or-remove", randomness="reproducible", why="a test"
    )
    public = Public(shape=(3,), classes=("a", "b"))
    return Coins(card, public, {}, queries=10, rng=Reproducible(0))


def test_rehearsed_answers_spend_no_query(coins):
    Rehearsal(coins, 0).predict(torch.zeros(500, 3))
    assert coins.queries_left == 10
    coins.predict(torch.zeros(10, 3))
    with pytest.raises(BudgetError):
        coins.predict(torch.zeros(1, 3))


def test_rehearsed_noise_is_none_that_the_release_answers_with(coins):
    rehearsed = Rehearsal(coins, 0).predict(torch.zeros(10, 3))
    assert torch.equal(rehearsed, Rehearsal(coins, 0).predict(torch.zeros(10, 3)))
    answered = coins.predict(torch.zeros(10, 3))
    assert not torch.isin(rehearsed, answered).any()


def test_a_rehearsal_refuses_what_the_release_would(coins):
    with pytest.raises(DataError):
        Rehearsal(coins, 0).predict(torch.zeros(10, 4))


def zeros(records, shape=(5,), kind="vector"):
    public = Public(shape=shape, classes=("a", "b"), kind=kind)
    return Dataset("zeros", torch.zeros(records, *shape), torch.zeros(records, dtype=torch.int64), public)


@pytest.mark.parametrize("method", list(methods.registry()))
@pytest.mark.parametrize("records", [50, 30_000, 200_000])
def test_what_is_trained_depends_on_no_record(method, records):
    ones = zeros(records)
    ones.features.fill_(1)
    ones.labels.fill_(1)
    assert resolve(method, ones, epsilon=1.0) == resolve(method, zeros(records), epsilon=1.0)


def test_many_records_are_seen_less_often():
    assert resolve("none", zeros(1000), epsilon=1.0).method == methods.build("none")
    assert resolve("none", zeros(200_000), epsilon=1.0).method.epochs < 30


def test_neuron_methods_get_a_dense_network_for_pictures():
    pictures = zeros(10, (1, 28, 28), "image")
    assert resolve("none", pictures, epsilon=1.0).network_name == "small-cnn"
    assert resolve("neuron-gaussian", pictures, epsilon=1.0).network_name == "lu-mlp"


@pytest.fixture(scope="module")
def row():
    split = load("breast-cancer")
    plan = Plan("breast-cancer", epsilons=(2.0,), trials=20, methods=("dp-sgd",))
    return compute_row(plan, RowKey("dp-sgd", 2.0), split, SILENT)[0]


def test_a_row_says_what_the_contract_asks(row):
    assert {"method", "accuracy", "card", "attack", "seconds"} <= row.model_dump().keys()
    assert row.verdict == "proven"
    assert row.card.audited.trials == 20
    assert row.attack.roc.fpr[-1] == row.attack.roc.tpr[-1] == 1


def test_a_reading_is_a_row_of_its_own_with_its_settings():
    split = load("breast-cancer")
    plan = Plan("breast-cancer", epsilons=(2.0,), trials=20, methods=("ilm:program",))
    found, release = compute_row(plan, RowKey("ilm:program", 2.0), split, SILENT)
    assert (found.method, release.method) == ("ilm:program", "ilm")
    assert (found.settings["draw"], found.settings["coefficients"]) == ("batch", "matrix")
    assert found.card.proven is None
    assert found.measures.fits == 1


def test_a_proven_method_is_fitted_several_times_since_a_release_is_one_more_draw(row):
    assert row.measures.fits == 3
    assert row.measures.worst <= row.value <= row.measures.best
    assert row.measures.error > row.measures.standard_error


def test_the_course_of_the_budget_rises_to_the_cards_number(row):
    course = row.spending
    assert course.done[0] == course.epsilon[0] == 0
    assert course.done[-1] == row.card.ran["steps"]
    assert list(course.epsilon) == sorted(course.epsilon)
    assert course.epsilon[-1] == row.card.proven.epsilon


def test_nothing_proven_has_no_course(coins):
    assert spending(coins, Budget(1.0)) is None


def test_the_course_of_the_budget_counts_what_was_released_beside_the_steps():
    digits = load("digits").train
    fitting = resolve("dp-sgd", digits, epsilon=3.0, network="linear", settings={"epochs": 2.0, "precondition": 0.3})
    release = fitting.fit(digits, Budget(3.0), rng=Reproducible(0))
    course = spending(release, Budget(3.0))
    steps = release.card.ran["steps"]
    assert course.unit == "releases"
    assert course.done[-1] == steps + 2, "two statistics before the first step"
    alone = release.event_log[-1:]
    release.event_log, release.card = alone, release.card
    assert spending(release, Budget(3.0)).epsilon[1] < course.epsilon[1]
