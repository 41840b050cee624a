"""Figures are drawn for every part of the study, also when a training diverged."""

from __future__ import annotations

import dataclasses
import math

import pytest
from matplotlib import image

from papers.lin import Lin, design, figures
from papers.study import Setup


@pytest.fixture(scope="module")
def results(tmp_path_factory, plan, pretend):
    setup = Setup(plan, tmp_path_factory.mktemp("store"), runner=pretend, workers=1)
    return Lin().results(design.every_cell(), setup)


def test_every_figure_is_a_picture_with_something_on_it(results, tmp_path):
    paths = figures.every_figure(results, tmp_path)
    assert [path.stem for path in paths] == ["fig-1", "fig-2", "fig-3", "fig-4", "fig-5", "sweep", "sequences"]
    for path in paths:
        pixels = image.imread(path)
        assert min(pixels.shape[:2]) > 300
        assert pixels[..., :3].std() > 0.05


def test_a_training_that_diverged_leaves_the_others_readable(results, tmp_path):
    cell = design.Cell("mnist", "cnn", "adam", "CA", 0.5, 1.4)
    diverged = {**results, cell: dataclasses.replace(results[cell], losses=(2.3, 1e9, math.inf))}
    path = figures.sequences_figure(diverged, tmp_path, "fig-1", "mnist", 0.5, 1.4)
    blue = image.imread(path)[..., 2] - image.imread(path)[..., 0] > 0.5
    # AC's curve, in blue, still covers part of the right half's height rather than lying flat at the bottom.
    rows = blue[:, blue.shape[1] // 2 :].any(axis=1).nonzero()[0]
    assert rows.max() - rows.min() > 0.05 * blue.shape[0]
