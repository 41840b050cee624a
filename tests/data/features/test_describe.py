"""A map described as plain JSON is the same map again."""

from __future__ import annotations

import json

import pytest
import torch

from noiseproof.data.features import (
    BinsMap,
    Chain,
    GroupNormMap,
    MirrorMap,
    RandomFourierMap,
    RmsNormMap,
    ScatteringMap,
    UnitNormMap,
    describe,
    restore,
)
from noiseproof.errors import SettingError

MAPS = [
    UnitNormMap(),
    RmsNormMap(),
    RandomFourierMap(width=20, length=2.0, seed=3),
    BinsMap(bins=3, places=(0, 7)),
    Chain((ScatteringMap(scales=1, angles=2), GroupNormMap(3))),
    Chain((ScatteringMap(scales=1, angles=2), MirrorMap(scales=1, angles=2))),
    Chain((Chain((ScatteringMap(scales=1, angles=2), GroupNormMap(3))), UnitNormMap())),
]


@pytest.mark.parametrize("one", MAPS, ids=lambda one: type(one).__name__)
def test_a_restored_map_does_the_same(one):
    again = restore(json.loads(json.dumps(describe(one))))
    records = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert again.shape((1, 8, 8)) == one.shape((1, 8, 8))
    assert torch.equal(again(records), one(records))


def test_a_map_of_the_users_own_cannot_be_named():
    class Own(UnitNormMap):
        pass

    with pytest.raises(SettingError, match="no feature map of the package"):
        describe(Own())


@pytest.mark.parametrize("step", [{"map": "soup"}, {}, {"map": "bins", "spoons": 3}])
def test_a_description_of_no_map_is_refused(step):
    with pytest.raises(SettingError, match="feature map"):
        restore([step])
