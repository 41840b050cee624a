"""Where it is known whose records are, persons are attacked, each by all their records."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noiseproof.attacks import ShadowModels, infer_membership, split_for_attack
from noiseproof.networks import Training, fit_stack
from tests.attacks.conftest import Target, bits

EACH = 4
LIGHT = Training(epochs=12, batch_size=25, lr=0.01)
"""Short enough that single records are hard to tell."""


@pytest.fixture(scope="module")
def crowd():
    return replace(bits(800, seed=3), groups=torch.arange(800) // EACH)


@pytest.fixture(scope="module")
def persons(crowd):
    return split_for_attack(crowd, seed=2)


@pytest.fixture(scope="module")
def learned(persons, network):
    members = persons.members
    stack = fit_stack(network, members.features, members.labels, [torch.arange(len(members))], LIGHT, seeds=[9])
    return stack.module(0)


def test_nobody_is_on_two_sides_and_everybody_comes_with_all_records(crowd, persons):
    sides = (persons.members, persons.nonmembers, persons.pool)
    assert [side.persons for side in sides] == [50, 50, 100]
    assert all(torch.bincount(side.groups).eq(EACH).all() for side in sides)
    some = persons.limited(2 * EACH * 10 + 1)
    assert (some.members.persons, len(some.members), some.nonmembers.persons) == (10, 10 * EACH, 10)


def test_shadow_models_have_all_records_of_a_person_or_none(crowd, network):
    for shadows in (
        ShadowModels.halves(network, crowd, count=2, training=LIGHT),
        ShadowModels.drawn(network, crowd, count=2, size=60, training=LIGHT),
    ):
        by_person = shadows.inside.view(2, -1, EACH)
        assert torch.equal(by_person.all(2), by_person.any(2))
    assert by_person.all(2).sum(1).tolist() == [60, 60]


@pytest.mark.parametrize("attack", ["loss", "lira"])
def test_a_persons_records_together_tell_more_than_one_of_them(attack, persons, learned, network):
    single = replace(
        persons, members=replace(persons.members, groups=None), nonmembers=replace(persons.nonmembers, groups=None)
    )
    options = {"shadows": 8, "seed": 1, "training": LIGHT}
    whole = infer_membership(Target(learned, network), persons, attack, **options)
    alone = infer_membership(Target(learned, network), single, attack, **options)
    assert (whole.unit, alone.unit) == ("person", "record")
    assert (int(whole.member.sum()), len(whole.scores), whole.queries) == (50, 100, 100 * EACH)
    assert whole.auc > alone.auc + 0.05
    assert whole.to_json()["unit"] == "person"
