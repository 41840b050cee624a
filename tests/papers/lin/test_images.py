"""Images become 28x28 and grey."""

from __future__ import annotations

import pytest
import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import DataError
from papers.lin.design import PLANS
from papers.lin.training import grey28, source


def images(*shape: int) -> Dataset:
    features = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    return Dataset("images", features, torch.zeros(3, dtype=torch.int64), Public(shape, ("a", "b"), kind="image"))


def test_colour_images_become_the_luminance_of_their_middle():
    colour = images(3, 32, 32)
    grey = grey28(colour)
    red, green, blue = colour.features[:, :, 2:30, 2:30].unbind(1)
    assert grey.public.shape == (1, 28, 28)
    assert torch.allclose(grey.features[:, 0], 0.299 * red + 0.587 * green + 0.114 * blue, atol=1e-6)
    assert "grey by luminance" in grey.public.notes[-1]


def test_white_stays_white_and_within_bounds():
    white = images(3, 32, 32)
    white.features.fill_(1.0)
    assert grey28(white).features.max() <= 1
    assert torch.allclose(grey28(white).features, torch.ones(3, 1, 28, 28))


def test_mnist_is_taken_as_it_is():
    mnist = images(1, 28, 28)
    assert grey28(mnist) is mnist


@pytest.mark.parametrize("shape", [(1, 8, 8), (784,), (2, 28, 28)])
def test_other_records_are_refused(shape):
    with pytest.raises(DataError, match="at least 28x28 are needed"):
        grey28(images(*shape))


def test_the_papers_size_has_svhns_extra_part_where_it_is_there_and_kept_cells_never(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert source("svhn", PLANS["paper"]) == "svhn"
    for part in ("train", "extra", "test"):
        (tmp_path / f"{part}_32x32.mat").touch()
    assert source("svhn", PLANS["paper"]) == "svhn-extra"
    assert source("svhn", PLANS["effect"]) == "svhn"
    assert source("mnist", PLANS["paper"]) == "mnist"
