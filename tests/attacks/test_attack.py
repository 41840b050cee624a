"""Members, non-members and the attacker's pool are apart and cover the data."""

from __future__ import annotations

import pytest
import torch

from noiseproof.attacks import AttackSplit, split_for_attack
from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError, SettingError

RECORDS = Dataset("numbers", torch.arange(40.0)[:, None] / 40, torch.arange(40) % 2, Public((1,), ("a", "b")))


def places(records: Dataset) -> set[int]:
    return {round(float(value) * 40) for value in records.features}


def test_the_parts_are_disjoint_and_cover_the_records():
    split = split_for_attack(RECORDS, seed=3)
    members, nonmembers, pool = places(split.members), places(split.nonmembers), places(split.pool)
    assert (len(members), len(nonmembers), len(pool)) == (10, 10, 20)
    assert members | nonmembers | pool == set(range(40))
    assert split_for_attack(RECORDS, seed=3).members.features.equal(split.members.features)
    assert places(split_for_attack(RECORDS, seed=4).members) != members


def test_records_are_the_members_then_the_nonmembers():
    split = split_for_attack(RECORDS, size=15)
    assert places(split.records.take(split.membership)) == places(split.members)
    assert places(split.records.take(~split.membership)) == places(split.nonmembers)
    assert len(split.pool) == 10


def test_without_a_pool_the_attacker_trains_on_the_attacked_records():
    split = AttackSplit(RECORDS.take(torch.arange(10)), RECORDS.take(torch.arange(10, 40)))
    assert places(split.attackers) == set(range(40))


def test_a_target_that_charges_can_be_asked_about_fewer():
    split = split_for_attack(RECORDS).limited(7, seed=1)
    assert len(split.members) == len(split.nonmembers) == 3
    assert len(split_for_attack(RECORDS).limited(10**6).records) == 20
    with pytest.raises(SettingError, match="too few"):
        split.limited(1)


@pytest.mark.parametrize("size", [0, 20, 50])
def test_too_few_records_are_refused(size):
    with pytest.raises(SettingError, match="too few"):
        split_for_attack(RECORDS, size=size)


def test_both_sides_are_needed():
    with pytest.raises(DataError, match="one member"):
        AttackSplit(RECORDS, RECORDS.take(torch.arange(0)))
