"""A map described as plain JSON is the same map again."""

from __future__ import annotations

import json

import pytest
import torch

from noiseproof.data import Dataset, Public
from noiseproof.data.features import (
    BinsMap,
    Chain,
    GroupNormMap,
    MirrorMap,
    OpponentMap,
    RandomFourierMap,
    RmsNormMap,
    ScatteringMap,
    UnitNormMap,
    UprightMap,
    apply,
    describe,
    restore,
)
from noiseproof.errors import SettingError

MAPS = [
    UnitNormMap(),
    UprightMap(most=0.5),
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


# Public maps act on each record alone, with the shapes they state.


MAPS_MAPS = [
    GroupNormMap(3),
    UnitNormMap(),
    UprightMap(),
    RmsNormMap(),
    RandomFourierMap(width=40, length=2.0, seed=3),
    BinsMap(),
    BinsMap(bins=4, halvings=2, places=(1, 5, 63)),
    ScatteringMap(scales=1, angles=4),
    Chain((ScatteringMap(scales=1, angles=2), GroupNormMap(3), UnitNormMap())),
    Chain((ScatteringMap(scales=1, angles=4), MirrorMap(scales=1, angles=4))),
]


def records(n=9):
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("one", MAPS_MAPS, ids=lambda one: type(one).__name__)
def test_a_map_has_the_shape_it_states_and_sees_one_record_at_a_time(one):
    x = records()
    mapped = one(x)
    assert tuple(mapped.shape[1:]) == one.shape((1, 8, 8))
    torch.testing.assert_close(one(x[4:5]), mapped[4:5], atol=1e-5, rtol=1e-4)


def test_unit_norm_records_lie_on_the_sphere():
    torch.testing.assert_close(UnitNormMap()(records()).norm(dim=1), torch.ones(9))


def test_rms_norm_records_have_mean_square_1_in_their_own_shape_and_zero_stays():
    x = torch.cat([records(), torch.zeros(1, 1, 8, 8)])
    mapped = RmsNormMap()(x)
    torch.testing.assert_close(mapped.square().mean((1, 2, 3)), torch.tensor([1.0] * 9 + [0.0]))
    torch.testing.assert_close(mapped[0] / mapped[0].norm(), x[0] / x[0].norm())


def test_random_fourier_features_approach_their_kernel():
    x = records(6)
    mapped = RandomFourierMap(width=40_000, length=3.0, seed=0)(x)
    kernel = torch.exp(-torch.cdist(x.flatten(1), x.flatten(1)).square() / (2 * 9.0))
    torch.testing.assert_close(mapped @ mapped.T, kernel, atol=0.03, rtol=0)


def test_bins_code_every_number_twice_by_steps_and_by_halvings():
    coded = BinsMap(bins=4, halvings=3)(torch.tensor([[0.0, 0.3, 1.0]])).reshape(3, 8)
    assert coded.sum(1).tolist() == [2.0] * 3
    assert coded[:, :4].argmax(1).tolist() == [0, 1, 3]
    assert coded[:, 4:].argmax(1).tolist() == [0, 2, 3]


@pytest.mark.parametrize(("scales", "angles"), [(2, 8), (1, 4), (3, 4)])
def test_a_picture_and_its_mirror_image_have_the_same_mirrored_coefficients(scales, angles):
    step, side = 2**scales, 8 * 2**scales
    pictures = torch.zeros(3, 2, side, side)
    generator = torch.Generator().manual_seed(1)
    middle = slice(side // 2 - step, side // 2 + step)
    pictures[:, :, middle, middle] = torch.rand(3, 2, 2 * step, 2 * step, generator=generator)
    # Mirrored about the middle of the coarse grid; what moves over the border is empty.
    mirrored = pictures.flip(-1).roll(1 - step, dims=-1)
    scatter, mirror = ScatteringMap(scales, angles), MirrorMap(scales, angles)
    torch.testing.assert_close(mirror(scatter(mirrored)), mirror(scatter(pictures)), atol=1e-5, rtol=1e-3)
    assert not torch.allclose(scatter(mirrored), scatter(pictures), atol=1e-2)
    with pytest.raises(SettingError, match="a mirror takes scattering coefficients"):
        mirror(pictures[:, :1])


def test_only_the_numbers_of_a_table_are_binned_and_its_categories_stay():
    coded = BinsMap(bins=2, halvings=1, places=(1,))(torch.tensor([[1.0, 0.7, 0.0], [0.0, 0.2, 1.0]]))
    assert coded.tolist() == [[1, 0, 0, 1, 0, 1], [0, 1, 1, 0, 1, 0]]


def dataset(features):
    public = Public(shape=(1, 8, 8), classes=("a", "b"), kind="image")
    return Dataset("some", features, torch.zeros(len(features), dtype=torch.int64), public)


def test_mapped_features_are_computed_once_and_kept_under_the_content_they_came_from(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls = []

    class Counted(UnitNormMap):
        def __call__(self, features, progress=None):
            calls.append(len(features))
            return super().__call__(features)

    first = apply(dataset(records()), Counted(), cache=True)
    again = apply(dataset(records()), Counted(), cache=True)
    assert calls == [9]
    assert torch.equal(first.features, again.features)
    apply(dataset(records() / 2), Counted(), cache=True)
    assert calls == [9, 9]
    kept = list((tmp_path / "noiseproof" / "features").iterdir())
    assert len(kept) == 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    kept[0].write_bytes(b"torn"), kept[1].write_bytes(b"torn")
    assert torch.equal(apply(dataset(records()), Counted(), cache=True).features, first.features)


def test_mapped_records_are_kept_on_disk_only_where_that_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    apply(dataset(records()), UnitNormMap())
    assert not list(tmp_path.rglob("*.safetensors"))
    monkeypatch.setenv("NOISEPROOF_CACHE_FEATURES", "1")
    apply(dataset(records()), UnitNormMap(), cache=False)
    assert not list(tmp_path.rglob("*.safetensors"))
    apply(dataset(records()), UnitNormMap())
    (kept,) = tmp_path.rglob("*.safetensors")
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def _stroke(slant, middle=0.0):
    """A line across a picture of 32 x 32, leaning so far to the right for each row up."""
    rows, columns = torch.meshgrid(torch.arange(32.0) - 15.5, torch.arange(32.0) - 15.5, indexing="ij")
    return ((columns - middle - slant * rows).abs() < 1.5).float().mul((rows.abs() < 10).float())[None, None]


@pytest.mark.parametrize("slant", [-0.6, -0.2, 0.0, 0.3])
@pytest.mark.parametrize("middle", [0.0, 4.0])
def test_a_slanted_stroke_is_set_upright_in_the_middle(slant, middle):
    upright = UprightMap()(_stroke(slant, middle))
    assert (upright - _stroke(0.0)).abs().mean() < 0.02
    assert (upright - _stroke(0.0)).abs().mean() <= (_stroke(slant, middle) - _stroke(0.0)).abs().mean() + 1e-3


@pytest.mark.parametrize("brightness", [0.0, 0.7])
def test_a_picture_of_one_brightness_has_no_slant(brightness):
    even = torch.full((2, 3, 16, 16), brightness)
    torch.testing.assert_close(UprightMap()(even), even)


def test_opponent_colours_are_brightness_and_two_differences_of_the_same_length():
    pictures = torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    opponent = OpponentMap()(pictures)
    torch.testing.assert_close(opponent[:, 0] * 3**0.5, pictures.sum(1))
    torch.testing.assert_close(opponent.square().sum(1), pictures.square().sum(1))
    grey = OpponentMap()(torch.full((1, 3, 4, 4), 0.5))
    torch.testing.assert_close(grey[:, 1:], torch.zeros(1, 2, 4, 4))
    assert restore(describe(Chain((OpponentMap(),)))) == Chain((OpponentMap(),))
    with pytest.raises(SettingError, match="three colours"):
        OpponentMap()(torch.rand(2, 1, 4, 4))
