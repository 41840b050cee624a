"""Numeric targets coded by public bounds, and whose each record is."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof.data import Dataset, Public, decode, from_arrays, load, shards, split
from noiseproof.errors import DataError, SettingError

SCHEMA = {
    "columns": {"age": {"low": 0, "high": 100}},
    "target": {"name": "days", "low": 0, "high": 30, "integer": True},
    "person": "patient",
}


def _visits(rows=400, patients=60, seed=0):
    generator = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "patient": [f"p{number:03}" for number in generator.integers(patients, size=rows)],
            "age": generator.integers(20, 90, rows),
            "days": generator.integers(0, 40, rows),
        }
    )


@pytest.fixture
def visits(tmp_path):
    _visits().to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path / "visits.csv", tmp_path / "schema.json"


def _persons(part, frame, rows):
    assert part.groups is not None
    ids = frame["patient"].to_numpy()[rows.numpy()]
    pairs = set(zip(part.groups.tolist(), ids, strict=True))
    assert len(pairs) == part.persons == len(set(ids)), "each number is one person's"
    return set(ids)


def test_a_numeric_target_is_coded_by_its_public_bounds_and_decoded_to_its_units(visits):
    found = load(visits[0], schema=visits[1])
    public, labels = found.train.public, found.train.labels
    assert (public.task, public.classes, public.outputs, public.target_bounds) == ("regression", (), 1, (0.0, 30.0))
    assert labels.dtype == torch.float32
    days = torch.tensor(_visits()["days"].to_numpy()[found.rows[0].numpy()]).clamp(max=30)
    torch.testing.assert_close(public.in_units(labels), days.float())
    assert any("days" in remark for remark in found.remarks)
    table = decode(public, found.train.features, labels)
    assert list(table.columns) == ["age", "days"]
    assert (table["days"].to_numpy() == days.numpy()).all()


def test_the_same_is_said_by_arguments(visits):
    found = load(visits[0], target="days", task="count", target_bounds=(0, 30), person="patient")
    assert (found.train.public.task, found.train.public.person) == ("count", "patient")
    assert [column.name for column in found.train.public.columns] == ["age"]
    assert found.train.public.bounds == "data"


def test_many_whole_numbers_are_asked_about(visits):
    with pytest.raises(SettingError, match="--task"):
        load(visits[0], target="days", person="patient")


@pytest.mark.parametrize("relation", ["add-or-remove", "replace-one"])
def test_nobody_is_in_training_and_test(visits, relation):
    found = load(visits[0], schema=visits[1], neighbours=relation)
    frame = _visits()
    train, test = (
        _persons(part, frame, rows) for part, rows in zip((found.train, found.test), found.rows, strict=True)
    )
    assert train
    assert test
    assert not train & test
    assert found.train.unit == "person"


def test_a_person_more_moves_nobody_else_to_the_other_side(tmp_path):
    frame = _visits()
    other = pd.concat([frame.iloc[::-1], pd.DataFrame({"patient": ["new"] * 3, "age": [20, 30, 40], "days": 5})])
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    sides = []
    for name, table in (("one.csv", frame), ("two.csv", other)):
        table.to_csv(tmp_path / name, index=False)
        found = load(tmp_path / name, schema=tmp_path / "schema.json")
        sides.append(_persons(found.train, table, found.rows[0]) - {"new"})
    assert sides[0] == sides[1]


def test_a_person_lies_in_one_shard(visits):
    train = load(visits[0], schema=visits[1]).train
    rows = [{tuple(row.tolist()) for row in shard.features} for shard in shards(train, 4)]
    assert sum(shard.persons for shard in shards(train, 4)) == train.persons
    assert len(rows) == 4


def test_stored_tables_carry_persons_and_numbers(visits, tmp_path):
    frame = _visits()
    frame.to_parquet(tmp_path / "visits.parquet", row_group_size=50)
    here = load(tmp_path / "visits.parquet", schema=visits[1])
    there = load(tmp_path / "visits.parquet", schema=visits[1], store=tmp_path / "stored")
    assert there.train.persons == here.train.persons
    assert there.train.labels.dtype == torch.float32
    assert sorted(there.train.labels.tolist()) == sorted(here.train.labels.tolist())
    assert there.train.public == here.train.public


def test_ids_are_in_no_message_and_a_missing_one_is_refused(tmp_path):
    frame = _visits(40)
    frame.loc[[3, 7], "patient"] = None
    frame.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    with pytest.raises(DataError, match="empty in 2 rows") as refused:
        load(tmp_path / "visits.csv", schema=tmp_path / "schema.json")
    assert "p0" not in str(refused.value)


def test_arrays_have_groups_and_numeric_labels():
    features, labels = np.random.default_rng(0).random((50, 3)), np.linspace(-5, 5, 50)
    made = from_arrays(features, labels, low=0, high=1, target_bounds=(-2, 2), groups=[f"a{i // 5}" for i in range(50)])
    assert (made.public.bounds, made.public.task, made.persons, made.unit) == ("public", "regression", 10, "person")
    assert made.labels.min() == 0
    assert made.labels.max() == 1
    assert made.take(torch.arange(12, 50)).persons == 8
    assert made.take(torch.arange(12, 50)).groups.unique().tolist() == list(range(8))
    with pytest.raises(DataError, match="one id a record"):
        from_arrays(features, labels, low=0, high=1, target_bounds=(-2, 2), groups=[1, 2])
    with pytest.raises(SettingError, match="bounds of the target"):
        from_arrays(features, labels, low=0, high=1, target_bounds=(2, 2))


def test_records_that_differ_in_a_numeric_label_are_told_apart():
    public = Public((1,), (), task="regression", target_bounds=(0, 1))
    made = Dataset("x", torch.zeros(2, 1), torch.tensor([0.25, 0.5]), public)
    assert len({tuple(row) for row in made.identities()}) == 2
    grouped = Dataset("x", torch.zeros(2, 1), torch.tensor([0.25, 0.5]), public, torch.tensor([0, 0]))
    assert grouped.fingerprint() != made.fingerprint()
    with pytest.raises(DataError, match="at least 2"):
        split(grouped)


def test_groups_are_ids_of_any_kind_and_nobody_is_in_both_parts(tmp_path):
    features, labels = np.random.default_rng(0).random((200, 3)), np.arange(200) % 2
    np.savez(tmp_path / "x.npz", x=features, y=labels, low=0, high=1, class_names=["a", "b"])
    for ids in ([f"p{place % 40}" for place in range(200)], np.arange(200) % 40 + 1000, torch.arange(200) % 40 - 7):
        found = load(tmp_path / "x.npz", groups=ids)
        train, test = ({str(ids[row]) for row in rows.tolist()} for rows in found.rows)
        assert (len(train), len(test)) == (found.train.persons, found.test.persons)
        assert not train & test
        assert found.train.unit == "person"


@pytest.mark.parametrize(
    ("ids", "persons"),
    [
        (["b", "a", "b "], 2),
        (["007", "7", "7"], 2),
        ([7, 7.0, 8], 2),
        (np.array([2**62, -5, 2**62]), 2),
        (torch.tensor([1, 0, 1]), 2),
    ],
)
def test_a_data_set_numbers_its_persons(ids, persons):
    made = Dataset("x", torch.zeros(3, 1), torch.zeros(3).long(), Public((1,), ("a", "b")), ids)
    assert made.persons == persons
    assert made.groups.unique().tolist() == list(range(persons))


@pytest.mark.parametrize(("ids", "said"), [(["a", None, "b"], "empty in 1"), ([7, "7", 8], "partly by texts")])
def test_ids_that_are_missing_or_of_mixed_types_are_refused(ids, said):
    with pytest.raises(DataError, match=said):
        Dataset("x", torch.zeros(3, 1), torch.zeros(3).long(), Public((1,), ("a", "b")), ids)


def test_whose_a_record_is_is_said_once(visits, tmp_path):
    with pytest.raises(SettingError, match="not both"):
        load(visits[0], schema=visits[1], groups=range(400))
    load(visits[0], schema=visits[1], store=tmp_path / "stored")
    with pytest.raises(SettingError, match="stored"):
        load(tmp_path / "stored", groups=range(400))


@pytest.mark.parametrize("stored", [False, True])
def test_ids_that_look_alike_are_two_persons_and_the_owner_is_told_without_naming_them(tmp_path, stored):
    frame = _visits()
    frame["patient"] = [f"{place % 60:03}" if place % 2 else str(place % 60) for place in range(len(frame))]
    frame["patient"] = frame["patient"].where(frame.index != 11, "11")  # else each number is written in one way
    frame.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    store = {"store": tmp_path / "stored"} if stored else {}
    found = load(tmp_path / "visits.csv", schema=tmp_path / "schema.json", **store)
    assert found.train.persons + found.test.persons == 61
    assert [remark for remark in found.remarks if remark.startswith("1 ids of persons differ")]
    assert not any("11" in remark for remark in found.remarks)


def test_the_owner_is_told_of_a_person_who_has_most_of_the_rows_and_nothing_is_lost(tmp_path):
    frame = _visits()
    frame["patient"] = frame["patient"].where(frame.index % 10 == 0, "everybody")
    frame.to_csv(tmp_path / "visits.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    found = load(tmp_path / "visits.csv", schema=tmp_path / "schema.json")
    assert len(found.train) + len(found.test) == len(frame)
    assert [remark for remark in found.remarks if remark.startswith("one person has 90% of all rows")]
    assert not any("everybody" in remark for remark in found.remarks)
