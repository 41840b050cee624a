"""Loading by name or path: what comes out, and every bad input in one sentence."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof.data import decode, load, read_schema
from noiseproof.data.raw import ADULT_COLUMNS
from noiseproof.errors import DataError, SettingError

ROWS = 40
SCHEMA = {
    "columns": {
        "age": {"low": 0, "high": 100, "integer": True},
        "dose": {"low": 0, "high": 1, "missing": True},
        "colour": {"categories": ["red", "blue"]},
    },
    "target": {"name": "ill", "classes": ["no", "yes"]},
}


def _frame():
    return pd.DataFrame(
        {
            "age": np.arange(ROWS) + 20,
            "dose": np.linspace(0, 1, ROWS),
            "colour": ["red", "blue"] * (ROWS // 2),
            "ill": ["no", "no", "yes", "yes"] * (ROWS // 4),
        }
    )


@pytest.fixture
def table(tmp_path):
    """Writes a table as a CSV and returns its path."""

    def write(frame=None, name="table.csv"):
        frame = _frame() if frame is None else frame
        path = tmp_path / name
        if name.endswith(".parquet"):
            frame.to_parquet(path, index=False)
        else:
            frame.to_csv(path, index=False)
        return path

    return write


@pytest.fixture
def schema(tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def test_with_a_schema_bounds_are_public_and_nothing_needs_to_be_said(table, schema):
    split = load(table(), schema=schema)
    assert split.train.public.bounds == "public"
    assert split.train.public.notes == ()
    assert split.train.public.target == "ill"
    assert (len(split.train), len(split.test)) == (30, 10)


def test_without_a_schema_bounds_are_read_off_the_data_and_said(table):
    split = load(table(), target="ill")
    public = split.train.public
    assert public.bounds == "data"
    assert len(public.notes) == 1
    assert "read off the records" in public.notes[0]
    assert (public.columns[0].low, public.columns[0].high) == (20, 59)
    assert public.columns[2].categories == ("blue", "red")
    assert public.classes == ("no", "yes")


def test_a_text_path_a_path_and_parquet_give_the_same(table, schema):
    splits = [load(str(table()), schema=str(schema)), load(table(), schema=read_schema(schema))]
    splits.append(load(table(name="table.parquet"), schema=schema))
    assert len({split.train.fingerprint() for split in splits}) == 1


def test_what_is_loaded_can_be_decoded_again(table):
    split = load(table(), target="ill", test_fraction=0.5)
    parts = [decode(part.public, part.features, part.labels) for part in (split.train, split.test)]
    whole = pd.concat(parts).sort_values("age", ignore_index=True)
    pd.testing.assert_frame_equal(whole, _frame(), check_dtype=False, atol=1e-6)


def test_gaps_in_numbers_are_coded_where_the_schema_says_so_and_refused_elsewhere(table, schema):
    frame = _frame()
    frame.loc[:2, "dose"] = np.nan
    split = load(table(frame), schema=schema)
    assert int(split.train.features[:, 2].sum() + split.test.features[:, 2].sum()) == 3
    with pytest.raises(DataError, match="'dose' has 3 missing numbers"):
        load(table(frame), target="ill")


def test_gaps_in_categories_have_a_slot_of_their_own_without_a_schema(table):
    frame = _frame()
    frame.loc[:2, "colour"] = None
    split = load(table(frame), target="ill")
    assert split.train.public.columns[2].missing
    assert int(split.train.features[:, -1].sum() + split.test.features[:, -1].sum()) == 3


def test_remarks_about_clipping_go_to_the_owner_and_not_into_what_is_public(table, schema):
    split = load(table(_frame().assign(age=1000)), schema=schema)
    assert "clipped" in split.remarks[0]
    assert split.train.public.notes == ()


def test_a_table_with_adults_columns_gets_its_built_in_schema_and_says_so(tmp_path):
    row = [39, "Private", 1, "Masters", 14, "Divorced", None, "Wife", "White", "Male", 0, 0, 40, "Cuba"]
    frame = pd.DataFrame([[*row, "<=50K"], [*row, ">50K"]] * 10, columns=list(ADULT_COLUMNS))
    frame.to_csv(tmp_path / "people.csv", index=False)
    frame.iloc[:4].to_csv(tmp_path / "adult-test.csv", index=False)
    for target in (None, "income"):
        split = load(tmp_path / "people.csv", target=target)
        assert split.train.public.bounds == "public"
        assert "built-in" in split.train.public.notes[0]
        assert split.train.public.shape == (107,)
        # Only the given file is split, whatever lies beside it.
        assert len(split.train) + len(split.test) == 20


def test_a_table_with_other_columns_than_adults_is_an_ordinary_one(table):
    with pytest.raises(SettingError, match=r"say which column of .* its columns are age, dose, colour, ill"):
        load(table())


def test_npz_arrays_are_split_by_seed_or_keep_their_test_part(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 6, 6)).astype(np.uint8), np.arange(40) % 4
    np.savez(tmp_path / "whole.npz", x=x, y=y, class_names=list("abcd"))
    np.savez(tmp_path / "parts.npz", x_train=x[:25], y_train=y[:25], x_test=x[25:], y_test=y[25:])
    whole, parts = load(tmp_path / "whole.npz"), load(tmp_path / "parts.npz")
    assert len(whole.train) + len(whole.test) == 40
    assert whole.train.public.classes == ("a", "b", "c", "d")
    assert whole.train.public.bounds == "public"
    np.testing.assert_allclose(parts.train.features[:, 0], x[:25] / 255.0, atol=1e-6)
    assert parts.test.labels.tolist() == y[25:].tolist()
    assert parts.train.public.bounds == "data"


def test_an_npz_file_may_carry_its_public_bounds(tmp_path):
    x = np.linspace(-1, 3, 24).reshape(8, 3)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(8) % 2, low=-5.0, high=5.0, class_names=["a", "b"])
    assert load(tmp_path / "a.npz").train.public.bounds == "public"


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.eye(4), "b": np.arange(4)}, "must hold arrays x and y"),
        ({"x": np.eye(4), "y_train": np.arange(4)}, "must hold arrays x and y"),
        ({"x": np.eye(4), "y": np.array([{}, 1, 2, 3], dtype=object)}, "holds Python objects"),
        ({"x": np.full((4, 4), np.nan), "y": np.arange(4)}, "NaN or infinite in 4 records"),
        ({"x": np.eye(4), "y": np.zeros(4)}, "one class only"),
        ({"x": np.eye(4), "y": np.arange(3)}, "4 records but 3 labels"),
        ({"x": np.eye(4), "y": np.arange(4), "class_names": np.array(["a", "b"])}, "2 labels of .* outside"),
        ({"x": np.array([["secret"]] * 4), "y": np.arange(4)}, "are not numbers"),
    ],
)
def test_bad_npz_files_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=message) as refused:
        load(tmp_path / "a.npz")
    assert "secret" not in str(refused.value)


def test_settings_for_tables_are_refused_for_arrays_and_named_sets(tmp_path, schema):
    np.savez(tmp_path / "a.npz", x=np.eye(4), y=np.arange(4))
    for name, settings in (
        (tmp_path / "a.npz", {"target": "y"}),
        (tmp_path / "a.npz", {"schema": schema}),
        ("digits", {"schema": schema}),
        ("digits", {"target": "digit"}),
    ):
        with pytest.raises(SettingError):
            load(name, **settings)


@pytest.mark.parametrize("name", ["minst", "Digits", "retail-3"])
def test_an_unknown_name_is_refused_with_the_names_there_are(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError) as refused:
        load(name)
    assert "breast-cancer" in str(refused.value)


def _bad_tables():
    frame = _frame()
    return [
        (frame.assign(age=np.nan), "'age' is empty"),
        (frame.assign(age=[*range(ROWS - 1), np.nan]), "'age' has 1 missing numbers"),
        (frame.assign(age=["secret", *range(1, ROWS)]), "'age' holds numbers but text in 1 rows"),
        (frame.assign(age=[np.inf, *range(1, ROWS)]), "'age' holds infinite numbers"),
        (frame.assign(day=["2020-01-01", "31.12.2021"] * (ROWS // 2)), "'day' holds dates written in several ways"),
        (frame.assign(ill="no"), "'ill' has one class only"),
        (frame.assign(ill=[None, *["no", "yes", "no"] * 13]), "'ill' is missing in 1 rows"),
        (frame.assign(ill=np.linspace(0, 1, ROWS)), "'ill' holds fractions"),
        (frame.iloc[:0], "no records, only a header"),
        (frame[["ill"]], "no column besides the target"),
        (frame.iloc[2:3], "one class only"),
    ]


@pytest.mark.parametrize(("frame", "message"), _bad_tables())
@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_bad_tables_are_refused_in_one_sentence_without_a_cell(table, frame, message, name):
    if name.endswith("parquet"):
        # Parquet has one type a column; what is mixed is written as texts.
        frame = frame.astype({name: str for name in frame.columns if name == "age" and frame[name].dtype == object})
    with pytest.raises(DataError, match=message) as refused:
        load(table(frame, name), target="ill")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["secret"] * ROWS}, f"'age' is to hold numbers but holds text in {ROWS} rows"),
        ({"age": [None] * ROWS}, f"'age' has {ROWS} missing values"),
        ({"ill": ["secret", *["no", "yes", "no"] * 13]}, "'ill' is none of the 2 classes in 1 rows"),
        ({"extra": 1}, "the schema does not name"),
    ],
)
def test_tables_that_do_not_fit_their_schema_are_refused_without_a_cell(table, schema, change, message):
    with pytest.raises(DataError, match=message) as refused:
        load(table(_frame().assign(**change)), schema=schema)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("settings", [{"target": "age"}, {"test_fraction": 1}])
def test_settings_that_contradict_are_refused(table, schema, settings):
    with pytest.raises(SettingError):
        load(table(), schema=schema, **settings)


def test_a_target_that_is_not_there_is_refused(table):
    with pytest.raises(SettingError, match="no column 'salary' to predict"):
        load(table(), target="salary")


def test_files_that_are_none_are_refused(tmp_path):
    (tmp_path / "empty.csv").touch()
    (tmp_path / "model.pkl").write_bytes(b"\x80\x04.")
    for name, message in (
        ("none.csv", "there is no file"),
        ("empty.csv", "is empty"),
        ("model.pkl", "cannot be read: a file of data is one of"),
        ("", "is a folder"),
    ):
        with pytest.raises(DataError, match=message):
            load(tmp_path / name, target="x")


def test_one_record_cannot_be_split(table, schema):
    with pytest.raises(DataError):
        load(table(_frame().iloc[:1]), schema=schema)


def test_loading_the_same_file_with_the_same_seed_gives_the_same_records(table, schema):
    path = table()
    first, again, other = (load(path, schema=schema, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.train.features, again.train.features)
    assert not torch.equal(first.train.features, other.train.features)


def test_the_real_adult_file_is_an_ordinary_file_with_a_known_schema(real_data):
    split = load(real_data("adult-train.csv"), target="income")
    assert len(split.train) + len(split.test) == 32_561
    assert split.train.public.bounds == "public"
    assert split.remarks == ()
