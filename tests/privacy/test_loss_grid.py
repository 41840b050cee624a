from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import laplace, norm

from noiseproof.privacy.events import Step
from noiseproof.privacy.loss_grid import grids


def hockey_stick(p, q, epsilon, x):
    """The delta of a pair of densities at epsilon, by summing over a fine grid of outputs."""
    return float(np.maximum(p(x) - math.exp(epsilon) * q(x), 0).sum() * (x[1] - x[0]))


def on_grid(grid, epsilon):
    return grid.lost + float(np.maximum(-np.expm1(epsilon - grid.losses), 0) @ grid.mass)


def pair(step):
    law = norm if step.law == "gaussian" else laplace

    def mixture(centre):
        return lambda x: (1 - step.rate) * law.pdf(x, 0, step.scale) + step.rate * law.pdf(x, centre, step.scale)

    return mixture(1), mixture(-1) if step.exchange else lambda x: law.pdf(x, 0, step.scale)


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.sampled_from(["gaussian", "laplace"]),
    st.floats(0.4, 5),
    st.sampled_from([0.01, 0.3, 0.9, 1.0]),
    st.booleans(),
    st.floats(-0.5, 2),
)
def test_a_grid_never_understates_a_step_and_hardly_overstates_it(law, scale, rate, exchange, epsilon):
    step = Step(law, scale, rate, exchange=exchange and law == "gaussian" and rate < 1)
    x = np.linspace(-40, 40, 200_001)
    p, q = pair(step)
    removed, added = grids(step, 1e-3, 1e-12)
    for grid, (a, b) in ((removed, (p, q)), (added, (q, p))):
        exact = hockey_stick(a, b, epsilon, x)
        # Between grid points delta is a chord over e^epsilon: at a kink at most a quarter of the interval above.
        assert exact - 1e-7 <= on_grid(grid, epsilon) <= exact + 2.6e-4 * math.exp(max(epsilon, 0.0))


@pytest.mark.parametrize(
    "step",
    [
        Step("gaussian", 0.01, 0.001),
        Step("gaussian", 0.05, 0.3, exchange=True),
        Step("gaussian", 1e5, 1e-6),
        Step("laplace", 0.01, 0.5),
        Step("pure", 900.0, 0.2),
        Step("pure", 1e-9, 1.0),
        Step("gaussian", 2.0, 1 - 1e-12),
    ],
)
def test_extreme_steps_keep_their_mass(step):
    low, high = (0.0, 900.0) if step.scale == 900 else (0.0, 1 / step.scale)
    for grid in grids(step, max(high - low, 1e-9) / 1000, 1e-12):
        assert (grid.mass >= 0).all()
        assert grid.mass.sum() + grid.lost == pytest.approx(1, abs=1e-9)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.floats(1e-2, 5), st.sampled_from([0.01, 0.5, 1.0]), st.floats(0, 5))
def test_pure_losses_are_those_of_randomised_response(epsilon, rate, at):
    out = np.array([1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))])
    into = (1 - rate) * out + rate * out[::-1]
    removed, added = grids(Step("pure", epsilon, rate), epsilon / 999.5, 1e-12)
    for grid, (a, b) in ((removed, (into, out)), (added, (out, into))):
        exact = float(np.maximum(a - math.exp(at) * b, 0).sum())
        assert exact - 1e-12 <= on_grid(grid, at) <= exact + epsilon / 999


def test_no_pair_of_records_is_worse_than_opposite_ones_when_one_is_exchanged():
    # With any two contributions in the unit ball (a plane holds them and the origin), no delta exceeds that of the pair
    # (1-q) N(0) + q N(1) and (1-q) N(0) + q N(-1) that replace-one accounting rests on.
    axis = np.linspace(-9, 9, 361)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2

    def density(rate, sigma, at):
        def bell(centre):
            return np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * sigma**2)) / (2 * math.pi * sigma**2)

        return (1 - rate) * bell((0, 0)) + rate * bell(at)

    for rate, sigma in ((0.1, 1.0), (0.5, 0.7), (0.9, 1.5)):
        for epsilon in (0.05, 0.5, 1.5):
            worst = (density(rate, sigma, (1, 0)), density(rate, sigma, (-1, 0)))
            bound = np.maximum(worst[0] - math.exp(epsilon) * worst[1], 0).sum() * cell
            for angle in np.linspace(0, math.pi, 7):
                for length in (0.5, 1.0):
                    other = density(rate, sigma, (length * math.cos(angle), length * math.sin(angle)))
                    delta = np.maximum(worst[0] - math.exp(epsilon) * other, 0).sum() * cell
                    assert delta <= bound + 1e-6
