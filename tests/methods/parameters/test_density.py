"""The score is the mass of a kernel density estimate in a window; its true sensitivity is what brute force finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chisquare, gaussian_kde

from noiseproof.errors import SettingError
from noiseproof.methods.parameters import density as module
from noiseproof.methods.parameters.density import (
    FAR,
    FittedDensity,
    PublicDensity,
    draw,
    published_sensitivity,
    scores,
    sheather_jones,
    true_sensitivity,
)
from noiseproof.privacy import Exponential, Reproducible


def least_score(best: float, sensitivity: float, epsilon: float, points: int, t: float) -> float:
    """Corollary 2: with probability 1 - e^-t and more a draw scores above this, of `points` whose best score is `best`."""
    return best - 2 * sensitivity / epsilon * (math.log(points) + t)


def scored(values: torch.Tensor, density):
    grid, width = density.grid(values)
    return grid, width, scores(values, grid, width, density)


def test_the_score_is_scipys_integral_of_the_density_over_the_window():
    values = torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 0.1
    density = FittedDensity(window=0.8, resolution=6)
    grid, width, found = scored(values, density)
    for row in range(5):
        estimate = gaussian_kde(values[row].numpy())
        assert float(width[row]) == pytest.approx(math.sqrt(estimate.covariance.item()), rel=1e-12)
        half = 0.4 * float(width[row])
        for index in range(0, int(grid.points[row]), 7):
            t = float(grid.low[row] + index * grid.step[row])
            assert float(found[row, index]) == pytest.approx(estimate.integrate_box_1d(t - half, t + half), abs=2e-13)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    models=st.integers(2, 60),
    window=st.floats(0.05, 6.0),
    radius=st.floats(0.5, 30.0),
    spread=st.sampled_from([0.0, 0.1, 1.0, 10.0, 1e6]),
    seed=st.integers(0, 10_000),
)
def test_the_series_is_the_sum_over_models_wherever_they_are(models, window, radius, spread, seed):
    """Against the plain formula; models far beyond the grid count nothing and do not come round."""
    values = spread * torch.randn(20, models, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    density = PublicDensity(radius=radius, bandwidth=1.0, window=window, resolution=4)
    grid, _, found = scored(values, density)
    points = grid.low[:, None] + torch.arange(density.points) * grid.step[:, None]
    distance = points[:, :, None] - values[:, None, :]
    plain = torch.special.ndtr(distance + window / 2) - torch.special.ndtr(distance - window / 2)
    assert torch.allclose(found, plain.mean(2), rtol=0, atol=5e-13)


def test_the_grid_covers_the_values_and_their_tails_and_stops_there(collection):
    values = collection.rows.double().t().contiguous()
    grid, width = FittedDensity(tail=3.0).grid(values)
    last = grid.at(grid.points - 1)
    assert torch.allclose(grid.low, values.amin(1) - 3 * width)
    assert bool((last <= values.amax(1) + 3 * width + 1e-9).all())
    assert bool((last > values.amax(1) + 3 * width - grid.step - 1e-9).all())


def test_beyond_a_shorter_grids_end_nothing_can_be_drawn(collection):
    grid, _, found = scored(collection.rows.double().t().contiguous(), FittedDensity())
    beyond = torch.arange(found.shape[1]) >= grid.points[:, None]
    assert bool(beyond.any())
    assert bool((found[beyond] == FAR).all())
    assert bool((found[~beyond] >= -1e-12).all())


def test_a_parameter_without_spread_has_one_point_which_is_itself():
    values = torch.full((1, 10), 0.7, dtype=torch.float64)
    grid, width = FittedDensity().grid(values)
    assert (float(width[0]), int(grid.points[0]), float(grid.at(torch.tensor([0]))[0])) == (0.0, 1, 0.7)


def test_a_public_grid_is_the_same_whatever_the_values():
    density = PublicDensity(radius=1.0, bandwidth=0.2, window=1.0, resolution=4)
    assert density.points == 41
    one, two = (density.grid(values)[0] for values in (torch.zeros(3, 5), 1e9 * torch.ones(3, 5)))
    assert torch.equal(one.low, two.low)
    assert torch.equal(one.at(torch.tensor([20, 0, 40])), torch.tensor([0.0, -1.0, 1.0]))


def test_the_papers_sensitivity_is_far_below_the_true_one():
    assert published_sensitivity(50) == pytest.approx(0.000408, abs=5e-7)
    assert true_sensitivity(50, 1.0) == pytest.approx(0.00766, abs=5e-6)
    assert true_sensitivity(50, 1.0) / published_sensitivity(50) == pytest.approx(18.8, abs=0.05)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    models=st.integers(2, 12),
    window=st.floats(0.1, 4.0),
    relation=st.sampled_from(["add-or-remove", "replace-one"]),
    seed=st.integers(0, 10_000),
)
def test_no_neighbour_moves_a_score_by_more_than_the_true_sensitivity(models, window, relation, seed):
    generator = torch.Generator().manual_seed(seed)
    values = 3 * torch.randn(40, models, dtype=torch.float64, generator=generator)
    density = PublicDensity(radius=6.0, bandwidth=1.0, window=window, resolution=4)
    *_, found = scored(values, density)
    if relation == "add-or-remove":
        other = values[:, :-1] if models > 2 else values[:, :1]
    else:
        other = values.clone()
        other[:, -1] = 3 * torch.randn(40, dtype=torch.float64, generator=generator)
    *_, moved = scored(other, density)
    assert float((found - moved).abs().max()) <= true_sensitivity(models, window) * (1 + 1e-9)


@pytest.mark.parametrize("models", [2, 5, 50])
@pytest.mark.parametrize("window", [0.5, 1.0, 2.0])
def test_brute_force_attains_the_true_sensitivity_and_refutes_the_papers(models, window):
    """One model at 0, the others at every distance: the largest change is the formula's, for both relations."""
    distances = torch.linspace(0, 12, 200, dtype=torch.float64)
    values = torch.zeros(200, models, dtype=torch.float64)
    values[:, 1:] = distances[:, None]
    density = PublicDensity(radius=13.0, bandwidth=1.0, window=window, resolution=8)
    *_, all_ = scored(values, density)
    *_, without = scored(values[:, 1:], density)
    *_, exchanged = scored(torch.cat([values[:, 1:], 12 * torch.ones(200, 1, dtype=torch.float64)], 1), density)
    truth = true_sensitivity(models, window)
    for moved in (without, exchanged):
        assert float((all_ - moved).abs().max()) == pytest.approx(truth, rel=1e-9)
    if models == 50:
        assert truth > 9 * published_sensitivity(models)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FittedDensity(window=0), "window"),
        (lambda: FittedDensity(resolution=3), "multiple of 2"),
        (lambda: FittedDensity(tail=-1), "tail"),
        (lambda: FittedDensity(bandwidth=0), "bandwidth"),
        (lambda: PublicDensity(0, 1), "radius"),
        (lambda: PublicDensity(1, 1e-9), "too fine"),
        (lambda: published_sensitivity(1), "at least 2"),
        (lambda: FittedDensity(bandwidth=1e-9).grid(torch.tensor([[0.0, 1.0]])), "too small"),
    ],
)
def test_impossible_settings_are_refused(make, words):
    with pytest.raises(SettingError, match=words):
        make()


