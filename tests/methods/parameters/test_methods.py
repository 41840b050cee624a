"""dp-pg and dp-pgp publish what the paper says, and their cards what is true; corollary 3 holds draw for draw."""

from __future__ import annotations

import math

import pytest
import torch

from noiseproof import accuracy, load_bundle, methods
from noiseproof.data import load
from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.methods.parameters import Collection, DpPg, DpPgp, dp_pg, train_collection, true_sensitivity
from noiseproof.methods.parameters.collection import ParameterLayout
from noiseproof.methods.parameters.dp_pgp import select_largest
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible, Secure

BUDGET = Budget(1.0)
QUICK = {"models": 10, "epochs": 15, "lr": 0.2}


@pytest.fixture(scope="module")
def digits():
    return load("digits")


@pytest.fixture(scope="module")
def network(digits):
    return Network("mlp", digits.train.public.shape, 10, {"hidden": 16})


@pytest.fixture(scope="module")
def releases(digits, network):
    """Both methods' releases from the same seed, and so from the same collection."""
    return {
        method.name: method.fit(network, digits.train, Budget(5.0), rng=Reproducible(0))
        for method in (DpPg(**QUICK), DpPgp(**QUICK))
    }


def test_both_are_nearly_as_accurate_as_a_trained_network(releases, digits):
    for release in releases.values():
        assert accuracy(release, digits.test) > 0.9


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("epsilon", [0.05, 1.0])
def test_dp_pgp_with_gamma_0_is_dp_pg_draw_for_draw(collection, seed, epsilon):
    """Corollary 3."""
    plain = DpPg(models=20).publish(collection, Budget(epsilon), rng=Reproducible(seed))
    grouped = DpPgp(models=20, gamma=0.0).publish(collection, Budget(epsilon), rng=Reproducible(seed))
    assert torch.equal(plain.vector, grouped.vector)
    assert grouped.card.claimed.epsilon == plain.card.claimed.epsilon == epsilon
    assert grouped.card.ran["true epsilon of a model"] == plain.card.ran["true epsilon of a model"]
    some = DpPgp(models=20, gamma=0.5).publish(collection, Budget(epsilon), rng=Reproducible(seed))
    assert not torch.equal(some.vector, plain.vector)


def test_dp_pgp_draws_what_it_does_not_group(collection):
    method = DpPgp(models=20, gamma=0.2)
    published = method.publish(collection, Budget(1e6), rng=Reproducible(0))
    grouped = torch.cat(list(select_largest(collection.mean(), collection.layout, 0.2).values()))
    assert len(grouped) == published.card.ran["grouped parameters"] == 12
    # With next to no noise what is grouped is the mean network's.
    assert torch.allclose(published.vector[grouped], collection.mean()[grouped], atol=1e-4)


def test_line_21_as_printed_publishes_something_else(collection):
    corrected, printed = (
        DpPgp(models=20, as_printed=flag).publish(collection, Budget(1e6), rng=Reproducible(0)).vector
        for flag in (False, True)
    )
    mean = collection.mean()
    assert float((corrected - mean).abs().max()) < float((printed - mean).abs().max())


def test_the_card_has_the_papers_epsilon_for_models_the_true_one_and_nothing_for_records(releases):
    card = releases["dp-pg"].card
    assert (card.claimed.epsilon, card.claimed.delta, card.claimed.unit, card.unit) == (5.0, 0.0, "model", "model")
    assert card.proven is None
    assert card.verdict == "nothing proven"
    assert "record" in card.why
    ran = card.ran
    one = 5.0 * math.erf(1 / (2 * math.sqrt(2))) / 10 * 90
    assert ran["true sensitivity"] == true_sensitivity(10, 1.0)
    assert ran["true epsilon of a draw"] == pytest.approx(one)
    # N draws of a pure mechanism: never more than their sum, and here far more than the largest of them.
    assert 100 * one < ran["true epsilon of a model"] <= ran["parameters"] * one * (1 + 1e-9)
    assert ran["parameters"] == 64 * 16 + 16 + 16 * 10 + 10


def test_grouped_parameters_have_no_finite_epsilon_for_a_model(releases):
    card = releases["dp-pgp"].card
    assert card.ran["true epsilon of a model"] is None
    assert "no finite epsilon" in card.why
    assert card.claimed.epsilon == 5.0
    ran = card.ran
    assert (ran["epsilon of a draw"], ran["epsilon of the clustering"], ran["epsilon of the shifts"]) == (5.0, 1.0, 4.0)


def test_the_claim_of_dp_pgp_is_the_papers_maximum():
    assert DpPgp(epsilon_draw=1, epsilon_cluster=2, epsilon_shift=3).claim(Budget(5.0)).epsilon == 5
    assert DpPgp(epsilon_draw=4, epsilon_cluster=1, epsilon_shift=1).claim(Budget(5.0)).epsilon == 4
    assert DpPgp(gamma=1.0, epsilon_draw=4, epsilon_cluster=1, epsilon_shift=1).claim(Budget(5.0)).epsilon == 2
    with pytest.raises(SettingError, match="must not be above the budget"):
        DpPgp(epsilon_draw=6).claim(Budget(5.0))


def test_the_true_sensitivity_flattens_the_draws(collection):
    sharp, flat = (
        DpPg(models=20, sensitivity=kind).publish(collection, BUDGET, rng=Reproducible(0)) for kind in ("paper", "true")
    )
    mean, spread = collection.mean(), collection.rows.std(0).clamp(min=1e-6)
    assert float(((sharp.vector - mean) / spread).abs().mean()) < float(((flat.vector - mean) / spread).abs().mean())
    assert flat.card.ran["true epsilon of a draw"] == pytest.approx(1.0)


