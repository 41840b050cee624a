"""A release answers what it may, and refuses the rest without spending."""

from __future__ import annotations

import threading

import pytest
import torch

from noiseproof import releases
from noiseproof.data.dataset import Public
from noiseproof.errors import BudgetError, DataError
from noiseproof.networks import Network
from noiseproof.privacy import Card

PUBLIC = Public(shape=(2, 3), classes=("a", "b"))
CARD = Card(method="none", place="none", neighbours="add-or-remove", randomness="reproducible", why="a test")


class Coin(releases.PredictionRelease):
    """Answers even odds."""

    def _answer(self, features, rng):
        return torch.full((len(features), 2), 0.5)

    def tensors(self):
        return {}

    def description(self):
        return {}

    @classmethod
    def restore(cls, saved):
        return cls(saved.card, saved.public, saved.settings, queries=1, rng=None)


@pytest.fixture
def coin():
    return Coin(CARD, PUBLIC, {}, queries=5, rng=None)


def test_each_answer_costs_one_query(coin):
    coin.predict(torch.zeros(2, 2, 3))
    assert coin.queries_left == 3


def test_a_batch_that_does_not_fit_is_refused_whole_and_costs_nothing(coin):
    coin.predict(torch.zeros(3, 2, 3))
    with pytest.raises(BudgetError, match="nothing was answered"):
        coin.predict(torch.zeros(3, 2, 3))
    assert coin.queries_left == 2


@pytest.mark.parametrize("bad", [torch.zeros(1, 3, 2), torch.zeros(1, 6), torch.full((1, 2, 3), float("nan"))])
def test_a_query_that_is_no_record_is_refused_and_costs_nothing(coin, bad):
    with pytest.raises(DataError):
        coin.predict(bad)
    assert coin.queries_left == 5


def test_threads_that_ask_at_once_never_get_more_than_the_budget_covers():
    coin = Coin(CARD, PUBLIC, {}, queries=40, rng=None)
    answered = []

    def ask():
        for _ in range(10):
            try:
                answered.append(len(coin.predict(torch.zeros(1, 2, 3))))
            except BudgetError:
                return

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answered) == 40
    assert coin.queries_left == 0


def test_predictions_are_probabilities_and_do_not_depend_on_the_chunk():
    network = Network("mlp", (2, 3), 2)
    release = releases.ModelRelease(network.build(0), network, CARD, PUBLIC, {})
    features = torch.rand(2500, 2, 3, generator=torch.Generator().manual_seed(1))
    whole = release.predict(features)
    assert whole.shape == (2500, 2)
    torch.testing.assert_close(whole.sum(1), torch.ones(2500))
    torch.testing.assert_close(whole[1020:1030], release.predict(features[1020:1030]))
    assert release.predict(features[:0]).shape == (0, 2)


def test_predicting_leaves_a_network_in_the_mode_it_was_in():
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(0.5)).train()
    releases.logits(module, torch.zeros(4, 3))
    assert module.training
