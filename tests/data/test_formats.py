"""File formats: what is read, and every way in which a file can be bad."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
import pytest

from noiseproof.data import formats, load, register_format
from noiseproof.data.formats import (
    check_file,
    column_names,
    extension,
    npz_length,
    read_npz,
    read_table,
)
from noiseproof.data.schema import Schema
from noiseproof.errors import DataError

SCHEMA = Schema.model_validate(
    {
        "columns": {"code": {"categories": ["007", "NA"]}, "n": {"low": 0, "high": 9, "missing": True}},
        "target": {"name": "t", "classes": ["x", "y"]},
        "others": "ignore",
        "missing_values": ["?"],
    }
)


def _csv(tmp_path, text, name="table.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_schema_keeps_codes_as_they_are_and_reads_gaps_in_numbers(tmp_path):
    path = _csv(tmp_path, "code, n ,t,extra\n007,?,x,1\nNA,3,y,2\n")
    frame = read_table(path, SCHEMA)
    assert frame["code"].tolist() == ["007", "NA"]
    assert frame["n"].isna().tolist() == [True, False]
    assert list(frame.columns) == ["code", "n", "t"]


def test_a_gzipped_table_is_read_as_a_plain_one(tmp_path):
    text = "a,b\n1,x\n2,y\n"
    plain, packed = _csv(tmp_path, text), _csv(tmp_path, gzip.compress(text.encode()), "table.csv.gz")
    pd.testing.assert_frame_equal(read_table(plain), read_table(packed))


def test_parquet_is_read_as_it_was_written_and_an_index_is_no_column(tmp_path):
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=pd.Index(["p", "q"], name="key"))
    frame.to_parquet(tmp_path / "table.parquet")
    assert column_names(tmp_path / "table.parquet") == ("a", "b")
    assert read_table(tmp_path / "table.parquet")["b"].tolist() == ["x", "y"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n", "no records, only a header"),
        ("\n\n", "is empty"),
        ("a,a,b\n1,2,3\n", "more than one column named 'a'"),
        (",a\n0,1\n", "a column without a name"),
        ("a,b\n1,2\nsecret,4,5\n", "more cells than its header"),
        ("a,b\n1,2,secret\n1,2,secret\n", "more cells than its header"),
        ('a,b\n1,"secret\n', "a quote left open"),
        (b"a,b\n1,\xff\xfe\n", "not text in the encoding"),
    ],
)
def test_a_bad_csv_is_refused_in_one_sentence_without_a_cell(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as refused:
        read_table(_csv(tmp_path, text))
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)
    # What pandas raised may quote a cell: it must not be shown beneath.
    assert refused.value.__context__ is None or refused.value.__suppress_context__


@pytest.mark.parametrize(("name", "content"), [("t.parquet", b"PAR1 not really"), ("t.csv.gz", b"\x1f\x8b\x08 cut")])
def test_corrupt_tables_are_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match="truncated, corrupt or in another format"):
        read_table(path)


def test_a_truncated_parquet_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": range(1000)}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_table(path)


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "empty.csv").touch()
    for path, message in [
        (tmp_path, "is a folder"),
        (tmp_path / "none.csv", "there is no file"),
        (tmp_path / "empty.csv", "is empty"),
    ]:
        with pytest.raises(DataError, match=message):
            check_file(path)


@pytest.mark.parametrize("name", ["data.pkl", "data.xls", "data", "data.npy", "data.pt"])
def test_other_extensions_are_refused_with_those_that_can_be_read(tmp_path, name):
    with pytest.raises(DataError, match=r"\.csv, \.csv\.gz, \.tsv, \.tsv\.gz, \.xlsx, \.parquet, \.npz"):
        extension(tmp_path / name)


def test_npz_arrays_come_back(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.eye(3), y=np.arange(3))
    arrays = read_npz(tmp_path / "a.npz")
    assert arrays.keys() == {"x", "y"}
    np.testing.assert_array_equal(arrays["x"], np.eye(3))


def test_arrays_of_objects_are_refused_because_they_are_pickles(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match=r"array 'x' of .* holds Python objects"):
        read_npz(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-30], lambda content: b"", lambda content: b"not a zip at all"]
)
def test_damaged_npz_files_are_refused(tmp_path, damage):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).random((50, 50)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_npz(path)


def test_damage_inside_an_npz_array_is_noticed(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(5000))
    content = bytearray(path.read_bytes())
    content[20_000] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_npz(path)


def test_a_single_array_saved_under_an_npz_name_is_refused(tmp_path):
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, np.eye(2))
    with pytest.raises(DataError, match="truncated, corrupt or in another format"):
        read_npz(tmp_path / "a.npz")


def test_lengths_are_read_off_headers_alone(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", y_train=np.zeros(7), y_test=np.zeros(3), s=np.array(1))
    assert npz_length(tmp_path / "a.npz", ("y_train", "y_test")) == 10
    assert npz_length(tmp_path / "a.npz", ("s",)) is None
    assert npz_length(tmp_path / "a.npz", ("none",)) is None
    assert npz_length(tmp_path / "none.npz", ("y",)) is None


@pytest.fixture
def json_lines(monkeypatch):
    """A format of a user's own, by the guide: a decorated function from a path and a schema to a table."""
    monkeypatch.setattr(formats, "_FORMATS", dict(formats._FORMATS))

    @register_format(".jsonl")
    def read_json_lines(path, schema):
        return pd.read_json(path, lines=True)


def test_a_format_of_a_users_own_is_loaded_as_any_other(tmp_path, json_lines):
    frame = pd.DataFrame({"age": range(40), "sick": ["yes", "no"] * 20})
    frame.to_json(tmp_path / "people.jsonl", orient="records", lines=True)
    frame.to_csv(tmp_path / "people.csv", index=False)
    own, usual = (load(tmp_path / f"people.{end}", target="sick") for end in ("jsonl", "csv"))
    assert own.train.fingerprint() == usual.train.fingerprint()
    assert own.train.public.columns == usual.train.public.columns


def test_a_damaged_file_of_a_users_own_format_is_refused_without_a_cell(tmp_path, json_lines):
    (tmp_path / "people.jsonl").write_text('{"age": 3, "sick": secret')
    with pytest.raises(DataError, match="corrupt") as refused:
        load(tmp_path / "people.jsonl", target="sick")
    assert "secret" not in str(refused.value)


def test_a_format_that_gives_arrays_needs_no_target(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_FORMATS", dict(formats._FORMATS))
    register_format(".two")(lambda path, schema: {"x": np.eye(8), "y": np.arange(8) % 2})
    (tmp_path / "arrays.two").write_text("eight")
    assert load(tmp_path / "arrays.two").train.public.shape == (8,)


def test_an_extension_is_registered_once():
    with pytest.raises(ValueError, match="two formats"):
        register_format(".csv")(lambda path, schema: {})
