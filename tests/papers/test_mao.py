"""The study of Mao et al.: every part once, resumable, ours beside theirs; its numbers follow from what it measured."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import papers
from noiseproof.data import load
from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.methods.parameters import train_collection
from noiseproof.networks import Network, Training
from noiseproof.privacy import accountants
from noiseproof.privacy.events import sampled_gaussian
from papers import mao as study
from papers.mao import averaging, leakage, plans, quality, tables
from papers.mao.leakage import METHODS, Leak
from papers.mao.plans import PLANS, AttackPlan, AveragingPlan, Plan, QualityPlan
from papers.mao.quality import Point, Quality
from papers.mao.training import train_stages

LINEAR = QualityPlan(
    "digits", "linear", models=4, records=200, tested=100, stages=(1, 3), batch_size=32, lr=0.5,
    epsilons=(0.01, 1.0, 5.0), by_epoch=(1.0, 5.0), sweep=(0.5, 5.0), repeats=2,
)  # fmt: skip
TINY = Plan("small", (LINEAR,), AttackPlan("digits", "mlp", {"hidden": 8}, 4, 100, 20, 32, 0.5, 0.9, "loss"))


def invented(plan, whole, folder, **_) -> Quality:
    """Accuracies that are made up: they rise with epochs and epsilon."""
    points = [Point("none", epoch, None, 0.9, 0.8) for epoch in plan.stages]
    points += [Point("mean", epoch, None, 0.91, 0.81) for epoch in plan.stages]
    points += [Point("dp-sgd", epoch, 0.5 * epoch, 0.6, 0.5) for epoch in plan.stages]
    points += [
        Point("dp-pg", epoch, epsilon, 0.8, 0.7 + epsilon / 100)
        for epoch in plan.stages
        for epsilon in (plan.epsilons if epoch == plan.stages[-1] else plan.by_epoch)
    ]
    curves = ("draw", "cluster", "shift", "shift, as printed")
    points += [Point(curve, plan.stages[-1], epsilon, 0.8, 0.7) for curve in curves for epsilon in plan.sweep]
    return Quality(plan.data, plan.network, 650, plan.models, 200, tuple(points))


def attacked(plan, whole, folder, **_) -> tuple[Leak, ...]:
    return tuple(Leak(name, None if name == "none" else 1.0, 1.0, 0.5, 0.6, (0.6,) * 9 + (None,)) for name in METHODS)


@pytest.fixture
def made_up(monkeypatch):
    """Nothing is trained; what was asked for is counted."""
    calls = []

    def counted(function):
        def call(*arguments, **options):
            calls.append(arguments[0])
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(study.quality, "measure", counted(invented))
    monkeypatch.setattr(study.leakage, "measure", counted(attacked))
    return calls


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes longer than all else that is tested."""
    monkeypatch.setattr(study, "every_figure", lambda found, leaks, folder: ())


def run(out, **options):
    return papers.get("mao").run("small", out, plan=options.pop("plan", TINY), workers=1, **options)


def test_every_table_and_figure_is_written_and_theirs_stand_beside_ours(made_up, tmp_path):
    result = run(tmp_path)
    names = [table.name for table in result.tables]
    assert names == ["claims", "figure-5", "figure-7", "figure-11", "figure-12"]
    for table in result.tables:
        assert (tmp_path / f"{table.name}.csv").stat().st_size > 0
        assert table.render().row_count == len(table.rows)
    assert [path.name for path in result.figures] == ["fig-5.png", "fig-7.png", "fig-12.png"]
    assert all(path.stat().st_size > 0 for path in result.figures)
    attack = result.tables[-1]
    assert [row[0] for row in attack.rows] == list(METHODS)
    assert any("90%" in str(value) for value in attack.rows[0])
    json.dumps(result.to_json(), allow_nan=False)


def test_the_claims_table_has_the_papers_sizes_and_the_true_epsilons(made_up, no_figures, tmp_path):
    table = run(tmp_path).tables[0]
    rows = {row[0]: row for row in table.rows}
    assert rows["mnist-net"][1] == rows["mnist-net"][2] == 1_199_882
    assert rows["cifar-net"][1] == rows["cifar-net"][2] == 1_250_858
    du, true, claimed, one, all_ = rows["mnist-net"][4:]
    assert (round(du, 6), round(true, 5), claimed) == (0.000408, 0.00766, 1.0)
    assert one == pytest.approx(18.8, abs=0.05)
    # So many draws of so large an epsilon cost their sum, to a few percent.
    assert all_ == pytest.approx(1_199_882 * one, rel=0.05)


