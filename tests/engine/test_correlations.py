"""A kernel's gradients do not depend on how much of them may be written out at a time."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from noiseproof.engine import contributions, correlations
from noiseproof.engine.correlations import Correlations, Geometry


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
def test_all_ways_agree(monkeypatch, bytes_kept, bytes_unfolded, channels, pass_cost):
    monkeypatch.setattr(contributions, "KEPT_BYTES", bytes_kept)
    monkeypatch.setattr(contributions, "PIECE_BYTES", bytes_kept)
    monkeypatch.setattr(correlations, "CHUNK_BYTES", bytes_unfolded)
    monkeypatch.setattr(correlations, "PASS_COST", pass_cost)
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
