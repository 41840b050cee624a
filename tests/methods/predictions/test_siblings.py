"""What the proofs of the siblings stand on: how far one record really moves a query's scores."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof import methods
from noiseproof.data import load
from noiseproof.data.dataset import Column, Dataset, Public
from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.methods.predictions import Logits, Teachers, Votes
from noiseproof.methods.predictions import logits as logits_module
from noiseproof.methods.predictions.logits import BoundedMap, solve
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible
from noiseproof.releases import Saved

PUBLIC = Public(shape=(4,), classes=("a", "b", "c"))
LINEAR = Network("linear", (4,), 3)
SEEDS = st.integers(0, 2**31)
NEAR = st.sampled_from(["add-or-remove", "replace-one"])


def dataset(seed: int, count: int) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(count, 4, generator=generator)
    return Dataset("random", features, torch.randint(3, (count,), generator=generator), PUBLIC)


def neighbour(data: Dataset, near: str) -> Dataset:
    """The data without its last record, or with another one in its place, as unlike as can be."""
    if near == "add-or-remove":
        return data.take(torch.arange(len(data) - 1))
    features, labels = data.features.clone(), data.labels.clone()
    features[-1], labels[-1] = 1 - features[-1], (labels[-1] + 1) % 3
    return replace(data, features=features, labels=labels)


def scores(method, data: Dataset, near: str, query: torch.Tensor) -> tuple[torch.Tensor, object]:
    release = method.fit(LINEAR, data, Budget(1.0, 1e-5, near), rng=Reproducible(0))
    return release._scores(query)[0], release


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    SEEDS,
    st.integers(2, 30),
    st.floats(0.05, 20),
    NEAR,
    st.sampled_from(["raw", "centred", "fourier"]),
    st.sampled_from(["softmax", "tangent"]),
)
def test_one_record_moves_a_regression_s_logits_no_further_than_proven(
    seed, count, regularisation, near, features, loss
):
    method = Logits(regularisation=regularisation, features=features, width=30, loss=loss)
    data = dataset(seed, count)
    query = torch.cat([data.features[-1:], dataset(seed + 1, 5).features])
    moved = [scores(method, each, near, query)[0] for each in (data, neighbour(data, near))]
    change = moved[0] - moved[1]
    bound = method.score_change(regularisation, near, 3)
    assert float(change.norm()) <= bound.l2
    assert float(change.abs().sum()) <= bound.l1
    assert float(change.max() - change.min()) <= bound.span


def test_few_records_of_classes_get_a_shorter_kernel_unless_one_is_given():
    public = Public((8,), ("a", "b"))
    assert methods.build("logits", {}, records=9_999, public=public).length == 0.4
    assert methods.build("logits", {}, records=10_000, public=public).length == Logits().length == 0.6
    assert methods.build("logits", {"length": 1.0}, records=100, public=public).length == 1.0
    numbers = replace(public, classes=(), task="regression", target_bounds=(0.0, 1.0))
    assert methods.build("logits", {}, records=100, public=numbers).length == 0.6


def test_a_record_moves_the_tangent_s_answers_by_all_that_is_proven_and_half_as_far_as_a_softmax_s():
    data = Dataset("d", torch.eye(3)[[0, 0]], torch.tensor([0, 1]), Public((3,), ("a", "b", "c")))
    query = data.features[:1]
    exact = Logits(regularisation=2.0, features="raw", loss="tangent", tolerance=1e-9)
    moved = (
        scores(exact, data, "add-or-remove", query)[0]
        - scores(exact, data.take(torch.tensor([0])), "add-or-remove", query)[0]
    )
    bound = exact.score_change(2.0, "add-or-remove", 3)
    assert float(moved.max() - moved.min()) == pytest.approx(bound.span) == pytest.approx(1 / 2)
    assert float(moved.norm()) == pytest.approx(bound.l2)
    assert float(moved.abs().sum()) == pytest.approx(bound.l1)
    assert replace(exact, loss="softmax").score_change(2.0, "add-or-remove", 3).span == pytest.approx(2 * bound.span)


def test_few_records_of_three_classes_and_more_get_the_tangent_by_public_numbers_alone():
    budget, three = Budget(3.0, 1e-5, queries=100), Public((8,), ("a", "b", "c"))
    assert Logits().suited(budget, three, 1_000).loss == "tangent"
    assert Logits().suited(budget, three, 1_000).features == "centred"
    assert Logits().suited(budget, three, 10_000).loss == "softmax"
    assert Logits().suited(replace(budget, queries=1), three, 1_000).loss == "softmax"
    two = Logits().suited(budget, replace(three, classes=("a", "b")), 1_000)
    assert (two.loss, two.features) == ("softmax", "fourier")
    assert Logits(loss="softmax", features="raw").suited(budget, three, 1_000) == Logits(loss="softmax", features="raw")


def test_the_bound_is_the_note_s_under_replace_one():
    """2 sqrt(2) R / (lambda n) + 2 g / lambda with lambda = L / n and the mean's gradient norm g."""
    method, records = Logits(tolerance=1e-3), 500
    lam = 7.0 / records
    g = math.sqrt(2) * 1e-3 / records
    assert method.score_change(7.0, "replace-one", 3).l2 == pytest.approx(
        2 * math.sqrt(2) / (lam * records) + 2 * g / lam
    )
    assert method.score_change(7.0, "add-or-remove", 3).l2 < 0.51 * method.score_change(7.0, "replace-one", 3).l2


