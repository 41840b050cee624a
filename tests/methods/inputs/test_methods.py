"""adlm and ilm: claimed beside proven, perturbed once, on dense and convolutional networks."""

from __future__ import annotations

import math

import pytest
import torch

import noiseproof as npf
from noiseproof import methods
from noiseproof.audits import audit
from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError, SettingError
from noiseproof.methods.common import each_trial
from noiseproof.methods.inputs import Adlm, Functional, Ilm
from noiseproof.methods.inputs.adlm import canary_records
from noiseproof.methods.inputs.layers import LossNoise, first_order
from noiseproof.methods.inputs.perturbation import InputNoise, Look, PerturbedRecords, SharedNoise
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Claim, Game, Reproducible, Secure
from noiseproof.releases import bundles

SHAPE, CLASSES = (1, 8, 8), 4
MLP = Network("mlp", SHAPE, CLASSES, {"hidden": 10, "activation": "relu"})
CNN = Network("small-cnn", SHAPE, CLASSES, {"channels": 4, "hidden": 6, "activation": "relu"})
BUDGET = Budget(2.0, 1e-5)


def pictures(count: int = 200, seed: int = 0) -> Dataset:
    """Each class has a bright quarter."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    features = 0.3 * torch.rand(count, *SHAPE, generator=generator)
    for label in range(CLASSES):
        rows, columns = slice(4 * (label // 2), 4 * (label // 2) + 4), slice(4 * (label % 2), 4 * (label % 2) + 4)
        features[labels == label, :, rows, columns] += 0.7
    return Dataset("quarters", features, labels, Public(shape=SHAPE, classes=tuple("abcd"), kind="image"))


def fit(method, network=MLP, budget=BUDGET, data=None, seed=0, **settings):
    return method.fit(network, data or pictures(), budget, rng=Reproducible(seed), **settings)


@pytest.mark.parametrize("network", [MLP, CNN], ids=["mlp", "cnn"])
@pytest.mark.parametrize("method", [Ilm(epochs=2), Adlm(epochs=2)], ids=["ilm", "adlm"])
def test_the_card_has_the_claim_and_what_is_proven(method, network):
    card = fit(method, network).card
    ran = card.ran
    assert card.claimed.epsilon == 2.0
    assert card.neighbours == card.claimed.neighbours == "replace-one"
    assert math.fsum(ran["epsilon 1, 2, 3 (claimed)"]) == pytest.approx(2.0)
    _, inputs, loss = ran["epsilon 1, 2, 3 (claimed)"]
    expected = 64 * ran["batch_size"] * inputs / ran["D_h"] + 2 * ran["batch_size"] * loss / ran["D_F"]
    if method.name == "adlm":
        expected += method.network_epsilon + ran["epsilon 1, 2, 3 (claimed)"][0] / 2
    assert card.proven.epsilon == pytest.approx(expected)
    assert card.proven.delta == (1e-5 if method.name == "adlm" else 0.0)
    assert ran["batch_size"] == 200


def test_fewer_records_a_step_change_neither_the_promise_nor_the_number_of_steps():
    whole, few = (fit(Ilm(epochs=2, step_records=records), MLP).card for records in (None, 16))
    assert (few.claimed, few.proven) == (whole.claimed, whole.proven)
    assert (few.ran["steps"], few.ran["scale on a coefficient"]) == (
        whole.ran["steps"],
        whole.ran["scale on a coefficient"],
    )
    assert (few.ran["records a step"], whole.ran["records a step"]) == (16, whole.ran["batch_size"])


def test_at_the_papers_settings_the_proven_epsilon_is_far_above_the_claim():
    """784 pixels, |L| = 1800, D_h = 9800, 25 hidden units, and the parts .075, .075 and .15."""
    public = Public(shape=(1, 28, 28), classes=tuple("0123456789"), kind="image")
    data = Dataset("mnist-like", torch.rand(1800, 1, 28, 28), torch.arange(1800) % 10, public)
    network = Network("mlp", (1, 28, 28), 10, {"hidden": 25})
    card = Ilm(epochs=1, sensitivity=9800.0).fit(network, data, Budget(0.225), rng=Reproducible(0)).card
    assert (card.ran["D_h"], card.ran["D_F"], card.ran["batch_size"]) == (9800, 1812.5, 1800)
    assert card.ran["epsilon of features (local)"] == pytest.approx(10.8)
    assert card.ran["epsilon of a label (local)"] == pytest.approx(0.298, abs=5e-4)
    assert card.claimed.epsilon == 0.225
    assert card.proven.epsilon == pytest.approx(11.1, abs=0.01)
    assert (card.verdict, card.verdict_if_secure) == ("rehearsal", "weaker than claimed")


@pytest.mark.parametrize(
    "method", [Ilm(), Adlm(), Adlm(relevance="trained", relevance_epochs=1), Ilm(draw="batch")], ids=repr
)
def test_training_longer_changes_neither_claimed_nor_proven(method):
    from dataclasses import replace

    short, long = (fit(replace(method, epochs=epochs)).card for epochs in (1, 20))
    assert long.ran["steps"] == 20 * short.ran["steps"]
    assert (short.claimed, short.proven, short.why) == (long.claimed, long.proven, long.why)


@pytest.mark.parametrize("method", [Ilm(epochs=3), Adlm(epochs=3)], ids=["ilm", "adlm"])
def test_no_private_value_is_touched_after_the_perturbation(method, monkeypatch):
    """The originals are deleted as soon as the perturbed records are there; the training ends as if they had not been."""
    untouched = fit(method)
    data = pictures()
    before = PerturbedRecords.__init__

    def perturb_and_delete(self, dataset, *others):
        before(self, dataset, *others)
        dataset.features.fill_(math.nan)
        dataset.labels.fill_(-1)

    monkeypatch.setattr(PerturbedRecords, "__init__", perturb_and_delete)
    release = fit(method, data=data)
    assert data.features.isnan().all()
    for name, value in untouched.tensors().items():
        torch.testing.assert_close(release.tensors()[name], value)


def test_perturbed_records_hold_no_copy_of_the_originals():
    data = pictures()
    source = PerturbedRecords(data, *noises(), "first-order", Reproducible(0))
    for value in vars(source).values():
        if isinstance(value, torch.Tensor):
            assert not torch.equal(value.flatten(), data.features.flatten())
            assert not torch.equal(value, first_order(data.labels, CLASSES))


def noises():
    return InputNoise(10.0, 1.0, 10, torch.ones(64)), LossNoise(CLASSES, 6, 1.0, 10)


def test_a_record_drawn_once_is_the_same_at_every_step_and_a_batchs_noise_is_not():
    indices = torch.arange(5)
    own = PerturbedRecords(pictures(), *noises(), "first-order", Reproducible(0))
    torch.testing.assert_close(own.batch(indices).features, own.batch(indices).features)
    torch.testing.assert_close(own.batch(indices).coefficients, own.batch(indices).coefficients)
    data = pictures()
    shared = SharedNoise(data, *noises(), "first-order", Reproducible(0))
    first, second = shared.batch(indices), shared.batch(indices)
    assert not torch.equal(first.features, second.features)
    for seen in (first, second):
        exact = data.features[indices] - data.features[:1]
        torch.testing.assert_close(seen.features - seen.features[:1], exact, rtol=0, atol=1e-4)
        labels = first_order(data.labels[indices], CLASSES)
        torch.testing.assert_close(seen.coefficients - seen.coefficients[:1], labels - labels[:1], rtol=0, atol=1e-5)


def test_the_coefficients_noise_goes_where_the_reading_says():
    data = pictures()
    exact = first_order(data.labels, CLASSES)
    for kind in (PerturbedRecords, SharedNoise):
        for reading in ("first-order", "hidden", "plain"):
            seen = kind(data, *noises(), reading, Reproducible(0)).batch(torch.arange(200))
            assert torch.equal(seen.coefficients, exact) == (reading != "first-order")
            assert (seen.hidden is not None) == (reading == "hidden")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"draw": "batch"}, "differences between them are exact"),
        ({"coefficients": "hidden"}, "reads every label as it is"),
        ({"coefficients": "plain"}, "reads every label as it is"),
        ({"relevance": "trained", "relevance_epochs": 1}, "without noise"),
    ],
    ids=["batch", "hidden", "plain", "trained"],
)
def test_where_nothing_is_proven_the_card_says_why(settings, words):
    card = fit(Adlm(epochs=1, **settings)).card
    assert card.proven is None
    assert card.verdict == "nothing proven"
    assert words in card.why


@pytest.mark.parametrize("method", [Ilm, Adlm], ids=["ilm", "adlm"])
def test_the_audit_refutes_the_claim_about_the_trained_network(method):
    for settings in ({"draw": "batch"}, {}):
        result = audit(method(**settings).game(Budget(1.0)), trials=150, timeout=None)
        assert result.verdict == "refuted"
        assert result.audited.epsilon > 2.9
        assert not result.contradicts_proof


def batch_sum_game(method, budget):
    """Lemmas 4 and 6 as stated: the sums over a batch of perturbed features and coefficients, at the paper's MNIST numbers.

    One record of the batch is blank, or full and of another class; the others are blank. Noise of their own on every record
    adds up to more than the one draw of the lemmas, so that the sums hide a record well: what breaks the claim is that the
    training sees each record by itself (`Method.game`).
    """
    _, inputs_epsilon, loss_epsilon = method.parts(budget.epsilon)
    inputs = InputNoise(2.0 * 14 * 14 * 25, inputs_epsilon, method.batch_size, torch.ones(784, dtype=torch.float64))
    loss = LossNoise(10, 25, loss_epsilon, method.batch_size)
    worlds = [canary_records(world, method.batch_size, (1, 28, 28), 10) for world in (0, 1)]
    kind = PerturbedRecords if method.draw == "record" else SharedNoise

    def score(world, rng):
        source = kind(worlds[world], inputs, loss, method.coefficients, rng)
        seen = source.batch(torch.arange(method.batch_size))
        # The features' sum moves by 1 a pixel; of the coefficients' sum two move, each by 1.
        features = seen.features.double().sum(0) / inputs.scales.view(1, 28, 28)
        first = seen.coefficients.double().sum(0)
        return float(features.sum() + (first[0] - first[1]) / loss.scale)

    epsilon = inputs_epsilon + loss_epsilon
    claimed = Claim(epsilon=epsilon, delta=0.0, neighbours="replace-one", source="Phan et al., lemmas 4 and 6")
    return Game(f"{method.name}: the sums over a batch", each_trial(score), "replace-one", budget.delta, claimed)


def test_the_sums_over_a_batch_hide_a_record_at_the_papers_numbers():
    """What lemmas 4 and 6 say of sums is so; a bound of confidence 0.95 above 0 would need worlds that differ."""
    result = audit(batch_sum_game(Ilm(), Budget(1.0)), trials=60, timeout=None)
    assert result.claimed.epsilon == 1.0
    assert result.audited.epsilon == 0


def test_the_proof_is_not_loose_for_one_feature():
    """With one feature and no label the game's likelihood ratio is the proven epsilon itself."""
    noise = InputNoise(1.0, 1.0, 1, torch.ones(1))
    assert noise.local_epsilon(Reproducible(0)) == pytest.approx(1.0, abs=1e-8)
    seen = [noise.perturb(torch.full((200_000, 1), float(value)), Reproducible(value)).flatten() for value in (0, 1)]
    ratio = float((seen[1] > 1).double().mean() / (seen[0] > 1).double().mean())
    assert ratio == pytest.approx(math.e, rel=0.05)  # six standard deviations: false alarm below 1e-6


