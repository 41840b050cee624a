"""The page of results says what ran: kept runs are not run again, changed recipes are, and figures are the runs' own."""

from __future__ import annotations

from statistics import fmean

import pytest
import torch

from bench.results import __main__ as command
from bench.results import correlated, measure
from bench.results.measure import Bench
from bench.results.page import render, spread
from bench.results.rows import ROWS, Row, Store
from noiseproof.data import Dataset, Public
from noiseproof.data.splits import Split
from noiseproof.methods import recipes

ROW = Row("bits", 4.0, 0.5, "a rival")


def bits(seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(600) % 2
    features = (torch.rand(600, 130, generator=generator) < 0.2 + 0.2 * labels[:, None]).float()
    return Dataset("bits", features, labels, Public((130,), ("a", "b")))


@pytest.fixture
def bench(monkeypatch):
    """A bench for bits, and a list of the seeds that it was run with."""
    ran = []

    class Counted(Bench):
        def __init__(self, row):
            super().__init__(row, Split(bits(0), bits(1)))

        def run(self, seed):
            ran.append(seed)
            return super().run(seed)

    monkeypatch.setattr(command, "Bench", Counted)
    monkeypatch.setattr(measure, "TRIALS", 1000)
    return ran


def make(tmp_path, seeds=2):
    command.results([ROW], seeds=range(seeds), store=Store(tmp_path / "runs"), page=tmp_path / "page.md", every=[ROW])
    return (tmp_path / "page.md").read_text()


def test_a_row_is_proven_audited_below_its_proof_and_shown_as_it_ran(bench, tmp_path):
    page = make(tmp_path)
    found = Store(tmp_path / "runs").read(ROW.key)
    accuracies = [found["runs"][seed]["accuracy"] for seed in ("0", "1")]
    assert all(3.8 < run["epsilon"] <= 4 for run in found["runs"].values())
    assert min(accuracies) > 0.8
    assert 1 < found["audit"]["game"] <= 4  # over seeds 3.1 with a standard deviation of 0.3
    assert 0 <= found["audit"]["one_run"] <= 4
    assert f"**{fmean(accuracies):.2%}** ± {100 * spread(accuracies):.2f}" in page
    assert "| yes |" in page
    assert "| a rival |" in page


def test_finished_runs_are_kept_and_more_seeds_run_only_what_is_missing(bench, tmp_path):
    first = make(tmp_path)
    assert make(tmp_path) == first
    assert bench == [0, 1]
    make(tmp_path, seeds=3)
    assert bench == [0, 1, 2]


def test_a_changed_recipe_is_measured_anew(bench, tmp_path, monkeypatch):
    make(tmp_path, seeds=1)
    old = recipes.get("unit").settings
    monkeypatch.setitem(
        vars(recipes.get("unit")), "settings", lambda records, epsilon: {**old(records, epsilon), "epochs": 5}
    )
    make(tmp_path, seeds=1)
    assert bench == [0, 0]
    assert Store(tmp_path / "runs").read(ROW.key)["runs"]["0"]["steps"] == 5


def test_an_audit_above_the_proof_is_not_hidden(bench, tmp_path):
    make(tmp_path, seeds=1)
    found = Store(tmp_path / "runs").read(ROW.key)
    found["audit"]["one_run"] = 4.5
    assert "| **no** |" in render([(ROW, found)])


def test_a_row_that_is_not_audited_is_shown_and_named(bench, tmp_path):
    make(tmp_path, seeds=1)
    found = Store(tmp_path / "runs").read(ROW.key)
    page = render([(ROW, {**found, "audit": None})])
    assert "| a rival |" in page
    assert "Not audited since the recipe changed: bits at 4." in page


def test_correlated_noise_is_shown_beside_independent_noise_as_it_ran(tmp_path):
    store = Store(tmp_path)
    for seed, accuracy in enumerate((0.5, 0.7)):
        kept = store.row("correlated-adult-1-fixed-order", {})
        kept["runs"][str(seed)] = {"accuracy": accuracy}
        store.save("correlated-adult-1-fixed-order", kept)
    lines = list(correlated.table(store))
    assert lines[0] == correlated.HEADING
    assert "| adult | 1 |  |  | 60.00% ± 14.14 (2 seeds) |  |" in lines
    assert list(correlated.table(Store(tmp_path / "none"))) == []


def test_columns_are_compared_over_the_seeds_that_both_have(tmp_path):
    store = Store(tmp_path)
    for way, accuracies in (("Poisson-samples", (0.5, 0.7)), ("sampled-bands", (0.52, 0.71, 0.1))):
        runs = {str(seed): {"accuracy": accuracy} for seed, accuracy in enumerate(accuracies)}
        store.save(f"correlated-mnist-8-{way}", {"runs": runs})
    said = [line for line in correlated.table(store) if line.startswith("At epsilon 8")]
    assert said == [
        "At epsilon 8, sampled bands less Poisson samples, in points over the seeds that both have: mnist +1.50."
    ]


def test_rows_that_are_not_finished_are_named():
    assert "Not finished, so not shown: bits at 4." in render([], [ROW])
    assert "Not finished" not in render([])


def test_the_rows_are_those_that_must_be_shown():
    floors = {(row.data, row.epsilon): row.floor for row in ROWS}
    assert floors == {
        ("mnist", 0.25): 0.98,
        ("mnist", 0.5): 0.984,
        ("mnist", 1.0): 0.988,
        ("mnist", 3.0): 0.991,
        ("adult", 0.5): 0.849,
        ("location", 5.0): None,
        ("cifar10", 3.0): 0.64,
    }


def test_equal_scores_tell_nothing_of_the_canaries(monkeypatch):
    monkeypatch.setattr(measure, "logits", lambda module, features: torch.zeros(len(features), 2))
    assert Bench(ROW, Split(bits(0), bits(1)))._one_run() == 0
