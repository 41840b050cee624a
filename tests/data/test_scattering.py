"""The scattering transform has its stated shape, is what its definition says, and sees one record at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from noiseproof.data.scattering import ScatteringMap
from noiseproof.errors import SettingError


def pictures(n, channels=1, side=28):
    return torch.rand(n, channels, side, side, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize(("channels", "side", "shape"), [(1, 28, (81, 7, 7)), (3, 32, (243, 8, 8))])
def test_two_scales_and_eight_angles_give_the_stated_shapes(channels, side, shape):
    transform = ScatteringMap()
    assert transform.shape((channels, side, side)) == shape
    assert transform(pictures(2, channels, side)).shape == (2, *shape)


def direct(picture, scales=2, angles=8):
    """The definition, at full resolution: convolve, take the modulus, convolve again; sub-sample at the very end."""
    margin = 2**scales
    padded = np.pad(picture, margin, mode="reflect")
    side = len(padded)
    grid = np.mgrid[-2 * side : 3 * side, -2 * side : 3 * side]

    def periodic(values):
        return values.reshape(5, side, 5, side).sum((0, 2))

    def window(sigma, theta, slant):
        along = grid[0] * np.cos(theta) + grid[1] * np.sin(theta)
        across = -grid[0] * np.sin(theta) + grid[1] * np.cos(theta)
        return np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2)) * slant / (2 * np.pi * sigma**2), along

    def wavelet(scale, angle):
        theta = (angles // 2 - 1 - angle) * math.pi / angles
        envelope, along = window(0.8 * 2**scale, theta, 4 / angles)
        wave, envelope = periodic(envelope * np.exp(0.75j * np.pi / 2**scale * along)), periodic(envelope)
        return wave - wave.sum() / envelope.sum() * envelope

    def convolve(signal, kernel):
        return np.fft.ifft2(np.fft.fft2(signal) * np.fft.fft2(kernel))

    low = periodic(window(0.8 * 2 ** (scales - 1), 0.0, 1.0)[0])

    def average(signal):
        return convolve(signal, low).real[::margin, ::margin][1:-1, 1:-1]

    bank = {(s, a): wavelet(s, a) for s in range(scales) for a in range(angles)}
    first = {key: np.abs(convolve(padded, kernel)) for key, kernel in bank.items()}
    paths = [average(padded), *(average(signal) for signal in first.values())]
    paths += [
        average(np.abs(convolve(first[key], bank[other]))) for key in first for other in bank if other[0] > key[0]
    ]
    return np.stack(paths)


def test_it_is_its_definition_up_to_the_aliasing_of_sub_sampling():
    x = pictures(1)
    found, expected = ScatteringMap()(x)[0].numpy(), direct(x[0, 0].double().numpy())
    np.testing.assert_allclose(found[:9], expected[:9], atol=1e-6)
    np.testing.assert_allclose(found, expected, atol=5e-3)


def test_a_records_features_depend_on_that_record_alone():
    x = pictures(70)
    whole = ScatteringMap()(x)
    torch.testing.assert_close(whole[40:41], ScatteringMap()(x[40:41]), atol=1e-6, rtol=1e-5)


def test_a_constant_picture_has_no_detail():
    features = ScatteringMap()(torch.full((1, 1, 28, 28), 0.5))
    torch.testing.assert_close(features[0, 0], torch.full((7, 7), 0.5), atol=1e-4, rtol=0)
    assert float(features[0, 1:].abs().max()) < 1e-5


def test_sides_that_cannot_be_halved_are_refused_in_words():
    with pytest.raises(SettingError, match="multiples of 4"):
        ScatteringMap().shape((1, 30, 30))
