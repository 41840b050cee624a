"""The study of Lu et al.: every repeat once, resumable, ours beside theirs; on real Location near the paper's numbers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import papers
from noiseproof.data import load
from noiseproof.data.raw import ADULT_COLUMNS
from noiseproof.errors import DataError, NoiseproofError, SettingError
from papers import lu as study
from papers.lu import plans, published, run
from papers.lu.findings import findings_table, stated_table
from papers.lu.plans import PLANS, Plan
from papers.lu.run import BASELINE, SIBLINGS, Point, RunResult
from papers.lu.summary import interpolated, summaries
from papers.lu.tables import curve_table
from papers.study import Setup

TINY = Plan(
    "small", repeats=2, epochs=3, attack_epochs=2, most_records=150, shadows=2, epsilons=(0.5, 1.0, 10.0, 1000.0)
)
CURVES = (
    "neuron-laplace",
    "neuron-gaussian",
    *(f"dp-sgd-{n}" for n in ("naive", "advanced", "zcdp", "rdp")),
    *SIBLINGS,
)


def invented(row: str, data: str, repeat: int, plan: Plan, seed: int) -> RunResult:
    """A run whose numbers are made up: accuracy rises with epsilon, a little more for each repeat."""
    accounted = {"sigma": 1.0, "step_sigma": 2.0, "partition_epsilon": 3.0, "poisson_epsilon": 4.0}
    points = tuple(
        Point(curve, epsilon, 0.8 * epsilon / (1 + epsilon) + 0.01 * repeat, 0.1, accounted)
        for curve in CURVES
        for epsilon in plan.epsilons
    )
    return RunResult(
        row,
        data,
        repeat,
        100,
        20,
        5,
        1.0,
        dict.fromkeys(("original", "paper", "code"), (0.9, 0.8)),
        0.2,
        0.3,
        2,
        0.2,
        0.4,
        points,
        1.0,
    )


@pytest.fixture
def two_sets(monkeypatch):
    """Only Location and the stand-in for Purchase-10 are there."""
    there = {"Location": "location", "Purchase-10": "retail-10"}
    monkeypatch.setattr(study, "available", there.get)


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes longer than all else that is tested."""
    monkeypatch.setattr(study, "every_figure", lambda found, folder: ())


def run_invented(out, **options):
    return papers.get("lu").run("small", out, runner=options.pop("runner", invented), workers=1, plan=TINY, **options)


def test_every_table_and_figure_is_written_and_theirs_stand_beside_ours(two_sets, tmp_path):
    result = run_invented(tmp_path)
    names = [table.name for table in result.tables]
    assert names[:5] == ["table-1", "table-5", "table-6", "figure-2", "findings"]
    assert {"figure-3", "figure-8", "siblings", "accountings", "queries", "slips"} <= set(names)
    for table in result.tables:
        assert (tmp_path / f"{table.name}.csv").stat().st_size > 0
        assert table.render().row_count == len(table.rows)
    assert [path.name for path in result.figures] == ["fig-2.png", "fig-3.png", "fig-8.png"]
    assert all(path.stat().st_size > 1000 for path in result.figures)
    document = json.loads(json.dumps(result.to_json()))
    assert document["out"] == str(tmp_path)
    table5 = result.tables[1]
    assert [row[0] for row in table5.rows] == ["location", "retail-10, for Purchase-10"]
    assert any(column.theirs for column in table5.columns)
    assert "Texas Hospital" in " ".join(table5.notes)
    assert "stand-in" in " ".join(table5.notes)


def test_one_data_set_can_be_run_alone(two_sets, no_figures, tmp_path):
    found = papers.get("lu").only(["Location"]).run("small", tmp_path, runner=invented, workers=1, plan=TINY)
    assert [row[0] for row in found.tables[1].rows] == ["location"]


