"""Scattering: a wavelet scattering transform, a public feature map for images that is fitted on nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.progress import SILENT, Progress

_CHUNK = 32
"""Pictures transformed at once; small enough that what is in between stays in cache."""


@dataclass(frozen=True)
class ScatteringMap:
    """Scattering coefficients of orders 0 to 2 with Morlet wavelets (Bruna and Mallat 2013), for pictures of any size.

    Pictures (records, channels, height, width) become (records, channels * paths, height / 2^J, width / 2^J) with
    1 + L J + L^2 J (J - 1) / 2 paths: 81 for J = 2 and L = 8 angles, so 81 x 7 x 7 for a 28 x 28 picture.

    Formal guarantee
    ----------------
    None is needed: a record's features depend on that record and on constants alone, so a mechanism that is private
    for records of features is private for records of pictures, under the same neighbours.
    """

    scales: int = 2
    angles: int = 8

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Channels times paths, on the coarse grid."""
        if len(shape) != 3:
            raise SettingError(f"scattering takes pictures (channels, height, width), not records of shape {shape}.")
        step = 2**self.scales
        if any(side % step or side < step for side in shape[1:]):
            raise SettingError(
                f"scattering at {self.scales} scales needs sides that are multiples of {step}, not {shape[1]} x {shape[2]}."
            )
        paths = 1 + self.angles * self.scales + self.angles**2 * self.scales * (self.scales - 1) // 2
        return shape[0] * paths, shape[1] // step, shape[2] // step

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The coefficients of pictures, in chunks of bounded memory."""
        shape = self.shape(tuple(features.shape[1:]))
        mapped = torch.empty((len(features), *shape), dtype=torch.float32, device=features.device)
        with progress.task("scattering", len(features)) as task:
            for start in range(0, len(features), _CHUNK):
                chunk = features[start : start + _CHUNK].float()
                mapped[start : start + _CHUNK] = self._transform(chunk.flatten(0, 1)).reshape(len(chunk), *shape)
                task.advance(len(chunk))
        return mapped

    def _transform(self, pictures: torch.Tensor) -> torch.Tensor:
        bank = _bank(*pictures.shape[1:], self.scales, self.angles)
        margin = 2**self.scales
        padded = functional.pad(pictures.unsqueeze(1), [margin] * 4, mode="reflect").squeeze(1)
        spectrum = torch.fft.fft2(padded).unsqueeze(1)
        coefficients = [bank.average(padded.unsqueeze(1), 0)]
        deeper = []
        for scale in range(self.scales):
            wavelets = bank.wavelet(scale, 0, pictures.device)
            modulus = _modulus(spectrum, wavelets, 2**scale)
            coefficients.append(bank.average(modulus, scale))
            if scale + 1 == self.scales:
                break
            inner = torch.fft.fft2(modulus).unsqueeze(2)
            for second in range(scale + 1, self.scales):
                wavelets = bank.wavelet(second, scale, pictures.device)
                twice = _modulus(inner, wavelets, 2 ** (second - scale))
                deeper.append(bank.average(twice.flatten(1, 2), second))
        return torch.cat(coefficients + deeper, dim=1)


class _Bank:
    """The filters for one size of picture: wavelets by scale in the Fourier domain, the low-pass as two matrices."""

    def __init__(self, height: int, width: int, scales: int, angles: int) -> None:
        step = 2**scales
        # Room for a wavelet at each border, and a multiple of the step, so that sub-sampling is exact.
        self.rows, self.columns = (height // step + 2) * step, (width // step + 2) * step
        self._scales = scales
        self._wavelets: dict[tuple[int, int, torch.device], torch.Tensor] = {}
        self._full = {
            scale: torch.stack(
                [_morlet(self.rows, self.columns, scale, (angles // 2 - 1 - angle) * math.pi / angles, 4 / angles)
                 for angle in range(angles)]
            )
            for scale in range(scales)
        }  # fmt: skip

    def wavelet(self, scale: int, resolution: int, device: torch.device) -> torch.Tensor:
        """The wavelets of a scale, for signals that were sub-sampled by 2^resolution."""
        key = (scale, resolution, device)
        if key not in self._wavelets:
            self._wavelets[key] = (
                _periodise(self._full[scale], 2**resolution).mul(4**resolution).to(torch.complex64).to(device)
            )
        return self._wavelets[key]

    def average(self, signal: torch.Tensor, resolution: int) -> torch.Tensor:
        """Low-pass and sub-sample to the coarsest grid, without the margins: a Gaussian is separable."""
        down = _low_pass(self.rows, self._scales, resolution)
        across = _low_pass(self.columns, self._scales, resolution)
        # As one product with their Kronecker product: many small products would cost more than the larger sum does.
        both = torch.kron(down, across).to(signal.device)
        return (signal.flatten(-2) @ both.T).unflatten(-1, (len(down), len(across)))


@lru_cache(maxsize=8)
def _bank(height: int, width: int, scales: int, angles: int) -> _Bank:
    return _Bank(height, width, scales, angles)


def _modulus(spectrum: torch.Tensor, wavelets: torch.Tensor, factor: int) -> torch.Tensor:
    """|signal * wavelet| sub-sampled by `factor`: product and folding in one pass, a tile of the spectrum at a time."""
    rows, columns = wavelets.shape[-2] // factor, wavelets.shape[-1] // factor
    folded: torch.Tensor | None = None
    for i in range(factor):
        for k in range(factor):
            tile = (..., slice(i * rows, (i + 1) * rows), slice(k * columns, (k + 1) * columns))
            if folded is None:
                folded = spectrum[tile] * wavelets[tile]
            else:
                folded.addcmul_(spectrum[tile], wavelets[tile])
    assert folded is not None
    parts = torch.view_as_real(torch.fft.ifft2(folded))
    return torch.hypot(parts[..., 0], parts[..., 1]).div_(factor**2)


def _gabor(rows: int, columns: int, sigma: float, theta: float, xi: float, slant: float) -> torch.Tensor:
    """A Gaussian window times a plane wave, made periodic by adding up the neighbouring periods."""
    # The window is tilted by theta and squeezed by the slant.
    cosine, sine = math.cos(theta), math.sin(theta)
    a = (cosine**2 + (slant * sine) ** 2) / (2 * sigma**2)
    b = cosine * sine * (1 - slant**2) / sigma**2
    c = (sine**2 + (slant * cosine) ** 2) / (2 * sigma**2)
    y = torch.arange(-2 * rows, 3 * rows, dtype=torch.float64)[:, None]
    x = torch.arange(-2 * columns, 3 * columns, dtype=torch.float64)[None, :]
    window = torch.exp(-(a * y**2 + b * y * x + c * x**2))
    wave = torch.polar(window, xi * (y * cosine + x * sine))
    return wave.reshape(5, rows, 5, columns).sum((0, 2)) * slant / (2 * math.pi * sigma**2)


def _morlet(rows: int, columns: int, scale: int, theta: float, slant: float) -> torch.Tensor:
    """A Morlet wavelet in the Fourier domain (where it is real): a Gabor wave with zero mean."""
    sigma, xi = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    wave = _gabor(rows, columns, sigma, theta, xi, slant)
    window = _gabor(rows, columns, sigma, theta, 0.0, slant)
    return torch.fft.fft2(wave - wave.sum() / window.sum() * window).real


def _periodise(spectrum: torch.Tensor, factor: int) -> torch.Tensor:
    """In the Fourier domain, what sub-sampling by `factor` is in the space domain."""
    *lead, rows, columns = spectrum.shape
    folded = spectrum.reshape(*lead, factor, rows // factor, factor, columns // factor)
    return folded.mean((-4, -2))


@lru_cache(maxsize=32)
def _low_pass(side: int, scales: int, resolution: int) -> torch.Tensor:
    """The matrix that averages a signal of period `side` / 2^resolution with a Gaussian and keeps the inner samples."""
    length, sigma = side // 2**resolution, 0.8 * 2 ** (scales - 1)
    lags = torch.arange(-2 * side, 3 * side, dtype=torch.float64)
    window = torch.exp(-(lags**2) / (2 * sigma**2)).reshape(5, side).sum(0) / (math.sqrt(2 * math.pi) * sigma)
    # Sub-sampled signals meet the window at every 2^resolution-th sample, each standing for as many.
    folded = torch.fft.fft(window).reshape(2**resolution, -1).mean(0)
    window = torch.fft.ifft(folded).real * 2**resolution
    kept = torch.arange(1, side // 2**scales - 1) * 2 ** (scales - resolution)
    return window[(kept[:, None] - torch.arange(length)[None, :]) % length].float()
