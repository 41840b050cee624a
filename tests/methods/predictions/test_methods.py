"""The methods at the predictions: what their cards say, what their releases answer and refuse, what bundles keep."""

from __future__ import annotations

import math
import threading

import pytest
import torch

from noiseproof import methods
from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import BudgetError, DataError, SettingError, UnsupportedError
from noiseproof.methods.predictions import Logits, NeuronGaussian, NeuronLaplace, Teachers, Votes
from noiseproof.methods.predictions.lu import theorem2_delta
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible, Secure
from noiseproof.releases import bundles

CLASSES, FEATURES = 3, 6


def records(count: int = 120, seed: int = 0) -> Dataset:
    """Three clusters in the unit cube."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    centres = torch.eye(FEATURES)[:CLASSES] * 0.8
    features = (centres[labels] + 0.25 * torch.rand(count, FEATURES, generator=generator)).clamp(0, 1)
    public = Public(shape=(FEATURES,), classes=("a", "b", "c"))
    return Dataset("clusters", features, labels, public)


NETWORK = Network("lu-mlp", (FEATURES,), CLASSES)
EVERY = {
    "neuron-laplace": NeuronLaplace(epochs=5),
    "neuron-gaussian": NeuronGaussian(epochs=5, form="code"),
    "logits": Logits(width=40),
    "logits-probabilities": Logits(width=40, answer="probabilities"),
    "teachers": Teachers(epochs=10, teachers=4),
    "teachers-probabilities": Teachers(epochs=10, teachers=4, answer="probabilities"),
    "votes": Votes(),
    "votes-probabilities": Votes(answer="probabilities"),
}
PROVEN = [name for name in EVERY if not name.startswith("neuron")]


@pytest.fixture(scope="module")
def releases():
    """One release of each method, which covers 10 queries, by randomness that repeats itself."""
    return {
        name: method.fit(NETWORK, records(), Budget(4.0, 1e-5, queries=10), rng=Reproducible(1))
        for name, method in EVERY.items()
    }


@pytest.fixture
def fresh(releases, tmp_path):
    """A release of that name that nobody has asked yet."""

    def load(name):
        release = bundles.load(releases[name].save(tmp_path / name))
        release.use(Reproducible(2))
        return release

    return load


def test_they_are_found_by_name():
    found = methods.registry()
    assert {method.name for method in EVERY.values()} <= set(found)
    for method in EVERY.values():
        assert found[method.name].place == "predictions"


@pytest.mark.parametrize("name", EVERY)
def test_answers_are_probabilities_and_cost_a_query_each(fresh, name):
    release = fresh(name)
    answers = release.predict(records(7).features)
    assert answers.shape == (7, CLASSES)
    assert answers.dtype == torch.float32
    assert float(answers.min()) >= 0
    torch.testing.assert_close(answers.sum(1), torch.ones(7))
    assert release.queries_left == 3


@pytest.mark.parametrize("name", EVERY)
def test_what_cannot_be_answered_is_refused_whole_and_nothing_is_spent(fresh, name):
    release = fresh(name)
    good = records(8).features
    bad = [good[:, :5], good[0], torch.cat([good[:2], torch.full((1, FEATURES), math.nan)]), good / 0]
    for features in bad:
        with pytest.raises(DataError):
            release.predict(features)
    with pytest.raises(BudgetError, match="nothing spent"):
        release.predict(torch.cat([good, good]))
    assert release.queries_left == 10
    release.predict(good)
    with pytest.raises(BudgetError, match="covers 2 more"):
        release.predict(good)
    assert release.queries_left == 2
    release.predict(good[:2])
    with pytest.raises(BudgetError):
        release.predict(good[:1])
    assert release.predict(good[:0]).shape == (0, CLASSES)


@pytest.mark.parametrize("name", EVERY)
def test_a_bundle_keeps_the_weights_and_what_was_asked(fresh, tmp_path, name):
    release = fresh(name)
    release.predict(records(4).features)
    again = bundles.load(release.save(tmp_path / "again"))
    assert again.queries_left == 6
    assert again.card == release.card
    features = records(6).features
    release.use(Reproducible(9))
    again.use(Reproducible(9))
    torch.testing.assert_close(release.predict(features), again.predict(features))


@pytest.mark.parametrize("name", EVERY)
def test_a_restored_release_draws_secure_noise_of_its_own(releases, tmp_path, name):
    release = bundles.load(releases[name].save(tmp_path / "b"))
    assert isinstance(release._rng, Secure)
    answers = release.predict(records(10).features)
    assert torch.isfinite(answers).all()


@pytest.mark.parametrize("name", EVERY)
def test_many_threads_never_get_more_answers_than_the_budget_covers(fresh, name):
    release = fresh(name)
    features = records(1).features
    answered = []

    def ask():
        for _ in range(5):
            try:
                answered.append(len(release.predict(features)))
            except BudgetError:
                return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(answered) == 10


@pytest.mark.parametrize("name", PROVEN)
@pytest.mark.parametrize("near", ["add-or-remove", "replace-one"])
def test_proven_siblings_prove_their_budget(name, near):
    budget = Budget(2.0, 1e-5, near, queries=3)
    card = EVERY[name].fit(NETWORK, records(), budget, rng=Reproducible(0)).card
    assert card.verdict == "rehearsal"
    assert card.neighbours == near
    assert 1.99 < card.proven.epsilon <= 2.0
    assert card.proven.delta == 1e-5
    assert card.proven.assumptions


@pytest.mark.parametrize("name", PROVEN)
def test_one_answer_costs_what_its_event_says(releases, name):
    from noiseproof.serve.ledger import Amount

    release = releases[name]
    for event in release.events:
        amount = Amount.of_event(event, release.card.neighbours, answers=10, delta=1e-5)
        assert amount.units[0] > 0


def test_bounds_read_off_the_records_leave_nothing_proven():
    import dataclasses

    data = records()
    data = dataclasses.replace(data, public=dataclasses.replace(data.public, bounds="data"))
    for name in PROVEN:
        card = EVERY[name].fit(NETWORK, data, Budget(2.0), rng=Reproducible(0)).card
        assert card.verdict == "nothing proven"


@pytest.mark.parametrize("method", [NeuronLaplace(epochs=2), NeuronGaussian(epochs=2)])
@pytest.mark.parametrize("classes", [2, 3])
def test_neuron_cards_claim_the_paper_s_arithmetic_and_prove_nothing(method, classes):
    data = records()
    if classes == 2:
        keep = data.labels < 2
        data = Dataset("two", data.features[keep], data.labels[keep], Public((FEATURES,), ("a", "b")))
    network = Network("lu-mlp", (FEATURES,), classes)
    release = method.fit(network, data, Budget(3.0, 1e-5, queries=9), rng=Reproducible(0))
    card = release.card
    assert card.verdict == "nothing proven"
    assert card.proven is None
    assert ("three classes" in card.why) == (classes == 3)
    assert "minimiser" in card.why
    assert card.claimed.epsilon == 3.0
    if method.law == "laplace":
        assert card.claimed.delta == 0
        assert release.noise.epsilon == pytest.approx(3 / 9)
    else:
        assert card.claimed.delta == pytest.approx(theorem2_delta(3.0))
        assert release.noise.epsilon == pytest.approx(3 / 3)


@pytest.mark.parametrize(("classes", "left"), [(2, "a guess"), (3, "about half of the network's accuracy")])
def test_a_neuron_card_says_what_noise_that_drowns_every_logit_leaves(classes, left):
    labels = torch.arange(120) % classes
    data = Dataset("d", records().features, labels, Public((FEATURES,), tuple("abc"[:classes])))
    network = Network("lu-mlp", (FEATURES,), classes)
    many, one = (
        NeuronLaplace(epochs=1).fit(network, data, Budget(epsilon, queries=queries), rng=Reproducible(0)).card
        for epsilon, queries in ((3.0, 100), (3000.0, 1))
    )
    assert many.ran["scale"] > 10 > one.ran["scale"]
    assert any(f"what is left is hardly more than {left}" in note for note in many.notes)
    assert not any("what is left" in note for note in one.notes)


def test_a_huge_epsilon_still_has_a_card():
    card = NeuronGaussian(epochs=1).fit(NETWORK, records(), Budget(1000.0), rng=Reproducible(0)).card
    assert card.claimed.delta < 1


def test_alpha_is_the_paper_s_or_given_or_searched_and_the_card_says_so():
    import dataclasses

    data = dataclasses.replace(records(60), name="retail-10")
    assert NeuronLaplace(epochs=1).fit(NETWORK, data, Budget(1.0), rng=Reproducible(0)).card.ran["alpha"] == 5.0
    given = NeuronLaplace(epochs=1, alpha=2.5).fit(NETWORK, data, Budget(1.0), rng=Reproducible(0))
    assert given.card.ran["alpha"] == 2.5
    searched = NeuronLaplace(epochs=1, search=True).fit(NETWORK, data, Budget(1.0), rng=Reproducible(0)).card
    assert 0 < searched.ran["alpha"] <= 10
    assert (2 * searched.ran["alpha"]) % 1 == 0
    assert any("alpha was chosen" in note for note in searched.notes)
    seen = NeuronLaplace(epochs=1, peaks="seen").fit(NETWORK, data, Budget(1.0), rng=Reproducible(0)).card
    assert seen.ran["d-z"] != given.card.ran["d-z"]
    assert any("neuron values" in note for note in seen.notes)


def test_neuron_methods_need_a_dense_network():
    data = records()
    images = Dataset("i", torch.rand(120, 1, 8, 8), data.labels, Public((1, 8, 8), ("a", "b", "c"), "image"))
    with pytest.raises(UnsupportedError, match="lu-mlp"):
        NeuronLaplace().fit(Network("small-cnn", (1, 8, 8), 3), images, Budget(1.0), rng=Reproducible(0))


@pytest.mark.parametrize(
    "build",
    [
        lambda: NeuronLaplace(alpha=1.0, search=True),
        lambda: NeuronLaplace(alpha=-1.0),
        lambda: NeuronGaussian(l2=0.0),
        lambda: NeuronGaussian(peaks="two"),
        lambda: Logits(answer="both"),
        lambda: Logits(noise=0.0),
        lambda: Teachers(teachers=0),
        lambda: Teachers(members=0),
        lambda: Teachers(loss="hinge"),
        lambda: Teachers(answer="vote"),
        lambda: Votes(low=0.5, high=0.4),
        lambda: Votes(against=2.0),
    ],
)
def test_impossible_settings_are_refused(build):
    with pytest.raises(SettingError):
        build()


def test_a_million_answers_take_bounded_memory():
    """The answers of 1e6 queries: beyond them and the queries themselves less than 200 MB are needed at any time."""
    import resource

    release = NeuronGaussian(epochs=1).fit(NETWORK, records(), Budget(1.0, queries=10**6), rng=Reproducible(0))
    features = records(1).features.expand(10**6, FEATURES)  # no memory of its own
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answers = release.predict(features)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert answers.shape == (10**6, CLASSES)
    assert release.queries_left == 0
    assert grown < 200 * 1024