def test_a_study_is_taken_up_where_it_was_left(two_sets, no_figures, tmp_path):
    done = []

    def failing(row, data, repeat, plan, seed):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append((data, repeat))
        return invented(row, data, repeat, plan, seed)

    with pytest.raises(KeyboardInterrupt):
        run_invented(tmp_path, runner=failing)
    assert done == [("location", 0), ("location", 1), ("retail-10", 0)]
    again = []

    def counting(row, data, repeat, plan, seed):
        again.append((data, repeat))
        return invented(row, data, repeat, plan, seed)

    resumed = run_invented(tmp_path, runner=counting, resume=True)
    assert again == [("retail-10", 1)]
    whole = run_invented(tmp_path / "whole")
    assert [table.rows for table in resumed.tables] == [table.rows for table in whole.tables]
    again.clear()
    run_invented(tmp_path, runner=counting)
    assert len(again) == 4  # without resume everything is run again


def test_tables_are_made_of_what_is_finished_and_the_rest_is_named(two_sets, no_figures, tmp_path):
    run_invented(tmp_path)
    for path in (tmp_path / "runs").glob("retail-10-*"):
        path.unlink()

    def refuse(*_):
        raise AssertionError("run")

    found = {table.name: table for table in run_invented(tmp_path, runner=refuse, finished=True).tables}
    assert [row[0] for row in found["table-5"].rows] == ["location"]
    assert "Purchase-10" in " ".join(found["table-5"].notes)


def test_runs_of_another_seed_or_broken_ones_are_not_mixed_in(two_sets, no_figures, tmp_path):
    run_invented(tmp_path)
    with pytest.raises(SettingError, match="another scale or seed"):
        run_invented(tmp_path, seed=1, resume=True)
    (tmp_path / "runs" / "location-0.json").write_text("{")
    with pytest.raises(NoiseproofError, match="delete it"):
        run_invented(tmp_path, resume=True)


def test_rows_that_are_not_the_paper_s_and_data_that_is_not_there_are_refused(monkeypatch, tmp_path):
    with pytest.raises(SettingError, match="Location"):
        papers.get("lu").only(["Iris"])
    with pytest.raises(SettingError, match="mnist, cifar10"):
        papers.get("mao").only(["Iris"])
    monkeypatch.setattr(study, "available", lambda row: None)
    with pytest.raises(DataError, match="NOISEPROOF_DATA"):
        run_invented(tmp_path)


@pytest.fixture(scope="module")
def digits_run():
    """A real run, on digits in Location's place, of sizes that take seconds."""
    found = load("digits")
    features = torch.cat([found.train.features, found.test.features])
    whole = dataclasses.replace(
        found.train, features=features, labels=torch.cat([found.train.labels, found.test.labels])
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "everyone", lambda name: whole)
        plan = dataclasses.replace(TINY, epochs=15, attack_epochs=5, epsilons=(0.01, 1.0, 1e5))
        return run.run("Location", "digits", 0, plan, seed=3)


def test_a_run_measures_every_curve_at_every_epsilon(digits_run):
    assert {(p.curve, p.epsilon) for p in digits_run.points} == {(c, e) for c in CURVES for e in (0.01, 1.0, 1e5)}
    assert digits_run.records == 150
    for point in digits_run.points:
        assert 0 <= point.accuracy <= 1
        assert -1 <= point.leak <= 1
    for train, test in digits_run.accuracies.values():
        assert train > 0.5
        assert test > 0.5


def test_at_a_huge_epsilon_algorithm_1_is_the_baseline_and_at_a_tiny_one_near_its_limit(digits_run):
    (one,) = summaries([digits_run])
    for curve in ("neuron-laplace", "neuron-gaussian"):
        assert abs(one.losses(curve)[1e5]) < 0.03
        # Of some 100,000 answers: five standard errors of an accuracy, relative to the baseline's.
        chance = 5 * 0.5 / 99_900**0.5 / one.baseline
        assert abs(one.losses(curve)[0.01] - one.limit) < chance
        assert one.losses(curve)[0.01] + 2 * chance > one.losses(curve)[1.0] > one.losses(curve)[1e5]
    assert one.losses("dp-sgd-naive")[0.01] > 0.5
    for sibling in SIBLINGS:
        assert one.losses(sibling)[1e5] < 0.5
    assert one.theory(0.01) == pytest.approx(max(0.0, min(0.01005, one.leak)), abs=1e-4)


