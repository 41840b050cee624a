"""Two files that differ in one person, with all their rows, leave nothing behind that differs except what is noised."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pandas as pd
import pytest
import torch

from noiseproof import methods
from noiseproof.cli import main
from noiseproof.data import load
from tests.twin import worlds
from tests.twin.test_twins import asked_in_python, command

METHODS = [name for name, kind in methods.registry().items() if "person" in kind.units]


def differing(rows: int, one) -> list[worlds.Record]:
    """A person with so many rows, all as in `one` but for the ages, which lie side by side."""
    return [{**one, "age": abs(one["age"] - place)} for place in range(rows)]


def extremes(*parts: int) -> tuple[list[worlds.Record], ...]:
    """Two persons as different as can be, in their number of rows as well, in parts of the split under replace-one."""
    return tuple(
        worlds.trained_on(
            worlds.write_persons,
            (differing(rows, {**one, "age": one["age"] + inwards * step}) for step in itertools.count()),
            worlds.PERSON_ROW,
            part,
        )
        for part, (rows, one, inwards) in zip(
            parts, ((2, worlds.EXTREMES[0], 0.01), (7, worlds.EXTREMES[1], -0.01)), strict=True
        )
    )


PAIR = extremes(0, 0)
"""Both are trained on."""


def replayed(method: str, folder, restart, *options: str):
    """What the card of the first file proves, what the second drew in the place of its draws, what differs, what was left.

    Under replace-one all other persons keep their places; every person is in every batch, and nobody but the one who
    differs has as many rows as would be chosen among, so that worlds share all draws.
    """
    tape, left, card = worlds.Tape(), [], None
    measured = "--no-quality" if methods.get(method).place == "losses" else "--no-baseline"
    for name, person in zip(("one", "other"), PAIR, strict=True):
        given = (*worlds.write_persons(folder / name, person), "--neighbours", "replace-one", measured, *options)
        restart()
        with tape.running():
            left.append(worlds.run(folder / name, command(method), given))
            card = json.loads(left[-1]["stdout"])["card"]
            if (folder / name / "release").is_dir():
                left[-1] |= asked_in_python(folder / name)
    return card, tape, worlds.leaks(*left, folder / "one", noised=False), left


@pytest.mark.parametrize("method", METHODS)
def test_with_the_same_draws_nothing_differs_and_what_was_noised_costs_no_more_than_a_person_may(
    method, tmp_path, fixed_randomness
):
    card, tape, found, left = replayed(method, tmp_path, fixed_randomness)
    assert card["unit"] == "person"
    assert (tape.differing, found) == ([], [])
    assert tape.epsilon(card["proven"]["delta"]) <= card["proven"]["epsilon"] * (1 + 1e-6)
    assert tape.events or method == "teachers"  # whose votes one person seldom changes
    for one in left:
        assert ids_in(one) == []


@pytest.mark.parametrize("parts", [(0, 0), (1, 1), (0, 1)], ids=["trained on", "scored", "on either side"])
def test_so_it_is_of_a_paid_choice(parts, tmp_path, fixed_randomness):
    """About one training, so that all that was drawn is what one run costs; the choice costs more."""
    tape, left = worlds.Tape(), []
    asked = ("choose", "functional", "functional:ridge=0.1", "--runs", "1.01", "--neighbours", "replace-one")
    for name, person in zip(("one", "other"), extremes(*parts), strict=True):
        given = worlds.write_persons(tmp_path / name, person)
        fixed_randomness()
        with tape.running():
            left.append(worlds.run(tmp_path / name, (*asked, "--out", "release", "--json"), given))
        assert ids_in(left[-1]) == []
    card = json.loads(left[0]["stdout"])["card"]
    assert card["unit"] == "person"
    assert (tape.differing, worlds.leaks(*left, tmp_path / "one", noised=False)) == ([], [])
    assert 0 < tape.epsilon(card["proven"]["delta"]) <= card["proven"]["epsilon"]
    assert len(tape.events) == (2 if parts == (0, 1) else 1)


def ids_in(left: worlds.Left) -> list[str]:
    """Where a person's id, or the mark that all of them bear, was left behind."""
    return [name for name, content in left.items() if worlds.MARK in content or worlds.MARK.lower() in content]


@pytest.mark.parametrize("method", METHODS)
def test_nothing_of_a_release_tells_two_files_apart_that_differ_in_a_person(
    method, person_pair, tmp_path, fixed_randomness
):
    left = []
    for name, person in zip(("one", "other"), person_pair, strict=True):
        given = worlds.write_persons(tmp_path / name, person)
        fixed_randomness()
        left.append(worlds.run(tmp_path / name, command(method), given))
        assert ids_in(left[-1]) == []
    assert worlds.leaks(*left, tmp_path / "one") == []