@pytest.mark.parametrize("network", [MLP, CNN], ids=["mlp", "cnn"])
@pytest.mark.parametrize("draw", ["record", "batch"])
@pytest.mark.parametrize("method", [Ilm, Adlm], ids=["ilm", "adlm"])
def test_with_little_noise_it_learns(method, draw, network):
    settings = {"draw": draw, "coefficients": "first-order", "epochs": 100, "batch_size": 200, "lr": 3e-2}
    release = fit(method(**settings, sensitivity=40.0), network, Budget(400.0, 1e-5))
    assert npf.accuracy(release, pictures(seed=1)) > 0.85


def test_the_hidden_reading_learns_too():
    release = fit(Ilm(coefficients="hidden", draw="batch", epochs=150, sensitivity=40.0), MLP, Budget(400.0))
    assert npf.accuracy(release, pictures(seed=1)) > 0.85


def test_relevant_pixels_get_less_noise():
    data = pictures()
    data.features[:, :, 0, 0] = 0.0  # blank for everybody
    method = Adlm(normalised="magnitude", network_epsilon=50.0)
    relevance = method._relevance(MLP, data, Budget(400.0, 1e-5), Reproducible(0), npf.methods.SILENT)
    beta = method._beta(data, relevance)
    assert beta[0] == beta.min()
    assert float(beta.sum()) == pytest.approx(64)