def test_scores_do_not_depend_on_how_many_coordinates_are_scored_together():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(3000, 12)))
    grid, _, found = scored(values, FittedDensity())
    for row in (0, 1234, 2999):
        one, _, alone = scored(values[row : row + 1], FittedDensity())
        assert torch.allclose(alone[0], found[row, : alone.shape[1]], rtol=0, atol=2e-13)
        assert int(one.points[0]) == int(grid.points[row])


# Draws follow the exponential mechanism exactly, for all coordinates at once, and corollary 2 holds for them.


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


def direct_sheather_jones(x: np.ndarray) -> float:
    """Sheather and Jones's equation by sums over all pairs, solved by bisection; the end that is nearer where it has no root."""
    n = len(x)
    apart = (x[:, None] - x) ** 2

    def fourth(h: float) -> float:
        u = apart / h**2
        return float((np.exp(-u / 2) * (u**2 - 6 * u + 3)).sum() / (n * (n - 1) * h**5 * math.sqrt(2 * math.pi)))

    def sixth(h: float) -> float:
        u = apart / h**2
        polynomial = u**3 - 15 * u**2 + 45 * u - 15
        return float((np.exp(-u / 2) * polynomial).sum() / (n * (n - 1) * h**7 * math.sqrt(2 * math.pi)))

    quarter, three = np.quantile(x, [0.25, 0.75])
    scale = min(x.std(ddof=1), (three - quarter) / 1.349)
    pilot = 1.357 * (fourth(1.24 * scale * n ** (-1 / 7)) / -sixth(1.23 * scale * n ** (-1 / 9))) ** (1 / 7)
    high = 1.144 * scale * n**-0.2
    low = 0.1 * high
    for _ in range(60):
        middle = (low + high) / 2
        rough = fourth(pilot * middle ** (5 / 7))
        if (1 / (2 * math.sqrt(math.pi) * n * rough)) ** 0.2 > middle:
            low = middle
        else:
            high = middle
    return (low + high) / 2


@pytest.mark.parametrize("models", [10, 50])
def test_sheather_and_joness_bandwidth_is_that_of_the_sums_over_all_pairs(models):
    rng = np.random.default_rng(models)
    normal = rng.normal(size=models)
    rows = np.stack(
        [normal, 1e-3 * normal + 5, np.sign(normal) * 4 + rng.normal(size=models), rng.standard_t(2, size=models)]
    )
    found = sheather_jones(torch.from_numpy(rows))
    np.testing.assert_allclose(found, [direct_sheather_jones(row) for row in rows], rtol=2e-4)
    assert float(sheather_jones(torch.full((1, models), 3.0, dtype=torch.float64))[0]) == 0