def test_the_same_seed_gives_the_same_run(digits_run):
    found = load("digits")
    features = torch.cat([found.train.features, found.test.features])
    whole = dataclasses.replace(
        found.train, features=features, labels=torch.cat([found.train.labels, found.test.labels])
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "everyone", lambda name: whole)
        plan = dataclasses.replace(TINY, epochs=15, attack_epochs=5, epsilons=(0.01, 1.0, 1e5))
        again = run.run("Location", "digits", 0, plan, seed=3)
    assert dataclasses.replace(again, seconds=0.0) == dataclasses.replace(digits_run, seconds=0.0)


def test_dp_sgd_may_be_run_at_some_epsilons_and_on_the_programs_loss_and_the_weak_attack_stands_beside():
    found = load("digits").train
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "everyone", lambda name: found)
        plan = dataclasses.replace(
            TINY,
            accountings=("rdp",),
            rival_epsilons=(1.0, 1000.0),
            program_epsilons=(1000.0,),
            more_shadows={"Location": 4},
            siblings=False,
        )
        result = run.run("Location", "digits", 0, plan, seed=3)
    rivals = [(point.curve, point.epsilon) for point in result.points if point.curve.startswith("dp-sgd")]
    assert rivals == [("dp-sgd-rdp", 1.0), ("dp-sgd-rdp", 1000.0), ("dp-sgd-rdp-program", 1000.0)]
    assert (result.shadows, plan.shadow_count("MNIST")) == (4, 2)
    (one,) = summaries([result])
    assert list(one.losses("dp-sgd-rdp")) == [1.0, 1000.0]
    table = curve_table(one, plan)
    names = [column.name for column in table.columns]
    by_epsilon = {row[0]: row[names.index("loss, dp-sgd-rdp")] for row in table.rows}
    assert [by_epsilon[epsilon] is None for epsilon in plan.epsilons] == [True, False, True, False]
    assert "of 2 epsilons" in str(findings_table([one]).rows[2][3])


def test_the_plans_are_the_paper_s():
    paper = PLANS["paper"]
    assert (paper.repeats, paper.epochs, paper.batch_size) == (10, 100, 100)
    assert [PLANS["effect"].repeats_of(row) for row in ("Location", "US Adult", "MNIST")] == [3, 3, 1]
    assert paper.records("Location", 5010) == 1200
    assert paper.shadow_count("Location") == 30
    assert paper.records("MNIST", 70_000) == 10_000
    assert paper.records("CIFAR-10", 30_000) == 7_500  # a quarter: shadow models need the rest
    assert paper.epsilons == (0.01, 0.05, 0.1, 0.5, 1, 5, 10, 50, 100, 500, 1000)
    assert set(plans.CANDIDATES) == set(published.rows().index)


def test_between_measured_epsilons_losses_are_read_on_a_logarithmic_scale():
    losses = {0.1: 0.5, 10.0: 0.1}
    assert interpolated(losses, 1.0) == pytest.approx(0.3)
    assert interpolated(losses, 0.001) == 0.5
    assert interpolated(losses, 0.001, limit=0.48) == 0.48
    assert interpolated(losses, 100.0) == 0.1


def test_adult_has_a_feature_a_column():
    from noiseproof.data import Dataset, Public
    from noiseproof.data.dataset import Column

    columns = (Column("age", 0, 100), Column("work", categories=("a", "b"), missing=True))
    public = Public((4,), ("0", "1"), "table", columns)
    features = torch.tensor([[0.5, 1.0, 0.0, 0.0], [0.2, 0.0, 0.0, 1.0]])
    coded = plans.ordinal(Dataset("t", features, torch.tensor([0, 1]), public))
    assert coded.features.tolist() == [[0.5, 0.0], pytest.approx([0.2, 1.0])]
    assert coded.public.shape == (2,)


