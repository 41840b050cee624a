"""Every table has ours beside theirs, and says what is proven of each row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from papers.lin import Lin, design, tables
from papers.lin.design import SGD_RATE, SWEEP
from papers.study import Setup


@pytest.fixture(scope="module")
def results(tmp_path_factory, plan, pretend):
    setup = Setup(plan, tmp_path_factory.mktemp("store"), runner=pretend, workers=1)
    return Lin().results(design.every_cell(), setup)


@pytest.fixture(scope="module")
def found(results, plan):
    return {table.name: table for table in tables.every_table(results, plan)}


def columns(table, *names):
    """The table's rows with these columns only."""
    indices = [[column.name for column in table.columns].index(name) for name in names]
    return [tuple(row[index] for index in indices) for row in table.rows]


def test_every_table_of_the_paper_is_there(found):
    numbered = {f"table-{number}" for number in range(3, 13)}
    assert set(found) == numbered | {"gains", "slips"}
    for name in numbered - {"table-10", "table-11"}:
        assert any(column.theirs for column in found[name].columns)


def test_tables_3_to_5_have_the_96_cells_and_the_12_baselines(found, results):
    rows = [row for number in (3, 4, 5) for row in columns(found[f"table-{number}"], "sequence", "accuracy")]
    assert len(rows) == 96 + 12
    assert sorted(accuracy for _, accuracy in rows) == sorted(
        results[cell].accuracy for cell in (*design.factorial(), *design.baselines())
    )


@pytest.mark.parametrize(
    ("table", "row"),
    [
        ("table-3", ("cnn", "adam", 0.5, 1.4, "AC", 0.9432, 0.1881)),
        ("table-4", ("lstm", "sgd", 0.1, 0.8, "CA", 0.2, 2.198)),
        ("table-5", ("cnn", "sgd", None, None, "none", 0.3213, 2.1124)),
    ],
)
def test_theirs_stands_in_the_row_of_its_setting(found, table, row):
    names = ("model", "optimizer", "sigma", "C", "sequence", "accuracy, theirs", "loss, theirs")
    assert row in columns(found[table], *names)


@pytest.mark.parametrize("name", ["table-3", "table-4", "table-5", "table-6", "table-7", "table-12"])
def test_every_row_says_what_is_proven(found, name):
    method = "method" if name == "table-7" else "sequence"
    expected = {"CA": 4.5, "none": "no privacy"}
    for sequence, proven in columns(found[name], method, "proven epsilon"):
        assert proven == expected.get(sequence, "nothing proven")


def test_tables_6_7_and_12_have_both_tpvds(found):
    for name, rows in (("table-6", 8), ("table-7", 15), ("table-12", 22)):
        values = columns(found[name], "TPVD", "TPVD, theirs")
        assert len(values) == rows
        # Only the training without noise has none, in ours and in theirs alike.
        assert all((ours is None) == (theirs is None) for ours, theirs in values)
    assert ("mnist", "AC", 0.04, 0.971, 1.7926) in columns(
        found["table-7"], "data", "method", "C", "accuracy, theirs", "TPVD, theirs"
    )


def test_tables_8_to_11_say_which_printed_numbers_follow(found):
    wrong = {
        name: [row[:2] for row in found[name].rows if str(row[-1]).startswith("no")]
        for name in ("table-8", "table-9", "table-10", "table-11")
    }
    assert wrong == {
        "table-8": [],
        "table-9": [("model", "lstm")],
        "table-10": [],
        "table-11": [("clip", "printed"), ("sequence", "printed")],
    }


def test_the_statistics_of_our_own_cells_find_the_effect_that_was_put_in(found):
    ours = {factor: p for factor, source, p in columns(found["table-10"], "factor", "from", "p") if source == "ours"}
    assert ours["sequence"] < 1e-10
    assert ours["clip"] > 1e-3


def test_gains_are_of_ac_over_ca(found):
    for points, wins in columns(found["gains"], "points", "AC wins"):
        assert 10 < points < 30
        assert wins == "8 of 8"
    assert [theirs for (theirs,) in columns(found["gains"], "AC wins, their cells")].count("8 of 8") == 4


