"""The design has the paper's cells, each once and with a seed of its own."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from noiseproof.errors import SettingError
from papers.lin import Lin, design
from papers.lin.design import PLANS, Cell
from papers.lin.statistics import FACTORS


def test_the_factorial_experiment_has_96_cells_and_12_baselines():
    assert len(set(design.factorial())) == 96
    assert len(set(design.baselines())) == 12
    assert all(getattr(cell, name) in levels for cell in design.factorial() for name, levels in FACTORS.items())


def test_every_training_is_in_the_plan_once_and_its_reference_before_it():
    cells = design.every_cell()
    assert len(cells) == len(set(cells)) == len({cell.key for cell in cells})
    for index, cell in enumerate(cells):
        if cell.sequence != "none":
            assert cell.reference in cells[:index]
    for part in (design.factorial(), design.baselines(), design.sweep(), design.comparison()):
        assert set(part) <= set(cells)


def test_seeds_differ_by_cell_and_by_root_but_initial_weights_are_shared():
    cells = design.every_cell()
    assert len({cell.seed(0) for cell in cells}) == len(cells)
    assert cells[0].seed(0) != cells[0].seed(1)
    ac, sgd = Cell("mnist", "cnn", "adam", "AC", 0.5, 1.4), Cell("mnist", "cnn", "sgd", "none")
    assert ac.initial_seed(3) == sgd.initial_seed(3) == ac.reference.initial_seed(3)
    assert ac.initial_seed(3) != Cell("svhn", "cnn", "adam", "AC", 0.5, 1.4).initial_seed(3)


def test_a_seed_is_the_same_in_every_process():
    # Python's own hash changes from run to run; this number must not.
    assert Cell("mnist", "cnn", "adam", "AC", 0.5, 1.4).seed(0) == 18185306036607437


def test_every_scale_knows_every_model_and_every_lr_the_same_for_both_sequences():
    for plan in PLANS.values():
        assert set(plan.networks) == set(FACTORS["model"])
        for cell in Lin().cells(plan):
            assert plan.lr(cell.as_sequence("AC")) == plan.lr(cell.as_sequence("CA")) > 0


def test_starts_run_with_both_sequences_over_three_seeds_each_with_its_reference():
    cells = Lin().cells(PLANS["effect"])
    noised = [cell for cell in cells if cell.clip is not None]
    several = {
        (cell.model, cell.optimizer, cell.clip, cell.start)
        for cell in noised
        if cell.data == "mnist"
        and cell.test is None
        and {replace(cell, repeat=repeat) for repeat in range(3)} <= set(cells)
    }
    assert several == {
        *itertools.product(("cnn",), ("adam",), design.SWEEP, ("truncated-normal",)),
        *itertools.product(("cnn",), ("adam",), (1.4, 0.04), ("glorot",)),
        *itertools.product(("lstm",), ("adam",), design.SWEEP, ("normal",)),
        *itertools.product(("lstm",), ("adam",), (1.4,), ("truncated-normal", "glorot")),
        ("cnn", "sgd", 1.4, "truncated-normal"),
        ("lstm", "sgd", 1.4, "normal"),
    }
    assert all(cell.reference in cells for cell in noised)
    assert all(cell.as_sequence("CA") in cells for cell in noised if cell.data == "mnist" or cell.clip != 0.04)
    assert len({cell.key for cell in cells}) == len(cells)


def test_what_teaches_nothing_in_the_factorial_experiment_is_trained_longer_with_both_sequences_over_seeds():
    cells = set(Lin().cells(PLANS["effect"]))
    for (data, model), steps in design.LEARNING.items():
        cell = Cell(data, model, "adam", "AC", 0.5, 1.4, design.START[model], steps=steps)
        seeds = {replace(cell, repeat=repeat) for repeat in range(3)}
        seeds |= {replace(cell, clip=0.04)} if model == "cnn" else set()
        assert steps > design.SHORT
        assert seeds | {one.as_sequence("CA") for one in seeds} | {one.reference for one in seeds} <= cells
    assert set(design.LEARNING) == set(itertools.product(("cifar10", "svhn"), FACTORS["model"]))


def test_all_96_cells_are_trained_with_the_papers_networks_at_one_rate_for_both_sequences():
    own, cells = design.experiment(), set(Lin().cells(PLANS["effect"]))
    assert set(own) == {*design.factorial(), *design.baselines()}
    assert set(own.values()) <= cells
    for cell, training in own.items():
        assert all(getattr(cell, name) == getattr(training, name) for name in ("sequence", *FACTORS))
        assert training.start == ("truncated-normal" if cell.model == "cnn" else "normal")
        assert training.lr == own[cell.as_sequence("CA")].lr if cell.sequence == "AC" else True


def test_all_96_cells_are_trained_with_three_seeds_that_differ_in_nothing_else():
    cells = set(Lin().cells(PLANS["effect"]))
    first = design.experiment()
    for repeat in (1, 2):
        again = design.experiment(repeat)
        assert set(again.values()) <= cells
        assert {cell: replace(training, repeat=0) for cell, training in again.items()} == first


def test_a_cell_may_have_steps_and_a_rate_of_its_own_and_its_reference_keeps_the_steps():
    plan, cell = PLANS["effect"], Cell("mnist", "cnn", "sgd", "AC", 0.5, 1.4, steps=7, lr=3.0)
    assert (plan.steps_of(cell), plan.lr(cell)) == (7, 3.0)
    assert (plan.steps_of(cell.reference), plan.lr(cell.reference)) == (7, plan.lrs["cnn", "sgd", "none"])
    assert plan.steps_of(Cell("mnist", "cnn", "sgd", "none")) == plan.steps


def test_quantile_clipping_runs_in_every_reading_of_a_layers_part_over_seeds():
    found = [cell for cell in Lin().cells(PLANS["effect"]) if cell.sequence.startswith("quantile")]
    mnist = [cell for cell in found if cell.data == "mnist"]
    assert Counter(cell.share for cell in mnist) == dict.fromkeys((None, "printed", "root", "count", "own"), 3)
    assert Counter((cell.data, cell.share, cell.steps) for cell in found if cell not in mnist) == {
        **dict.fromkeys(itertools.product(("cifar10", "svhn"), (None, "printed"), (60,)), 3),
        **dict.fromkeys(itertools.product(("cifar10",), (None, "printed"), (240,)), 3),
    }
    assert all(cell.reference.share is None for cell in found)


def test_the_study_of_one_set_has_that_sets_cells_alone():
    assert {cell.data for cell in Lin().only(["CIFAR-10"]).cells(PLANS["small"])} == {"cifar10"}
    with pytest.raises(SettingError, match="has no data set"):
        Lin().only(["imagenet"])