def test_parameters_that_never_moved_are_told_of(collection):
    found = DpPg(models=20).publish(collection, BUDGET, rng=Secure())
    assert found.fixed == 2
    # How many there are is not noised, and so no part of the card.
    assert any("same in all networks" in note for note in found.card.notes)
    assert "records" not in found.card.ran


def test_a_threshold_that_no_draw_meets_stops_and_one_that_is_met_is_told(digits, network, releases):
    small = Collection(torch.randn(3, releases["dp-pg"].card.ran["parameters"]), ParameterLayout.of(network.build()))
    method = DpPg(**QUICK, threshold=0.99, most_draws=3)
    with pytest.raises(NoiseproofError, match=r"none of 3 draws was more accurate than 0\.99"):
        method.fit(network, digits.train, BUDGET, rng=Reproducible(0), collection=small)
    easy = DpPg(**QUICK, threshold=0.0).fit(network, digits.train, BUDGET, rng=Reproducible(0), collection=small)
    assert easy.card.ran["draws at most"] == 20
    assert any("until one was accurate enough" in note for note in easy.card.notes)
    once = DpPg(**QUICK).fit(network, digits.train, BUDGET, rng=Reproducible(0), collection=small)
    # The number of draws depends on the records, so that all that may be made are counted.
    assert easy.card.ran["true epsilon of a model"] > 10 * once.card.ran["true epsilon of a model"]


def test_the_first_draw_above_the_threshold_is_published_and_the_draws_are_counted(collection):
    seen = []

    def accuracy(vector):
        seen.append(vector)
        return len(seen) / 10

    found = DpPg(models=20, threshold=0.3).publish(collection, BUDGET, rng=Reproducible(0), accuracy=accuracy)
    assert torch.equal(found.vector, seen[3])
    assert len(seen) == 4


def test_without_a_threshold_the_first_draw_is_published_and_never_tested(collection):
    found = DpPg(models=20).publish(collection, BUDGET, rng=Reproducible(0), accuracy=lambda _: 1 / 0)
    assert found.card.ran["draws at most"] == 1


def test_an_impossible_threshold_stops_after_the_stated_number_of_draws(collection):
    drawn = []
    method = DpPg(models=20, threshold=0.9, most_draws=7)
    with pytest.raises(NoiseproofError, match=r"none of 7 draws was more accurate than 0\.9; nothing was published"):
        method.publish(collection, BUDGET, rng=Reproducible(0), accuracy=lambda _: drawn.append(1) or 0.9)
    assert len(drawn) == 7


def test_a_threshold_needs_something_to_measure_accuracy_with(collection):
    with pytest.raises(SettingError, match="needs records"):
        DpPg(threshold=0.5).publish(collection, BUDGET, rng=Reproducible(0))


def test_collections_that_cannot_be_published_from_are_refused(collection_of):
    for rows, words in (
        (torch.zeros(1, 5), "at least 2"),
        (torch.ones(4, 5), "all equal"),
        (torch.full((2, 5), math.nan), "NaN"),
    ):
        with pytest.raises(DataError, match=words):
            DpPg().publish(collection_of(rows), BUDGET, rng=Reproducible(0))


def test_the_same_seed_publishes_the_same_network(digits, network, releases):
    again = DpPg(**QUICK).fit(network, digits.train, Budget(5.0), rng=Reproducible(0))
    tensors = again.tensors()
    assert all(torch.equal(value, tensors[name]) for name, value in releases["dp-pg"].tensors().items())


def test_a_bundle_answers_as_the_release_did(releases, digits, tmp_path):
    restored = load_bundle(releases["dp-pgp"].save(tmp_path / "bundle"))
    assert torch.equal(restored.predict(digits.test.features), releases["dp-pgp"].predict(digits.test.features))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dp-pg", {"models": 1}),
        ("dp-pg", {"epochs": -1}),
        ("dp-pg", {"window": 0}),
        ("dp-pg", {"sensitivity": "guess"}),
        ("dp-pg", {"threshold": 2}),
        ("dp-pg", {"threshold": -0.1}),
        ("dp-pg", {"threshold": 0.5, "most_draws": 0}),
        ("dp-pg", {"resolution": 3}),
        ("dp-pg", {"workers": 0}),
        ("dp-pgp", {"gamma": -0.1}),
        ("dp-pgp", {"epsilon_shift": 0}),
    ],
)
def test_impossible_settings_are_refused(name, settings):
    with pytest.raises(SettingError):
        methods.build(name, settings)


def test_a_threshold_is_measured_on_records_that_no_network_was_trained_on(digits, network, monkeypatch):
    sizes = {}

    def taught(network, dataset, *arguments, **options):
        sizes["taught"] = len(dataset)
        return train_collection(network, dataset, *arguments, **options)

    def measured(network, layout, dataset):
        sizes["measured"] = len(dataset)
        return lambda vector: 1.0

    monkeypatch.setattr(dp_pg, "train_collection", taught)
    monkeypatch.setattr(dp_pg, "accuracy_of", measured)
    DpPg(**QUICK, threshold=0.5, tested=0.2).fit(network, digits.train, BUDGET, rng=Reproducible(0))
    assert sizes["taught"] + sizes["measured"] == len(digits.train)
    assert 0.1 < sizes["measured"] / len(digits.train) < 0.3  # of 1,300 coins: a false alarm is below 1e-6