def test_finished_parts_are_not_run_again_and_others_of_a_seed_are_refused(made_up, no_figures, tmp_path):
    first = run(tmp_path)
    assert len(made_up) == 2
    again = run(tmp_path, resume=True)
    assert len(made_up) == 2
    assert [table.rows for table in again.tables] == [table.rows for table in first.tables]
    with pytest.raises(SettingError, match="another scale or seed"):
        run(tmp_path, resume=True, seed=1)
    run(tmp_path)
    assert len(made_up) == 4
    (tmp_path / "runs" / "attack-digits.json").write_text("{")
    with pytest.raises(NoiseproofError, match="delete it and resume"):
        run(tmp_path, resume=True)


def test_without_any_of_the_data_it_says_where_to_look(monkeypatch, tmp_path):
    monkeypatch.setattr(study, "find", lambda known: None)
    with pytest.raises(DataError, match="NOISEPROOF_DATA"):
        run(tmp_path)


def test_missing_data_is_told_and_the_rest_runs(made_up, no_figures, monkeypatch, tmp_path):
    monkeypatch.setattr(study, "find", lambda known: None if known.name == "mnist" else known)
    plan = dataclasses.replace(TINY, quality=(LINEAR, dataclasses.replace(LINEAR, data="mnist")))
    result = run(tmp_path, plan=plan)
    assert [part.data for part in made_up] == ["digits", "digits"]
    assert any("mnist was not found" in note for note in result.tables[0].notes)


def test_points_are_what_was_measured_on_real_digits(tmp_path):
    found = quality.measure(LINEAR, TINY, tmp_path, seed=0)
    assert (found.parameters, found.models, found.records, found.last) == (650, 4, 200, 3)
    (none,), (mean,) = found.of("none", 3), found.of("mean", 3)
    assert none.test > 0.7
    assert abs(mean.test - none.test) < 0.1
    assert found.epsilons("dp-pg", 1) == [1.0, 5.0]
    assert found.epsilons("dp-pg", 3) == [0.01, 1.0, 5.0]
    (high,) = found.of("dp-pg", 3, 5.0)
    assert abs(high.test - none.test) < 0.15
    spent = [point.epsilon for point in found.of("dp-sgd")]
    assert 0 < spent[0] < spent[1]
    for curve in ("draw", "cluster", "shift", "shift, as printed"):
        assert len(found.of(curve)) == 2
    # Trained stages are kept, and the same is measured from them again.
    (tmp_path / "quality-digits.json").unlink()
    assert len(list(tmp_path.iterdir())) == 2
    assert quality.measure(LINEAR, TINY, tmp_path, seed=0) == found


def test_a_measurement_that_was_stopped_goes_on_after_its_last_point(monkeypatch, tmp_path):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    found = quality.measure(LINEAR, TINY, tmp_path / "whole", seed=0)
    drawn, left = quality._drawn, [4]

    def stops(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return drawn(*arguments)

    monkeypatch.setattr(quality, "_drawn", stops)
    with pytest.raises(KeyboardInterrupt):
        quality.measure(LINEAR, TINY, tmp_path / "stopped", seed=0)
    undrawn = ("none", "mean", "dp-sgd", "network")
    left[0] = sum(point.curve.split(" ")[0] not in undrawn for point in found.points) - 4
    assert quality.measure(LINEAR, TINY, tmp_path / "stopped", seed=0) == found
    assert left == [0]


def test_networks_trained_in_bfloat16_are_near_those_of_float32_and_are_kept(tmp_path):
    digits = load("digits").train
    network, training = Network("mlp", (1, 8, 8), 10), Training(epochs=3, batch_size=32, lr=0.1, optimizer="sgd")
    options = {"seed": 0, "path": tmp_path / "net", "precision": "bfloat16", "stages": (1, 3)}
    stages = train_stages(network, digits, 3, training, **options)
    assert list(stages) == [1, 3]
    module = network.build()
    # As good as networks in float32.
    plain = train_collection(network, digits, 3, training, seed=0)
    rounded, exact = (
        [quality.accuracy(each.layout.load(module, row), digits) for row in each.rows] for each in (stages[3], plain)
    )
    assert min(rounded) > 0.85
    assert abs(sum(rounded) - sum(exact)) / 3 < 0.03
    assert not torch.equal(stages[3].rows[0], stages[3].rows[1])
    again = train_stages(network, digits, 2, training, **options)
    assert torch.equal(again[3].rows, stages[3].rows[:2])
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"net-{row}.safetensors" for row in range(3)]
    (tmp_path / "net-0.safetensors").unlink()
    assert torch.equal(train_stages(network, digits, 2, training, **options)[1].rows, stages[1].rows[:2])
    more = train_stages(network, digits, 2, training, **{**options, "stages": (1, 2)})
    assert torch.equal(more[1].rows, stages[1].rows[:2])
    with pytest.raises(SettingError, match="other records or settings"):
        train_stages(network, digits, 2, training, **{**options, "seed": 1})