def test_a_public_relevance_network_costs_nothing_and_a_private_one_what_its_card_says(tmp_path):
    bundle = str(
        Functional(features="raw").fit(MLP, pictures(), Budget(1.0, 1e-6), rng=Reproducible(0)).save(tmp_path / "f")
    )
    with pytest.raises(Exception, match="chains of dense"):
        fit(Adlm(relevance=bundle, epochs=1))
    bundle = str(fit(Ilm(epochs=1), seed=3).save(tmp_path / "ilm"))
    free = fit(Adlm(relevance=bundle, public_network=True, epochs=1)).card
    paid = fit(Adlm(relevance=bundle, epochs=1)).card
    cost = bundles.read_card(bundle).proven.epsilon
    assert paid.proven.epsilon == pytest.approx(free.proven.epsilon + cost)
    assert free.ran["relevance network"].startswith("public")
    unproven = str(npf.train("none", pictures(), network=MLP, seed=0, epochs=1).save(tmp_path / "none"))
    card = fit(Adlm(relevance=unproven, epochs=1)).card
    assert card.proven is None
    assert "no proof of its own" in card.why


def test_a_cost_under_add_or_remove_counts_twice_and_more(tmp_path):
    from noiseproof.methods.inputs.relevance import replace_one

    card = fit(Functional(), budget=Budget(1.0, 1e-6)).card
    assert replace_one(card) == pytest.approx((2.0, (1 + math.e) * 1e-6))
    assert replace_one(fit(Functional(), budget=Budget(1.0, 1e-6, "replace-one")).card) == pytest.approx((1.0, 1e-6))


