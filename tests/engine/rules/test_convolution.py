"""Convolutions have the gradients of single-record autograd for every stride, padding, dilation and grouping."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from noiseproof.engine import contributions
from noiseproof.engine.rules import convolution
from noiseproof.engine.rules.convolution import Correlations, Geometry

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

PAIR = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    records=st.integers(1, 4),
    groups=st.sampled_from([1, 1, 2, 3]),
    channels=st.sampled_from([1, 2, 30]),
    rows=st.integers(1, 3),
    kernel=PAIR,
    stride=PAIR,
    padding=st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.sampled_from(["same", "valid"])),
    dilation=PAIR,
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    bias=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=120)
def test_in_two_dimensions(agree, records, groups, channels, rows, kernel, stride, padding, dilation, size, bias):
    if padding == "same":
        stride = (1, 1)
    elif padding != "valid":
        assume(all(n + 2 * p > d * (k - 1) for n, p, d, k in zip(size, padding, dilation, kernel, strict=True)))
    else:
        assume(all(n > d * (k - 1) for n, d, k in zip(size, dilation, kernel, strict=True)))
    torch.manual_seed(records)
    module = nn.Conv2d(groups * channels, groups * rows, kernel, stride, padding, dilation, groups, bias)
    agree(module, torch.randn(records, groups * channels, *size))


@given(
    records=st.integers(1, 4),
    groups=st.sampled_from([1, 2]),
    channels=st.sampled_from([1, 3, 50]),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 3),
    padding=st.one_of(st.integers(0, 3), st.sampled_from(["same", "valid"])),
    dilation=st.integers(1, 2),
    double=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_in_one_dimension(agree, records, groups, channels, kernel, stride, padding, dilation, double):
    torch.manual_seed(records)
    stride = 1 if padding == "same" else stride
    module = nn.Conv1d(groups * channels, groups * 2, kernel, stride, padding, dilation, groups)
    dtype = torch.float64 if double else torch.float32
    agree(module, torch.randn(records, groups * channels, 9), dtype=dtype)


@given(
    groups=st.sampled_from([1, 2]),
    channels=st.sampled_from([1, 3, 25]),
    kernel=PAIR,
    stride=PAIR,
    padding=st.sampled_from([0, 1]),
    dilation=PAIR,
    extra=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_transposed(agree, groups, channels, kernel, stride, padding, dilation, extra):
    added = tuple(int(extra and max(s, d) > 1) for s, d in zip(stride, dilation, strict=True))
    sizes = [
        4 * s - 2 * padding + d * (k - 1) + a + 1 for s, d, k, a in zip(stride, dilation, kernel, added, strict=True)
    ]
    assume(min(sizes) > 0)
    torch.manual_seed(channels)
    module = nn.ConvTranspose2d(
        groups * 2, groups * channels, kernel, stride, padding, added, groups, dilation=dilation
    )
    agree(module, torch.randn(3, groups * 2, 5, 5))


def test_transposed_in_one_dimension(agree):
    torch.manual_seed(0)
    agree(nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, groups=2), torch.randn(3, 4, 5))


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [1, "same"])
def test_padding_modes(agree, mode, padding):
    torch.manual_seed(0)
    agree(nn.Conv2d(2, 3, (3, 4), padding=padding, padding_mode=mode), torch.randn(3, 2, 6, 7))
    agree(nn.Conv1d(2, 3, 3, padding=padding, padding_mode=mode), torch.randn(3, 2, 6))


def test_many_channels_at_few_places_use_gram_matrices(agree):
    torch.manual_seed(0)
    agree(nn.Conv2d(64, 96, 3, padding=1, groups=2), torch.randn(3, 64, 2, 2))


def test_inputs_need_not_be_contiguous(agree):
    torch.manual_seed(0)
    agree(nn.Conv2d(2, 3, 3), torch.randn(4, 2, 7, 6).transpose(2, 3))
    agree(nn.Conv2d(16, 3, 3, padding=1), torch.randn(4, 16, 7, 6).contiguous(memory_format=torch.channels_last))


def test_a_network_in_channels_last_memory(agree):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3)).to(memory_format=torch.channels_last)
    agree(module, torch.randn(4, 1, 8, 8).contiguous(memory_format=torch.channels_last))


def expected(inputs: torch.Tensor, errors: torch.Tensor, geometry: Geometry) -> torch.Tensor:
    shape = (errors.shape[1], inputs.shape[1] // geometry.groups, *geometry.kernel)
    kernel = torch.zeros(shape, dtype=inputs.dtype, requires_grad=True)
    options = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    return torch.stack(
        [
            torch.autograd.grad((F.conv2d(one[None], kernel, None, *options) * error).sum(), kernel)[0]
            for one, error in zip(inputs, errors, strict=True)
        ]
    )


@pytest.mark.parametrize("bytes_kept", [1, 20_000, 10**9])
@pytest.mark.parametrize("bytes_unfolded", [1, 20_000, 10**9])
@pytest.mark.parametrize("channels", [2, 32])
@pytest.mark.parametrize("pass_cost", [0, 10**9], ids=["written out", "gram"])
def test_gradients_do_not_depend_on_how_much_is_written_out_at_a_time(
    monkeypatch, bytes_kept, bytes_unfolded, channels, pass_cost
):
    monkeypatch.setattr(contributions, "KEPT_BYTES", bytes_kept)
    monkeypatch.setattr(contributions, "PIECE_BYTES", bytes_kept)
    monkeypatch.setattr(convolution, "CHUNK_BYTES", bytes_unfolded)
    monkeypatch.setattr(convolution, "PASS_COST", pass_cost)
    geometry = Geometry((3, 2), (2, 1), (1, 2), (1, 2), 2)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, 2 * channels, 6, 5, dtype=torch.float64, generator=generator)
    shape = F.conv2d(inputs, torch.zeros(4, channels, 3, 2).double(), None, (2, 1), (1, 2), (1, 2), 2).shape
    errors = torch.randn(shape, dtype=torch.float64, generator=generator)
    wanted = expected(inputs, errors, geometry)
    rows = wanted.flatten(1)
    weights = torch.linspace(0.5, 2, 5, dtype=torch.float64)
    vector = torch.randn(wanted.shape[1:], dtype=torch.float64, generator=generator)
    found = Correlations(inputs, errors, wanted.shape[1:], geometry)
    for _ in range(2):
        torch.testing.assert_close(found.gram(), rows @ rows.T)
        torch.testing.assert_close(found.inner(vector), rows @ vector.flatten())
        torch.testing.assert_close(found.squared_norms(), rows.square().sum(1))
        torch.testing.assert_close(found.weighted_sum(weights).flatten(), weights @ rows)
        torch.testing.assert_close(found.explicit(), wanted)


@pytest.mark.parametrize("kernel", [(3, 3), (1, 5), (2, 3)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1)])
@pytest.mark.parametrize("padding", [(0, 0), (1, 2)])
@pytest.mark.parametrize("dilation", [(1, 1), (1, 2)])
@pytest.mark.parametrize("groups", [1, 2])
def test_norms_from_products_of_pixels_are_those_from_windows(monkeypatch, kernel, stride, padding, dilation, groups):
    geometry = Geometry(kernel, stride, padding, dilation, groups)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(5, 4, 9, 12, dtype=torch.float64, generator=generator)
    shape = F.conv2d(
        inputs, torch.zeros(6, 4 // groups, *kernel).double(), None, stride, padding, dilation, groups
    ).shape
    errors = torch.randn(shape, dtype=torch.float64, generator=generator)
    wanted = expected(inputs, errors, geometry)
    found = Correlations(inputs, errors, wanted.shape[1:], geometry)
    for cost in (-(10**6), 10**6):  # by pixels, by windows
        monkeypatch.setattr(convolution, "SUM_COST", cost)
        torch.testing.assert_close(found._norms_from_products(), wanted.flatten(1).square().sum(1))