def test_a_collection_of_networks_that_are_kept_apart_grows_by_those_that_are_missing(tmp_path):
    whole, options = dataclasses.replace(TINY, apart=True), {"seed": 0, "path": tmp_path / "digits-linear-0.5"}
    found = quality.measure(LINEAR, whole, tmp_path, seed=0)
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert kept == [f"digits-linear-0.5-{row}.safetensors" for row in range(LINEAR.models)]
    more = quality.measure(dataclasses.replace(LINEAR, models=6), whole, tmp_path, seed=0)
    for index in range(LINEAR.models):
        assert more.of(f"network {index}", 3) == found.of(f"network {index}", 3)
    digits = quality.some(load("digits").train, LINEAR.records, 0)
    network = Network("linear", digits.public.shape, digits.classes)
    stages = {"precision": "float32", "stages": LINEAR.stages, "workers": 2}
    collection = train_stages(network, digits, 6, LINEAR.training(3), **options, **stages)[3]
    (published,) = more.of("mean", 3)
    module = collection.layout.load(network.build(), collection.mean())
    assert quality.accuracy(module, digits) == published.train


def test_networks_trained_at_a_large_rate_lie_further_apart(tmp_path):
    plan = AveragingPlan("digits", "mlp", ((1.0, 2), (0.02, 2)), models=3)
    found = averaging.measure(plan, tmp_path, seed=0)
    fast, slow = found.rows
    assert fast.spread > 1.5 * slow.spread
    for row in found.rows:
        assert min(row.none, row.mean, row.drawn) > 0.2
    (table,) = tables.every_table((), (), (found,), TINY, ())[1:]
    assert [line[:2] for line in table.rows] == list(plan.runs)


def test_the_data_sets_to_run_can_be_chosen():
    plan = PLANS["effect"]
    chosen = papers.get("mao").only(["CIFAR-10"])
    assert {part.data for part in chosen.cells(plan)} <= {"cifar10"}
    with pytest.raises(SettingError, match="no data set 'svhn'; it has mnist, cifar10"):
        papers.get("mao").only(["svhn"])


@pytest.mark.parametrize("attack", [{"attack": "loss"}, {"attack": "shadow", "shadows": 2, "records": 400}])
def test_every_way_of_publishing_is_attacked_by_class(attack, tmp_path):
    """How far the attack falls depends on sizes that a test cannot afford; the study shows it."""
    plan = dataclasses.replace(TINY.attack, **attack)
    whole = dataclasses.replace(TINY, apart="records" in attack)
    leaks = {leak.method: leak for leak in leakage.measure(plan, whole, tmp_path, seed=0)}
    if whole.apart:
        assert len(list(tmp_path.glob("overfitted-*.safetensors"))) == plan.models
        assert len(list(tmp_path.glob("shadow-*.safetensors"))) == plan.shadows
    assert list(leaks) == list(METHODS)
    for leak in leaks.values():
        assert 0 <= leak.attack <= 1
        assert len(leak.per_class) == 10
    assert leaks["none"].train > 0.5
    assert leaks["dp-sgd"].epsilon > 0
    assert (leaks["dp-pg"].epsilon, leaks["dp-pgp"].epsilon) == (1.0, 5.0)


def test_the_paper_scale_is_the_papers():
    plan = PLANS["paper"]
    assert [part.models for part in plan.quality] == [50, 50]
    assert [part.network for part in plan.quality] == ["mnist-net", "cifar-net"]
    assert all(part.stages[-1] == 60 and part.batch_size == 128 and part.records is None for part in plan.quality)
    assert plan.quality[0].by_epoch == (0.1, 1.0, 5.0)
    assert plan.attack.attack == "shadow"
    assert plans.MODELS == 50


@pytest.mark.parametrize(
    ("records", "epochs", "epsilon", "sigma"), [(60_000, 60, 8.0, 0.605), (50_000, 50, 3.0, 0.841)]
)
def test_the_texts_epsilons_of_dp_sgd_ask_for_less_noise_than_the_plans(records, epochs, epsilon, sigma):
    """Batches of 128 at delta 1e-5: "may exceed 8" on MNIST, "may exceed 3 after 50 epochs" on CIFAR-10."""
    steps, plan = round(epochs * records / 128), PLANS["paper"]
    found = [sampled_gaussian(128 / records, noise, steps) for noise in (sigma, plan.sigma)]
    theirs, ours = (accountants.epsilon(event, plan.delta, accountant="rdp").epsilon for event in found)
    assert theirs == pytest.approx(epsilon, rel=5e-3)
    assert ours == pytest.approx(1.76, abs=0.01)


def test_the_same_seed_draws_the_same_records():
    digits = load("digits").train
    assert torch.equal(quality.some(digits, 50, 3).labels, quality.some(digits, 50, 3).labels)
    assert len(quality.some(digits, None, 3)) == len(digits)