@pytest.fixture(scope="module")
def effect(tmp_path_factory, plan, pretend):
    several = replace(plan, repeats=3)
    setup = Setup(several, tmp_path_factory.mktemp("effect"), runner=pretend, workers=1)
    return {table.name: table for table in tables.every_table(Lin().results(Lin().cells(several), setup), several)}


def test_the_tables_of_scale_effect_have_what_was_printed_beside_each_setting(effect):
    numbered = {f"table-{number}" for number in (3, 4, 5, 7, 8, 9, 10, 11, 12)}
    assert set(effect) == {"sequences", "distances", "curves", "steps", "rates", "signs", "gains", "slips"} | numbered
    names = ("data", "model", "optimizer", "C", "AC, theirs", "CA, theirs", "no noise, theirs")
    found = columns(effect["sequences"], *names)
    for row in (
        ("mnist", "cnn", "adam", 1.4, 0.9432, 0.8595, 0.9794),
        ("mnist", "lstm", "adam", 0.04, 0.8906, 0.5781, 0.9843),
        ("mnist", "cnn", "sgd", 1.4, 0.9119, 0.9049, 0.9839),
    ):
        assert row in found
    assert ("mnist", "cnn", 1.4, 2.2032, 2.3716, 0.1881, 0.2149) in columns(
        effect["distances"],
        "data",
        "model",
        "C",
        *(f"{kind}, theirs" for kind in ("TPVD, AC", "TPVD, CA", "loss, AC", "loss, CA")),
    )


def test_gains_are_by_seed_with_as_many_as_were_run(effect):
    gains = columns(effect["sequences"], "data", "C", "AC over CA, points of each seed")
    assert {data for data, *_ in gains} == {"mnist", "cifar10", "svhn"}
    for data, clip, text in gains:
        each = [float(gain) for gain in text.split(", ")]
        assert len(each) == (3 if data == "mnist" or clip == 1.4 else 1)
        assert all(10 <= gain <= 30 for gain in each)


def test_more_steps_stand_beside_fewer_with_what_the_root_of_their_ratio_makes_of_the_distance(effect):
    names = ("data", "model", "C", "sequence", "more steps", "TPVD", "TPVD, by the root of the steps", "TPVD later")
    found = {row[:4]: row[4:] for row in columns(effect["steps"], *names)}
    assert ("mnist", "lstm", 1.4, "CA") in found
    assert found["cifar10", "cnn", 1.4, "AC"][0] == 240
    assert ("svhn", "cnn", 0.04, "CA") not in found  # which the factorial experiment has not
    for steps, before, by_the_root, _ in found.values():
        assert by_the_root == pytest.approx(before * (steps / design.SHORT) ** 0.5)
    for theirs, later, steps, needed in columns(
        effect["steps"], "TPVD, theirs", "TPVD later", "more steps", "steps to theirs"
    ):
        assert (
            needed is None
            if theirs is None
            else needed == pytest.approx(steps * (theirs / later) ** 2, rel=0.05, abs=1)
        )


def test_curves_are_counted_over_every_look_of_every_seed_at_the_figures_own_settings_first(effect):
    found = columns(effect["curves"], "figure", "data", "sigma", "C", "seeds", "accuracy: AC above CA")
    assert [row[:5] for row in found[:3]] == [
        ("1", "mnist", 0.5, 1.4, 1),
        ("2", "cifar10", 0.1, 0.8, 1),
        ("3", "svhn", 0.1, 1.4, 1),
    ]
    assert {seeds for *_, seeds, _ in found[3:]} == {1, 3}
    for *_, seeds, counted in found:
        ahead, looks = map(int, counted.split(" of "))
        assert 0 < ahead <= looks
        assert looks % seeds == 0


def test_tables_7_and_12_have_the_papers_networks_in_every_row_of_theirs(effect):
    assert len(effect["table-12"].rows) == 2 * 2 * 5
    assert ("lstm", "CA", 10.0, 0.414, 1.0972) in columns(
        effect["table-12"], "model", "sequence", "C", "accuracy, theirs", "TPVD, theirs"
    )
    seeds = {(model, clip): count for model, clip, count in columns(effect["table-12"], "model", "C", "seeds")}
    assert seeds == {(model, clip): 3 for model in ("cnn", "lstm") for clip in SWEEP}
    found = columns(effect["table-7"], "data", "method", "share", "C", "accuracy, theirs")
    # After 60 steps on both other sets, and after 240 what is there: no quantile clipping on SVHN.
    assert len(found) == 5 + 3 + 2 * (2 + 3) + (2 + 3) + 3
    assert ("svhn", "AC", None, 0.04, 0.8443) in found
    assert ("cifar10", "quantile-layer", "printed", None, 0.1795) in found


