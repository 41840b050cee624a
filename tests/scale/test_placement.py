"""Where tasks run is said once, by a command's options, and reaches all that is under it."""

from __future__ import annotations

import pytest

from noiseproof.errors import SettingError
from noiseproof.scale.placement import WITHIN, Placement, asked, cores, current, placed, spread_out


def test_a_placed_block_lasts_as_long_as_it_lasts():
    assert current() is None
    with placed(Placement(jobs=3)):
        assert current() == Placement(jobs=3)
        with placed(WITHIN):
            assert not spread_out()
        assert spread_out()
    assert not spread_out()


def test_what_nobody_asked_for_changes_nothing():
    with asked(None, None):
        assert current() is None
    with asked(None, "auto"):
        assert current() == Placement(ray="auto")
    with pytest.raises(SettingError, match="not both"):
        asked(2, "auto")


def test_jobs_are_the_cores_where_none_are_given():
    assert Placement().processes == cores() >= 1
    assert Placement(jobs=7).processes == 7