def test_a_users_own_purchase_and_texas_files_are_taken_before_what_stands_in_for_them(tmp_path, monkeypatch):
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "retail.npz").touch()
    assert [plans.available(row) for row in ("Purchase-100", "Purchase-10", "Texas Hospital")] == [
        "retail-100",
        "retail-10",
        None,
    ]
    for file in ("dataset_purchase", "texas.npz"):
        (tmp_path / file).touch()
    assert [plans.available(row) for row in ("Purchase-100", "Purchase-10", "Texas Hospital")] == [
        "purchase",
        "purchase-10",
        "texas",
    ]


@pytest.mark.parametrize(
    ("row", "file", "shape", "classes"),
    [
        ("Purchase-100", "purchase", (600,), 100),
        ("Purchase-10", "purchase", (600,), 10),
        ("Texas Hospital", "texas", (6169,), 100),
        ("CIFAR-100", "cifar100", (32, 32, 3), 100),
    ],
)
def test_a_users_own_file_is_run_as_the_papers_row(tmp_path, monkeypatch, row, file, shape, classes):
    """What is not here to be run (docs/studies.md) needs the file alone."""
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rng, labels = np.random.default_rng(0), np.arange(200) % 100
    if len(shape) == 1:
        np.savez(tmp_path / f"{file}.npz", x=rng.integers(0, 2, (200, *shape)), y=labels)
    else:
        parts = {part: rng.integers(0, 256, (100, *shape)).astype(np.uint8) for part in ("x_train", "x_test")}
        np.savez(tmp_path / f"{file}.npz", y_train=labels[:100], y_test=labels[100:], **parts)
    plans.everyone.cache_clear()
    (repeat,) = papers.get("lu").only([row]).cells(dataclasses.replace(TINY, repeats=1))
    plan = dataclasses.replace(
        TINY, siblings=False, accountings=("rdp",), epsilons=(1.0,), batch_size=25, most_records=50
    )
    found = run.run(*repeat, plan, seed=0)
    plans.everyone.cache_clear()
    assert (found.records, found.features, found.classes) == (50, math.prod(shape), classes)
    assert {point.curve for point in found.points} == {"neuron-laplace", "neuron-gaussian", "dp-sgd-rdp"}


@pytest.mark.parametrize("layout", ["csv", "uci"])
def test_adult_has_the_papers_14_features_with_the_survey_weight_in_either_layout(tmp_path, monkeypatch, layout):
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path))
    row = (
        "39, State-gov, {}, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 0, 0, 40, Cuba, {}"
    )
    parts = [[(30_000, "<=50K"), (60_000, ">50K")] * 8, [(1_490_400, "<=50K"), (15_000, ">50K")]]
    files = ("adult-train.csv", "adult-test.csv") if layout == "csv" else ("adult.data", "adult.test")
    for number, (file, rows) in enumerate(zip(files, parts, strict=True)):
        lines = [row.format(*one) for one in rows]
        if layout == "csv":
            lines = [",".join(ADULT_COLUMNS), *(line.replace(", ", ",") for line in lines)]
        elif number:
            lines = ["|1x3 Cross validator", *(f"{line}." for line in lines), ""]
        (tmp_path / file).write_text("\n".join(lines) + "\n")
    plans.everyone.cache_clear()
    found = plans.everyone("adult")
    plans.everyone.cache_clear()
    assert found.public.shape == (14,) == (int(published.number("US Adult", "features")),)
    assert found.features[:, -1].tolist() == pytest.approx([0.02, 0.04] * 8 + [0.9936, 0.01])