def test_table_7_has_every_seed_of_every_reading(effect):
    names = ("data", "method", "share", "steps", "of each seed")
    found = {
        (data, share, steps): len(text.split(", "))
        for data, _, share, steps, text in columns(effect["table-7"], *names)
    }
    assert {share: count for (data, share, _), count in found.items() if data == "mnist" and share} == dict.fromkeys(
        ("root", "count", "printed", "own"), 3
    )
    assert (found["cifar10", "printed", 240], found["svhn", "printed", 60]) == (3, 3)


def test_tables_3_to_5_are_means_over_the_seeds_that_are_there(plan, pretend, tmp_path):
    several = replace(plan, repeats=3)
    cell = design.Cell("mnist", "cnn", "adam", "AC", 0.1, 0.8)
    pair = [design.experiment(repeat)[one] for repeat in (0, 2) for one in (cell, cell.as_sequence("CA"))]
    found = Lin().results(pair, Setup(several, tmp_path, runner=pretend, workers=1))
    shown = {table.name: table for table in tables.every_table(found, several)}
    ac, ca = ([found[one] for one in pair if one.sequence == sequence] for sequence in ("AC", "CA"))
    assert ac[0].accuracy != ac[1].accuracy
    means = dict(columns(shown["table-3"], "sequence", "accuracy"))
    assert means == {
        "AC": pytest.approx((ac[0].accuracy + ac[1].accuracy) / 2),
        "CA": pytest.approx((ca[0].accuracy + ca[1].accuracy) / 2),
    }
    (row,) = shown["signs"].rows
    ahead = [int(one.accuracy > other.accuracy) for one, other in zip(ac, ca, strict=True)]
    gains = [f"{100 * (one.accuracy - other.accuracy):+.1f}" for one, other in zip(ac, ca, strict=True)]
    assert row[:6] == ("mnist", "cnn", "adam", 1, 2, ", ".join(map(str, ahead)))
    assert row[6:] == (1, int(all(ahead)), int(not any(ahead)), ", ".join(gains), pytest.approx(2.54))


def test_rates_are_compared_over_seeds(effect):
    ahead = columns(effect["rates"], "AC", "CA", "AC above CA")
    assert len(ahead) == 8
    for ac, ca, text in ahead:
        count, pairs = map(int, text.split(" of "))
        assert pairs == 3
        assert (count > 0) >= (ac > ca)  # a mean cannot be ahead where no seed is


def test_the_rate_of_sgd_that_was_taken_is_named(effect):
    taken = [(model, rate) for model, rate, text in columns(effect["rates"], "model", "rate", "taken") if text]
    assert taken == list(SGD_RATE.items())


def test_statistics_of_scale_effect_wait_until_every_cell_is_there(plan, pretend, tmp_path):
    several = replace(plan, repeats=3)
    cells = [cell for cell in Lin().cells(several) if cell.data != "svhn"]
    found = Lin().results(cells, Setup(several, tmp_path, runner=pretend, workers=1))
    names = {table.name for table in tables.every_table(found, several)}
    assert {"table-3", "table-4", "gains"} < names
    assert not {"table-5", "table-8", "table-10"} & names


def test_tables_3_to_5_and_the_gains_are_of_the_pairs_that_are_there(plan, pretend, tmp_path):
    several = replace(plan, repeats=3)
    there = [training for cell, training in design.experiment().items() if cell.optimizer == "adam"]
    there.remove(design.experiment()[design.Cell("mnist", "cnn", "adam", "CA", 0.1, 0.8)])
    names = {
        table.name: table
        for table in tables.every_table(
            Lin().results(there, Setup(several, tmp_path, runner=pretend, workers=1)), several
        )
    }
    assert len(names["table-3"].rows) == 2 * 8 - 1 + 2
    assert columns(names["gains"], "AC wins")[:2] == [("3 of 3",), ("4 of 4",)]