@pytest.fixture(scope="module")
def person_pair(tmp_path_factory):
    """Two persons of different numbers of rows who both fall into the training part, wherever others do."""
    folder, found = tmp_path_factory.mktemp("persons"), []

    def training(name, person):
        given = worlds.write_persons(folder / name, person)
        return load(folder / name / given[1], schema=folder / name / given[3]).train

    alone = training("alone", [])
    for rows, one in ((2, worlds.EXTREMES[0]), (7, worlds.EXTREMES[1])):
        tries = (differing(rows, {**one, "age": 20.0 + step / 4}) for step in range(40))
        found.append(
            next(each for step, each in enumerate(tries) if len(training(f"{rows}-{step}", each)) == len(alone) + rows)
        )
    return tuple(found)


def test_a_person_more_leaves_everybody_else_on_their_side(person_pair, tmp_path):
    parts = []
    for name, person in (("without", []), ("with", person_pair[1])):
        given = worlds.write_persons(tmp_path / name, person)
        found = load(tmp_path / name / given[1], schema=tmp_path / name / given[3])
        parts.append([Counter(map(tuple, part.features.tolist())) for part in (found.train, found.test)])
    (train, test), (train_with, test_with) = parts
    assert sum((train_with - train).values()) == 7
    assert (test_with, train - train_with) == (test, Counter())


def test_ids_are_in_no_checkpoint_journal_page_or_cache(tmp_path, fixed_randomness):
    given = worlds.write_persons(tmp_path / "one", PAIR[1])
    fixed_randomness()
    left = worlds.run(
        tmp_path / "one", (*command("dp-sgd"), "--checkpoint", "kept", "--every", "1", "--no-baseline"), given
    )
    assert any("kept" in name for name in left)
    left |= {f"page {name}": each for name, each in worlds.run(tmp_path / "one", ("report", "release")).items()}
    left |= {
        f"attack {name}": each
        for name, each in worlds.run(
            tmp_path / "one", ("attack", "release", "--attack", "loss", "--json"), given
        ).items()
    }
    assert json.loads(left["attack stdout"])["unit"] == "person"
    left |= {
        f"stored {name}": each
        for name, each in worlds.run(
            tmp_path / "one", (*command("functional"), "--store", "stored", "--force"), given
        ).items()
    }
    assert any("stored/groups.npy" in name for name in left)
    assert ids_in(left) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda frame: frame.assign(patient=frame["patient"].where(frame.index != 3, "")),
        lambda frame: frame.assign(age=frame["patient"]),
        lambda frame: frame.assign(label=frame["patient"]),
        lambda frame: frame.iloc[:1],
    ],
    ids=["missing", "ids as numbers", "ids as classes", "one row"],
)
def test_ids_are_in_no_error(spoil, tmp_path, capfd, monkeypatch):
    given = worlds.write_persons(tmp_path / "one", PAIR[0])
    file = tmp_path / "one" / given[1]
    spoil(pd.read_csv(file, dtype=str)).to_csv(file, index=False)
    monkeypatch.chdir(tmp_path / "one")
    with pytest.raises(SystemExit) as stop:
        main([*command("dp-sgd"), *given])
    assert stop.value.code
    said = "".join(capfd.readouterr())
    assert said
    assert worlds.MARK.decode() not in said


def test_a_mechanism_that_takes_rows_for_persons_is_caught(tmp_path, fixed_randomness, monkeypatch):
    """dp-sgd that is told of persons and clips rows: its seven differ by more than one person may."""
    from noiseproof.engine.clipping import RecordGradients

    monkeypatch.setattr(RecordGradients, "by_person", lambda self, owners: self)
    card, tape, _, _ = replayed("dp-sgd", tmp_path, fixed_randomness, "--set", "person_gradient=sum")
    assert tape.epsilon(card["proven"]["delta"]) > 1.5 * card["proven"]["epsilon"]


def test_the_worlds_hold_persons_of_several_rows(tmp_path):
    given = worlds.write_persons(tmp_path / "one", PAIR[1])
    found = load(tmp_path / "one" / given[1], schema=tmp_path / "one" / given[3])
    counts = torch.cat([torch.bincount(part.groups) for part in (found.train, found.test)])
    assert int(counts.max()) == 7
    assert int((counts > 1).sum()) > 20
