"""Recipes are public constants: what they choose, refuse and prove, and that what they release takes records as they are."""

from __future__ import annotations

import pytest
import torch

import noiseproof as npf
from noiseproof.data import Dataset, Public
from noiseproof.data.dataset import Column
from noiseproof.errors import SettingError
from noiseproof.methods import recipes
from noiseproof.privacy import Budget, accountants
from noiseproof.privacy.events import ComposedDpEvent, GaussianDpEvent, sampled_gaussian
from noiseproof.run.checkpoints import Checkpoints


def pictures(records=300, side=16, channels=1):
    """Bright bars, upright or level, at random places."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(records) % 2
    features = 0.3 * torch.rand(records, channels, side, side, generator=generator)
    places = torch.randint(2, side - 2, (records,), generator=generator)
    for record, (label, place) in enumerate(zip(labels.tolist(), places.tolist(), strict=True)):
        bar = (slice(None), slice(None), place) if label else (slice(None), place, slice(None))
        features[record][bar] = 1.0
    return Dataset("bars", features, labels, Public((channels, side, side), ("level", "upright"), kind="image"))


def table(records=600):
    """Rich people are those with a middling amount, and those of category b: no line through the amount tells them."""
    generator = torch.Generator().manual_seed(1)
    amount = torch.rand(records, generator=generator)
    other = torch.randint(2, (records,), generator=generator)
    features = torch.stack([amount, 1.0 - other, other.float(), torch.rand(records, generator=generator)], dim=1)
    labels = ((amount - 0.5).abs() < 0.2).long()
    columns = (Column("amount", 0, 1), Column("kind", categories=("a", "b")), Column("noise", 0, 1))
    public = Public((4,), ("no", "yes"), kind="table", columns=columns, target="rich")
    return Dataset("people", features, labels, public)


def bits(records=400, width=130):
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(records) % 2
    features = (torch.rand(records, width, generator=generator) < 0.2 + 0.2 * labels[:, None]).float()
    return Dataset("bits", features, labels, Public((width,), ("a", "b")))


DATA = {
    "scattering": pictures,
    "scattering-mirror": pictures,
    "scattering-upright": pictures,
    "bins": table,
    "unit": bits,
}


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("public", "records", "chosen"),
    [
        (Public((1, 28, 28), ("a", "b"), kind="image"), 60_000, "scattering"),
        (Public((3, 32, 32), ("a", "b"), kind="image"), 20_000, "scattering"),
        (Public((1, 8, 8), ("a", "b"), kind="image"), 1_300, None),
        (Public((1, 30, 30), ("a", "b"), kind="image"), 60_000, None),
        (Public((4,), ("a", "b"), kind="table", columns=table().public.columns), 30_000, "bins"),
        (Public((4,), ("a", "b"), kind="table", columns=table().public.columns), 400, None),
        (Public((446,), ("a", "b")), 4_000, "unit"),
        (Public((4,), ("a", "b")), 4_000, None),
    ],
)
def test_auto_picks_by_kind_shape_and_number_of_records(public, records, chosen):
    found = recipes.choose(public, records)
    assert (found and found.name) == chosen


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_learns_within_its_budget_and_its_release_takes_records_as_they_are(name, tmp_path):
    dataset = DATA[name]()
    release = npf.train("dp-sgd", dataset, epsilon=8, recipe=name, seed=0)
    card = release.card
    assert card.verdict == "rehearsal"
    assert card.ran["recipe"] == name
    statistics = [GaussianDpEvent(sigma) for sigma in card.ran.get("statistics sigmas", ())]
    assert bool(statistics) == name.startswith("scattering")
    event = ComposedDpEvent(
        [*statistics, sampled_gaussian(card.ran["sample_rate"], card.ran["noise_multiplier"], card.ran["steps"])]
    )
    assert card.proven.epsilon == pytest.approx(accountants.epsilon(event, 1e-5).epsilon, rel=1e-9)
    assert card.proven.epsilon <= 8
    assert npf.accuracy(release, dataset) > 0.8
    again = npf.load_bundle(release.save(tmp_path / "bundle"))
    assert torch.equal(again.predict(dataset.features[:5]), release.predict(dataset.features[:5]))


def test_bins_learn_what_no_line_through_the_numbers_tells():
    release = npf.train("dp-sgd", table(2000), epsilon=8, network="linear", seed=0)
    assert npf.accuracy(release, table(2000)) < 0.75
    assert npf.accuracy(npf.train("dp-sgd", table(2000), epsilon=8, recipe="bins", seed=0), table(2000)) > 0.9


def test_the_command_line_names_every_recipe():
    from noiseproof.cli.options import RecipeOption

    (option,) = RecipeOption.__metadata__
    assert [name for name in recipes.names() if name not in option.help.replace(",", "").split()] == ["unit"]
    assert option.help.endswith("or unit.")


def test_settings_of_the_users_own_go_before_the_recipes():
    release = npf.train("dp-sgd", bits(), epsilon=8, seed=0, max_grad_norm=0.25, epochs=4)
    assert (release.settings["max_grad_norm"], release.card.ran["steps"]) == (0.25, 4)
    assert release.settings["lr"] == recipes.get("unit").settings(400, 8.0)["lr"]


def test_a_training_that_can_be_interrupted_goes_without_a_preconditioner(tmp_path):
    dataset = pictures(60)
    kept = Checkpoints(tmp_path / "checkpoints")
    card = npf.train("dp-sgd", dataset, epsilon=8, seed=0, epochs=1, checkpoints=kept).card
    assert card.ran["recipe"] == "scattering"
    assert "statistics sigmas" not in card.ran
    usual, interruptible = (recipes.get("scattering").method(60, 8.0, interruptible=value) for value in (False, True))
    assert interruptible.lr > usual.lr
    assert interruptible == recipes.get("scattering").method(60, 8.0, {"precondition": 0.0})
    assert recipes.get("unit").method(60, 8.0, interruptible=True) == recipes.get("unit").method(60, 8.0)
    assert "statistics sigmas" in npf.train("dp-sgd", dataset, epsilon=8, seed=0, epochs=1).card.ran
    kept = Checkpoints(tmp_path / "others")
    with pytest.raises(SettingError, match="cannot be interrupted"):
        npf.train("dp-sgd", dataset, epsilon=8, seed=0, precondition=0.1, checkpoints=kept)


def test_auto_gives_way_to_a_network_a_method_and_other_methods():
    def recipe_of(method, **given):
        return npf.train(method, bits(60), epsilon=8, seed=0, **given).card.ran.get("recipe")

    assert recipe_of("dp-sgd", epochs=1) == recipe_of("dp-mf", epochs=1) == "unit"
    assert recipe_of("dp-sgd", epochs=1, recipe="none") is None
    assert recipe_of("dp-sgd", epochs=1, network="linear") is None
    assert recipe_of("dp-sgd-bounded", epochs=1) is None
    assert recipe_of(npf.methods.build("dp-sgd", {"epochs": 1})) is None
    assert recipe_of(npf.methods.build("dp-sgd", {"epochs": 1}), recipe=recipes.get("unit")) == "unit"


def test_a_recipe_takes_the_strategy_that_leaves_the_least_noise():
    """Without a sampler, the dense one that fits into memory; with one, as many bands as are best at the budget."""
    recipe = recipes.get("scattering")
    trusting_nothing = recipe.method(60_000, 8.0, method="dp-mf")
    assert (trusting_nothing.strategy, trusting_nothing.sampled) == ("auto", False)
    assert trusting_nothing.kind(trusting_nothing.steps(60_000), 39_700) == "dense"
    assert not any("Poisson" in one for one in trusting_nothing.assumptions())
    sampled = recipe.method(60_000, 8.0, {"sampled": True, "epochs": 4}, method="dp-mf")
    assert sampled == sampled.least_noise(60_000, Budget(8.0))
    assert recipe.method(60_000, 8.0, {"sampled": True, "bands": 3}, method="dp-mf").bands == 3


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        ("dp-sgd", {"recipe": "soup"}, "there is no recipe 'soup'"),
        ("dp-sgd", {"recipe": "scattering"}, "is for pictures"),
        ("dp-sgd", {"recipe": "bins"}, "is for tables"),
        ("dp-sgd", {"recipe": "unit", "network": "linear"}, "brings its own network"),
        ("none", {"recipe": "unit"}, "recipes are for dp-sgd and dp-mf"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(method, given, says):
    with pytest.raises(SettingError, match=says):
        npf.train(method, bits(40), seed=0, **given)


def test_a_network_behind_a_map_trains_as_the_network_on_the_features_does():
    dataset = bits(80)
    recipe = recipes.get("unit")
    method = recipe.method(80, 4.0, {"epochs": 3})
    behind = npf.train(method, dataset, epsilon=4, recipe=recipe, seed=3)
    whole = npf.train(method, dataset, epsilon=4, network=recipe.whole(dataset.public), recipe="none", seed=3)
    torch.testing.assert_close(behind.predict(dataset.features), whole.predict(dataset.features))
    torch.testing.assert_close(
        torch.softmax(behind.module[1](recipe.feature_map(dataset.public)(dataset.features)), 1),
        behind.predict(dataset.features),
    )


@pytest.mark.parametrize("name", recipes.names())
@pytest.mark.parametrize("records", [1, 40, 4_000, 1_000_000])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
def test_settings_are_valid_for_any_number_of_records_and_budget(name, records, epsilon):
    method = recipes.get(name).method(records, epsilon)
    assert 0 < method.rate(records) <= 1
    assert method.steps(records) >= 1
