"""Draws follow the exponential mechanism exactly, for all coordinates at once, and corollary 2 holds for them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, chisquare

from noiseproof.errors import SettingError
from noiseproof.guarantees import Exponential, Reproducible
from noiseproof.parameters import draw as module
from noiseproof.parameters.density import FittedDensity, least_score, published_sensitivity, scores
from noiseproof.parameters.draw import draw

MODELS = 10
DENSITY = FittedDensity()


@pytest.fixture(scope="module")
def slice_():
    """One parameter's values, its grid, and the exact scores."""
    values = torch.randn(1, MODELS, generator=torch.Generator().manual_seed(3)).double()
    grid, width = DENSITY.grid(values)
    return values, grid, scores(values, grid, width, DENSITY)[0]


@pytest.fixture
def repeated(collection_of):
    return lambda values, times: collection_of(values[0].float()[:, None].expand(-1, times).contiguous())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_frequencies_match_the_exact_distribution(slice_, repeated, epsilon):
    """Chi-square over the points that expect 5 draws and more; false alarm 1e-7 each."""
    values, _, _ = slice_
    copies = repeated(values, 40_000)
    # The scores of what is really drawn from: float32 parameters.
    exact = copies.rows[:, :1].double().t().contiguous()
    grid, width = DENSITY.grid(exact)
    found = scores(exact, grid, width, DENSITY)[0]
    mechanism = Exponential(published_sensitivity(MODELS), epsilon)
    drawn = draw(copies, DENSITY, mechanism, Reproducible(0)).values.double()
    index = ((drawn - grid.low) / grid.step).round().long()
    counts = np.bincount(index.numpy(), minlength=len(found)).astype(float)
    law = torch.softmax(found * epsilon / (2 * mechanism.sensitivity), 0).numpy() * len(drawn)
    often = law >= 5
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(law[often], law[~often].sum())
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
    assert often.sum() > 3
    assert chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-7


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_corollary_2_holds_empirically(slice_, repeated, epsilon):
    """Scores below the bound are rarer than e^-t; a binomial test of 20,000 draws, false alarm below 1e-7 each."""
    values, grid, found = slice_
    mechanism = Exponential(published_sensitivity(MODELS), epsilon)
    drawn = draw(repeated(values, 20_000), DENSITY, mechanism, Reproducible(1)).values.double()
    index = ((drawn - grid.low) / grid.step).round().long().clamp(0, len(found) - 1)
    utility = found[index]
    for t in (0.1, 0.5, 1.0, 2.0, 4.0):
        bound = least_score(float(found.max()), mechanism.sensitivity, epsilon, len(found), t)
        bad = int((utility <= bound).sum())
        assert binom.sf(bad - 1, 20_000, math.exp(-t)) > 1e-7


def test_what_is_drawn_lies_on_each_parameters_own_grid(collection):
    values = collection.rows.double().t().contiguous()
    grid, width = DENSITY.grid(values)
    found = draw(collection, DENSITY, Exponential(published_sensitivity(20), 1e-3), Reproducible(0))
    moving = width > 0
    position = ((found.values.double() - grid.low) / grid.step)[moving]
    assert bool(((position - position.round()).abs() < 1e-3).all())
    assert bool((position.round() < grid.points[moving]).all())
    assert found.fixed == 2
    assert (float(found.values[7]), float(found.values[40])) == (0.25, 0.0)
    assert found.points == int(grid.points.max())


def test_a_large_epsilon_draws_the_best_point_and_a_small_one_any(collection):
    values = collection.rows.double().t().contiguous()
    grid, width = DENSITY.grid(values)
    best = grid.at(scores(values, grid, width, DENSITY).argmax(1)).float()
    sharp = draw(collection, DENSITY, Exponential(published_sensitivity(20), 1e6), Reproducible(0)).values
    assert torch.allclose(sharp, best, atol=1e-6)
    flat = draw(collection, DENSITY, Exponential(published_sensitivity(20), 1e-5), Reproducible(0)).values.double()
    moving = width > 0
    beyond = (flat < values.amin(1)) | (flat > values.amax(1))
    assert 0.1 < float(beyond[moving].double().mean()) < 0.9


def test_the_same_seed_draws_the_same_and_some_columns_are_drawn_like_a_collection_of_them(collection, collection_of):
    mechanism = Exponential(published_sensitivity(20), 1.0)
    once, again = (draw(collection, DENSITY, mechanism, Reproducible(5)).values for _ in range(2))
    assert torch.equal(once, again)
    columns = torch.tensor([3, 10, 50])
    some = draw(collection, DENSITY, mechanism, Reproducible(5), columns=columns).values
    alone = draw(collection_of(collection.rows[:, columns]), DENSITY, mechanism, Reproducible(5)).values
    assert torch.equal(some, alone)


def test_more_coordinates_than_a_block_are_all_drawn(monkeypatch, collection):
    monkeypatch.setattr(module, "_BLOCK", 7)
    found = draw(collection, DENSITY, Exponential(published_sensitivity(20), 1e6), Reproducible(0))
    values = collection.rows.double().t().contiguous()
    grid, width = DENSITY.grid(values)
    best = grid.at(scores(values, grid, width, DENSITY).argmax(1)).float()
    assert torch.allclose(found.values, best, atol=1e-6)


def test_an_epsilon_too_small_to_draw_by_is_refused(collection):
    with pytest.raises(SettingError, match="at least 1e-06"):
        draw(collection, DENSITY, Exponential(published_sensitivity(20), 1e-7), Reproducible(0))