@settings(deadline=None, derandomize=True, max_examples=20)
@given(SEEDS, st.integers(1, 40), st.floats(0.05, 20))
def test_the_regression_is_solved_to_the_stated_gradient(seed, count, regularisation):
    data = dataset(seed, count)
    phi = BoundedMap("raw", (4,))
    found = solve(data.features, data.labels, 3, regularisation=regularisation, gradient=1e-6, feature_map=phi)
    weights = found.weights.clone().requires_grad_()
    losses = torch.nn.functional.cross_entropy(phi(data.features) @ weights, data.labels, reduction="sum")
    (losses + regularisation / 2 * weights.square().sum()).backward()
    assert float(weights.grad.norm()) <= 1.001e-6


def test_a_regression_that_is_not_solved_is_not_released():
    data = dataset(0, 20)
    with pytest.raises(NoiseproofError, match="nothing is released"):
        Logits(regularisation=1e-9, tolerance=1e-30, loss="softmax").fit(LINEAR, data, Budget(1.0), rng=Reproducible(0))


def test_mapped_in_parts_the_regression_is_the_same(monkeypatch):
    data, phi = dataset(3, 50), BoundedMap("fourier", (4,), 20)
    whole = solve(data.features, data.labels, 3, regularisation=1.0, gradient=1e-8, feature_map=phi)
    monkeypatch.setattr(logits_module, "_ENTRIES", 7 * 20)
    parts = solve(data.features, data.labels, 3, regularisation=1.0, gradient=1e-8, feature_map=phi)
    torch.testing.assert_close(whole.weights, parts.weights, rtol=1e-5, atol=1e-7)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(SEEDS, st.sampled_from(["raw", "fourier"]))
def test_mapped_features_are_no_longer_than_1(seed, name):
    mapped = BoundedMap(name, (4,), 10, 0.1)(dataset(seed, 50).features)
    assert mapped.dtype == torch.float64
    assert float(mapped.norm(dim=1).max()) <= 1 + 1e-9


def test_the_shape_chooses_the_map():
    assert BoundedMap("auto", (1, 28, 28)).chosen == "scattering"
    assert BoundedMap("auto", (1, 8, 8)).chosen == "fourier"
    assert BoundedMap("auto", (30,)).chosen == "fourier"
    assert BoundedMap("auto", (446,)).chosen == "raw"
    assert BoundedMap("auto", (1, 28, 28))(torch.rand(2, 1, 28, 28)).shape == (2, 81 * 49 + 1)
    with pytest.raises(SettingError):
        BoundedMap("scattering", (30,))