@pytest.mark.slow
def test_on_location_the_baseline_is_the_paper_s_and_losses_fall_to_0(real_data):
    """One repeat at full size but for fewer shadow models: train .99, test .65, and finding 2's curve."""
    real_data("location30.npz")
    result = run.run("Location", "location", 0, dataclasses.replace(PLANS["paper"], shadows=5), seed=0)
    train, test = result.accuracies[BASELINE]
    assert train == pytest.approx(0.9916, abs=0.015)
    # Five standard errors of an accuracy on 1,200 records.
    assert test == pytest.approx(0.6484, abs=5 * (0.23 / 1200) ** 0.5)
    assert result.accuracies["original"][1] == pytest.approx(0.6068, abs=5 * (0.24 / 1200) ** 0.5)
    assert result.leak_by_class > 0.3
    (one,) = summaries([result])
    noise = 5 * 0.5 / 1200**0.5 / one.baseline
    for curve in ("neuron-laplace", "neuron-gaussian"):
        losses = list(one.losses(curve).values())
        assert losses[0] == pytest.approx(one.limit, abs=noise)
        assert all(after <= before + noise for before, after in itertools.pairwise(losses))
        assert abs(losses[-1]) < 0.05
    # Each proven sibling answers at its epsilon; the best of them beats what the published methods claim.
    for epsilon in (1.0, 5.0, 10.0):
        best = min(one.losses(sibling)[epsilon] for sibling in SIBLINGS)
        assert best < min(one.losses(curve)[epsilon] for curve in ("neuron-laplace", "neuron-gaussian"))


def test_table_1_s_bounds_are_the_papers_own_where_conditions_meet_and_looser_elsewhere(two_sets, no_figures, tmp_path):
    table = run_invented(tmp_path).tables[0]
    for row, this_work, two_classes, any_classes, constant in table.rows:
        assert two_classes is None or two_classes == this_work
        assert (two_classes is None) == (row not in ("Purchase-2", "US Adult"))
        assert any_classes > this_work
        assert constant > this_work  # 1 - (1 - x)^n is below n x


def test_every_finding_is_checked_by_a_number_for_every_set(two_sets, no_figures, tmp_path):
    table = next(table for table in run_invented(tmp_path).tables if table.name == "findings")
    assert [row[0] for row in table.rows] == ["1", *("2", "3", "3", "3", "4") * 2, "5"]
    assert "too few" in table.rows[0][3]
    by_rho, by_size = (float(part.split()[-1]) for part in table.rows[-1][3].split(","))
    assert table.rows[-1][4] is (abs(by_size) > abs(by_rho))


def test_the_range_over_which_a_loss_falls_is_the_paper_s_for_each_set():
    plan = dataclasses.replace(TINY, epsilons=(0.01, 0.1, 1.0, 10.0, 100.0))
    for row, said in (("Location", "between epsilon 1 and 100"), ("Purchase-10", "between epsilon 0.1 and 10")):
        rows = findings_table(summaries([invented(row, "x", 0, plan, 0)])).rows
        gaussian, laplace = (row for row in rows if "from its maximum to 0" in str(row[1]))
        assert said in gaussian[1]
        assert "between epsilon 1 and 100" in laplace[1]
        # 1 - loss is epsilon / (1 + epsilon): at 1 it has fallen to half, so that only the range from .1 holds.
        assert gaussian[4] is (row == "Purchase-10")


@pytest.mark.parametrize(
    ("data", "classes", "apart"), [("Purchase-2", 2, 1.2), ("Purchase-2", 2, 8.0), ("Purchase-10", 10, 8.0)]
)
def test_finding_4_tells_how_far_the_curves_lie_apart_in_epsilon(data, classes, apart):
    """Losses of 1 / (2 (1 + epsilon)) and the same at a multiple of epsilon; the noises' ratio is the paper's own."""
    epsilons = tuple(10 ** (step / 4) for step in range(-8, 13))
    points = tuple(
        Point(curve, epsilon, 0.8 * (1 - 0.5 / (1 + epsilon / late)), 0.1)
        for curve, late in (("neuron-gaussian", 1.0), ("neuron-laplace", apart))
        for epsilon in epsilons
    )
    one = dataclasses.replace(invented(data, "x", 0, TINY, 0), points=points, classes=classes)
    (fourth,) = (row for row in findings_table(summaries([one])).rows if row[0] == "4")
    found, noise = (float(str(fourth[3]).split(word)[0].split()[-1]) for word in (" times the", " times as"))
    assert found == pytest.approx(apart, rel=0.05)
    assert noise == pytest.approx(math.sqrt(2) * (2 * classes + 1) / math.sqrt(4 * classes + 1), abs=0.05)
    assert fourth[4] is (classes > 2 or apart < 2)