@pytest.mark.parametrize("network", [MLP, CNN], ids=["mlp", "cnn"])
def test_a_bundle_answers_the_same(network, tmp_path):
    release = fit(Adlm(epochs=2), network)
    again = bundles.load(release.save(tmp_path / "bundle"))
    features = pictures(30, seed=5).features
    torch.testing.assert_close(again.predict(features), release.predict(features))
    assert again.card == release.card
    torch.testing.assert_close(again.predict(features[:1]), again.predict(features)[:1])


def test_a_bundle_of_the_users_own_network_is_loaded_into_the_plain_module(tmp_path):
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 5), torch.nn.ReLU(), torch.nn.Linear(5, CLASSES))
    release = fit(Ilm(epochs=2), Network.of(own, SHAPE, CLASSES))
    again = bundles.load(release.save(tmp_path / "own"), module=own)
    features = pictures(5).features
    torch.testing.assert_close(again.predict(features), release.predict(features))


def test_without_a_delta_the_relevance_network_has_laplace_noise():
    card = fit(Adlm(epochs=1), budget=Budget(2.0, 0.0)).card
    assert card.proven.delta == 0


def test_secure_randomness_serves_as_well():
    card = Adlm(epochs=1).fit(MLP, pictures(), BUDGET, rng=Secure()).card
    assert card.randomness == "secure"
    assert card.proven.epsilon > 0


def test_somebody_may_watch():
    seen = []
    fit(Ilm(epochs=6), look=Look(2, lambda step, module: seen.append((step, module.training))))
    assert seen == [(2, False), (4, False), (6, False)]


def test_what_cannot_be_is_refused_in_words():
    assert set(methods.registry()) >= {"adlm", "ilm", "functional"}
    for settings in (
        {"draw": "epoch"},
        {"coefficients": "second-order"},
        {"epochs": 0},
        {"batch_size": -1},
        {"loss_share": 0},
        {"sensitivity": math.nan},
        {"limit": 0.0},
        {"relevance_share": 0},
        {"floor": 2.0},
        {"power": 0.0},
        {"normalised": "rank"},
        {"public_network": True},
    ):
        with pytest.raises(SettingError):
            Adlm(**settings)
    data = pictures()
    data.features[0, 0, 0, 0] = 1.5
    for method in (Adlm(), Ilm(), Ilm(draw="batch")):
        with pytest.raises(DataError, match="public bounds"):
            fit(method, data=data)


def test_a_relevance_network_for_other_records_is_refused(tmp_path):
    small = Dataset("small", torch.rand(9, 3), torch.arange(9) % CLASSES, Public((3,), tuple("abcd")))
    bundle = fit(Ilm(epochs=1), Network("mlp", (3,), CLASSES), data=small).save(tmp_path / "small")
    with pytest.raises(SettingError, match="gives no relevances"):
        fit(Adlm(relevance=str(bundle)))
