"""The design has the paper's cells, each once and with a seed of its own."""

from __future__ import annotations

from papers.lin import design
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


def test_both_scales_know_every_model_and_every_lr():
    for plan in PLANS.values():
        assert set(plan.networks) == set(FACTORS["model"])
        assert all(plan.lr(cell) > 0 for cell in design.every_cell())