def test_finding_3_has_an_answer_for_each_form_of_the_loss():
    found = invented("Purchase-10", "x", 0, TINY, 0)
    more = tuple(dataclasses.replace(p, curve="dp-sgd-rdp-program") for p in found.points if p.curve == "dp-sgd-rdp")
    rows = findings_table(summaries([dataclasses.replace(found, points=(*found.points, *more))])).rows
    third = [str(row[3]) for row in rows if "loses less" in str(row[1])]
    assert [text.split(":")[0] for text in third] == ["DP-SGD on eq. 22", "DP-SGD on the program's form"]


def test_what_algorithm_1_leaks_is_held_against_the_baseline_the_bound_and_what_the_text_states():
    leaks = {"neuron-gaussian": 0.18, "neuron-laplace": 0.15, "dp-sgd-rdp": 0.0}
    found = invented("Location", "location", 0, TINY, 0)
    points = [
        Point(curve, epsilon, 0.4, leak if epsilon < 1000 else 0.2)
        for curve, leak in leaks.items()
        for epsilon in (0.01, 1.0, 1000.0)
    ]
    summary = summaries([dataclasses.replace(found, points=tuple(points))])
    rows = [row for row in findings_table(summary).rows if row[0] == "3"]
    # exp(.01) - 1 = .010 is nearer to 0 than to .15; at 1 and 1000 the bound is the baseline's .2.
    assert [(row[3], row[4]) for row in rows[1:]] == [
        ("neuron-gaussian 0.200 at 1000, neuron-laplace 0.200 at 1000; the baseline 0.200", True),
        ("closer than DP-SGD at 1, 1000 of 0.01, 1, 1000; above exp(epsilon) - 1 at 0.01", False),
    ]
    (gaussian, laplace, rival) = stated_table(summary).rows
    assert gaussian[3:] == (pytest.approx(0.5), 0.5, 0.18, 0.2, pytest.approx(0.01005, abs=1e-5))
    assert (laplace[1], rival[1:3]) == ("neuron-laplace", ("dp-sgd-rdp", 1.0))


def test_the_kept_location_leaks_far_more_at_01_than_the_bound_that_the_paper_draws_beside_it():
    kept = Path(__file__).parents[2] / "papers" / "results" / "lu-effect" / "runs" / "location-0.json"
    points = json.loads(kept.read_bytes())["result"]["points"]
    (leak,) = [p["leak"] for p in points if (p["curve"], p["epsilon"]) == ("neuron-gaussian", 0.01)]
    # Five standard errors of a difference of two shares of 1,200 records each.
    assert leak - 5 * (2 * 0.25 / 1200) ** 0.5 > math.expm1(0.01)


def test_a_finished_repeat_serves_a_plan_with_other_rows_repeats_and_shadow_models_elsewhere(tmp_path):
    lu, cell = papers.get("lu"), run.Repeat("Location", "location", 0)
    lu.store(Setup(TINY, tmp_path)).save(cell, invented(*cell, TINY, 0))
    grown = dataclasses.replace(TINY, repeats=1, more_shadows={"MNIST": 10})
    assert lu.store(Setup(grown, tmp_path)).load(cell) is not None
    with pytest.raises(SettingError, match="another scale or seed"):
        lu.store(Setup(dataclasses.replace(TINY, more_shadows={"Location": 3}), tmp_path)).load(cell)