@settings(deadline=None, derandomize=True, max_examples=50)
@given(SEEDS, st.integers(2, 30), NEAR, st.floats(0, 1), st.floats(-0.9, 0.5))
def test_one_record_moves_the_votes_no_further_than_proven(seed, count, near, against, low):
    method = Votes(against=against, low=low, high=low + 0.3)
    data = dataset(seed, count)
    query = torch.cat([data.features[-1:], dataset(seed + 1, 5).features])
    moved = [scores(method, each, near, query)[0] for each in (data, neighbour(data, near))]
    change = moved[0] - moved[1]
    bound = method.score_change(near)
    assert float(change.abs().sum()) <= bound.l1 + 1e-6
    assert float(change.norm()) <= bound.l2 + 1e-6
    assert float(change.max() - change.min()) <= bound.span + 1e-6


@pytest.mark.parametrize("near", ["add-or-remove", "replace-one"])
@pytest.mark.parametrize(("answer", "members"), [("label", 1), ("probabilities", 1), ("label", 2)])
def test_one_record_changes_one_teacher_alone(near, answer, members):
    method = Teachers(teachers=6, members=members, epochs=15, lr=0.05, answer=answer)
    for seed in range(5):
        data = dataset(seed, 60)
        query = dataset(seed + 100, 20).features
        releases = [
            method.fit(LINEAR, each, Budget(1.0, 1e-5, near), rng=Reproducible(7))
            for each in (data, neighbour(data, near))
        ]
        first, second = (release._networks.logits(query) for release in releases)
        same = torch.isclose(first, second, atol=1e-4).flatten(1).all(1).view(6, members).all(1)
        assert int((~same).sum()) == 1
        change = releases[0]._scores(query) - releases[1]._scores(query)
        share = 1 if answer == "label" else 1 / 6
        assert float(change.abs().sum(1).max()) <= 2 * share + 1e-6
        assert float(change.norm(dim=1).max()) <= math.sqrt(2) * share + 1e-6


def test_a_teacher_whose_shard_is_empty_or_whose_training_diverged_still_has_one_vote():
    data = dataset(0, 5)
    release = Teachers(teachers=9, epochs=2).fit(LINEAR, data, Budget(1.0), rng=Reproducible(0))
    assert release._scores(data.features).sum(1).tolist() == [9.0] * 5
    diverged = Teachers(teachers=3, epochs=40, lr=1e30).fit(LINEAR, data, Budget(1.0), rng=Reproducible(0))
    assert diverged._scores(data.features).sum(1).tolist() == [3.0] * 5


def test_the_number_of_teachers_follows_from_public_numbers():
    method = Teachers()
    assert method.count(Budget(0.5), 10, 10_000) == 47
    assert method.count(Budget(10.0), 10, 10_000) == 3
    assert method.count(Budget(50.0), 10, 10_000) == 1
    # Location: too few records of each class for shards, so one teacher and randomised response if epsilon allows.
    assert method.count(Budget(5.0), 30, 1_200) == 1
    assert method.count(Budget(0.5), 30, 1_200) == 61
    assert method.count(Budget(0.01), 30, 1_200) == 120
    assert Teachers(teachers=8).count(Budget(1.0), 30, 1_200) == 8


def test_a_single_teacher_is_several_networks_on_the_loss_that_suits_few_records():
    data = dataset(0, 60)
    alone = Teachers(epochs=1).fit(LINEAR, data, Budget(100.0), rng=Reproducible(0))
    assert (alone._facts["teachers"], len(alone._networks)) == (1, 5)
    assert alone._scores(data.features).sum(1).tolist() == [1.0] * 60
    settings = {"epochs": 5, "teachers": 1, "members": 1}
    trained = {
        loss: Teachers(loss=loss, **settings).fit(LINEAR, data, Budget(1.0), rng=Reproducible(0))._networks.parameters
        for loss in ("auto", "cross-entropy", "convexified")
    }
    for name, value in trained["auto"].items():
        torch.testing.assert_close(value, trained["convexified"][name])
        assert not torch.equal(value, trained["cross-entropy"][name])


