"""What the paper printed is shipped whole, and its averages follow from it."""

from __future__ import annotations

import itertools

import pytest

from papers.lin import published
from papers.lin.statistics import FACTORS


def test_every_setting_of_the_six_factors_has_exactly_one_cell():
    cells = published.cells()
    found = list(cells[list(FACTORS)].itertuples(index=False, name=None))
    assert sorted(found) == sorted(itertools.product(*FACTORS.values()))
    assert cells["accuracy"].between(0, 1).all()
    assert (cells["convergence"] > 0).all()


def test_every_data_set_model_and_optimizer_has_a_baseline():
    found = published.baselines()[["data", "model", "optimizer"]].itertuples(index=False, name=None)
    assert sorted(found) == sorted(itertools.product(*(FACTORS[name] for name in ("data", "model", "optimizer"))))


@pytest.mark.parametrize(
    ("data", "model", "points"),
    [
        ("mnist", "cnn", 2.92),
        ("cifar10", "cnn", 7.86),
        ("svhn", "cnn", 9.69),
        ("cifar10", "lstm", 12.88),
        ("svhn", "lstm", 11.52),
    ],
)
def test_the_abstracts_gains_are_absolute_points_of_the_cells(data, model, points):
    cells = published.cells().set_index(["data", "model"]).loc[(data, model)]
    means = cells.groupby("sequence")["accuracy"].mean()
    averages = published.averages().set_index(["data", "model"])["accuracy"]
    assert 100 * (means["AC"] - means["CA"]) == pytest.approx(points, abs=0.006)
    assert round(100 * (means["AC"] - means["CA"])) == averages[data, model]


def test_tables_6_and_12_hold_the_accuracies_of_table_3():
    cells = published.cells()
    cells = cells[(cells["data"] == "mnist") & (cells["optimizer"] == "adam")]
    keys = ["model", "sequence", "clip"]
    six = published.table6().merge(cells, on=[*keys, "sigma"], suffixes=("", " cell"))
    assert len(six) == 8
    assert (six["accuracy"] == six["accuracy cell"]).all()
    twelve = published.table12().merge(cells[cells["sigma"] == 0.5], on=keys, suffixes=("", " cell"))
    assert len(twelve) == 4
    assert (twelve["accuracy"] == twelve["accuracy cell"]).all()


def test_a_reader_cannot_change_what_the_next_one_reads():
    cells = published.cells()
    cells["accuracy"] = 0.0
    assert published.cells()["accuracy"].max() == 0.9714


@pytest.mark.parametrize(
    ("value", "printed", "same"),
    [
        (0.83447, ".834", True),
        (0.82896, ".834", False),
        (915.5, "915.50", True),
        (0.0004659, ".000", True),
        (678.0, "678", True),
    ],
)
def test_a_number_agrees_with_print_if_it_rounds_to_the_printed_digits(value, printed, same):
    assert published.agrees(value, printed) is same
