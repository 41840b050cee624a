"""Shadow models of a noised training are trained like it: same method, settings, noise and recipe."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof import train
from noiseproof.attacks import ShadowModels, infer_membership
from noiseproof.attacks.retraining import Retraining
from noiseproof.networks import Training
from noiseproof.releases import bundles

LIGHT = {"epochs": 50, "batch_size": 50, "lr": 1.0, "noise_multiplier": 0.05, "max_grad_norm": 1.0}
"""Hardly any noise: the networks memorise."""


@pytest.fixture(scope="module")
def release(split, network):
    return train("dp-sgd", split.members, epsilon=1e5, network=network, recipe="none", seed=0, **LIGHT)


def test_method_settings_noise_and_network_are_those_of_the_release_also_from_its_bundle(release, network, tmp_path):
    release.save(tmp_path / "bundle")
    for target in (release, bundles.load(tmp_path / "bundle")):
        like = Retraining.of(target)
        assert like.method.name == "dp-sgd"
        assert {name: getattr(like.method, name) for name in LIGHT} == LIGHT
        assert like.network == network
        assert like.recipe is None


def test_noise_that_was_calibrated_is_taken_as_it_ran(split):
    made = train("dp-sgd", split.members, epsilon=3, recipe="none", seed=0, epochs=1)
    assert made.settings["noise_multiplier"] is None
    assert Retraining.of(made).method.noise_multiplier == made.card.ran["noise_multiplier"]


def test_a_recipe_is_repeated_with_its_map(split):
    made = train("dp-sgd", split.members, epsilon=3, recipe="unit", seed=0, epochs=1)
    like = Retraining.of(made)
    assert like.recipe.name == "unit"
    again = like.fit(split.members, seed=0)
    assert type(again.module) is type(made.module)
    assert again.predict(split.members.features).shape == (200, 3)


def test_what_cannot_be_trained_again_is_left_to_ordinary_training(split):
    own = train("dp-sgd", split.members, epsilon=3, network=nn.Linear(30, 3), recipe="none", seed=0, epochs=1)
    assert Retraining.of(own) is None
    assert Retraining.of(object()) is None


def test_shadow_models_like_the_release_find_what_others_miss(release, split):
    """The difference is far beyond the bootstrap's interval of either."""
    like = infer_membership(release, split, "lira", shadows=8, seed=1)
    unlike = infer_membership(release, split, "lira", shadows=8, seed=1, training=Training())
    assert like.measures["advantage"].low > unlike.measures["advantage"].high
    assert like.advantage > unlike.advantage + 0.2


def test_shadow_models_are_each_trained_on_their_own_records(release, split, network):
    shadows = ShadowModels.halves(network, split.members, count=2, training=Retraining.of(release), seed=0)
    assert len(shadows) == 2
    seen = shadows.confidences(split.members)
    for row, inside in zip(seen, shadows.inside, strict=True):
        assert row[inside].mean() > row[~inside].mean()
    assert torch.isfinite(seen).all()