def test_a_short_training_on_a_shard_gets_longer_steps():
    """At 0.001 a network of 30 numbers was hardly trained after one step an epoch."""
    data = dataset(0, 1_200)
    rates = [
        Teachers(teachers=count, epochs=100, **given)._training(count, data.public, len(data)).lr
        for count, given in ((1, {}), (2, {}), (60, {}), (60, {"lr": 1e-3}))
    ]
    assert rates == [1e-3, 1e-2, 1e-2, 1e-3]
    release = Teachers(teachers=60, epochs=1).fit(LINEAR, data, Budget(1.0), rng=Reproducible(0))
    assert (release.card.ran["lr"], release.training().lr) == (1e-2, 1e-2)


def test_the_regularisation_keeps_the_noise_on_a_logit_as_stated():
    for epsilon in (0.5, 1.0, 10.0):
        regularisation, answer = Logits(noise=0.25).planned(Budget(epsilon), 10)
        assert answer.spread == pytest.approx(0.25, rel=1e-3)
        assert regularisation > 0.1
    assert Logits().planned(Budget(1000.0), 10)[0] == 0.1


def test_rows_of_a_table_vote_by_what_sets_them_apart_and_older_bundles_as_they_did():
    both = load("breast-cancer")
    budget = Budget(100.0, 1e-5, queries=len(both.test))
    found, older = (Votes(centred=each).fit(None, both.train, budget, rng=Reproducible(0)) for each in (None, False))
    right, other = (
        float((each.predict(both.test.features).argmax(1) == both.test.labels).double().mean())
        for each in (found, older)
    )
    assert right > 0.8 > other + 0.1  # the commoner class alone has about .65
    settings = {name: value for name, value in older.settings.items() if name != "centred"}
    saved = Saved(older.tensors(), older.description(), older.card, older.public, settings)
    assert type(older).restore(saved).settings["centred"] is False


def test_what_votes_leaves_open_follows_from_what_is_public_and_is_kept_as_it_was_taken():
    number, word = Column("n", 0, 1), Column("w", categories=("a", "b"))
    long, short = (Public((width,), ("0", "1")) for width in (128, 127))
    table = Public((3,), ("0", "1"), "table", (number, word))
    assert [Votes().centres(public) for public in (long, short, table)] == [False, True, True]
    assert Votes().ramp(short) == Votes().ramp(replace(table, columns=(number,), shape=(1,))) == (0.35, 0.45)
    assert Votes().ramp(table) == (0.45, 0.6)
    release = Votes(high=0.9).fit(None, dataset(0, 20), Budget(1.0), rng=Reproducible(0))
    assert release.settings == Votes(low=0.35, high=0.9, centred=True).settings()


def test_few_dense_numbers_vote_by_what_sets_them_apart_and_an_older_bundle_as_it_did():
    """Three numbers, the first decides: uncentred, any two are similar, and the larger class won every vote."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(1500, 3, generator=generator)
    drawn = Dataset("drawn", features, (features[:, 0] > 0.6).long(), Public((3,), ("0", "1")))
    train, test = drawn.take(torch.arange(1000)), drawn.take(torch.arange(1000, 1500))
    found, older = (
        Votes(centred=each).fit(None, train, Budget(100.0, 1e-5, queries=500), rng=Reproducible(0))
        for each in (None, False)
    )
    saved = Saved(older.tensors(), older.description(), older.card, older.public, Votes().settings())
    restored = type(older).restore(saved)
    assert restored.settings["centred"] is False
    for release, least, most in ((found, 0.75, 1.0), (restored, 0.45, 0.55)):
        named = release.predict(test.features)[:, 1] > 0.5
        recalls = [float((named[test.labels == label] == label).double().mean()) for label in (0, 1)]
        assert least <= sum(recalls) / 2 <= most
