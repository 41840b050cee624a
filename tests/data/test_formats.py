"""File formats: what is read, and every way in which a file can be bad."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pandas as pd
import pytest

from noiseproof.data import formats, load, register_format
from noiseproof.data.formats import (
    check_file,
    column_names,
    extension,
    npz_length,
    parse_cifar,
    read_baskets,
    read_bits,
    read_idx,
    read_members,
    read_npz,
    read_numbers,
    read_svhn,
    read_table,
    top_items,
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
        (b"a,b\n1,\xff\xfe\n", "not text in UTF-8"),
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
    with pytest.raises(DataError, match="truncated, corrupt or of another layout"):
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


@pytest.mark.parametrize("name", ["data.pkl", "data.xlsx", "data", "data.npy", "data.pt"])
def test_other_extensions_are_refused_with_those_that_can_be_read(tmp_path, name):
    with pytest.raises(DataError, match=r"\.csv, \.csv\.gz, \.parquet, \.npz"):
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
    with pytest.raises(DataError, match="truncated, corrupt or of another layout"):
        read_npz(tmp_path / "a.npz")


def test_lengths_are_read_off_headers_alone(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", y_train=np.zeros(7), y_test=np.zeros(3), s=np.array(1))
    assert npz_length(tmp_path / "a.npz", ("y_train", "y_test")) == 10
    assert npz_length(tmp_path / "a.npz", ("s",)) is None
    assert npz_length(tmp_path / "a.npz", ("none",)) is None
    assert npz_length(tmp_path / "none.npz", ("y",)) is None


RNG = np.random.default_rng(0)


def _tar(path, **members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def _idx(values):
    return b"\x00\x00\x08" + bytes([values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


@pytest.mark.parametrize("shape", [(5, 4, 3), (7,)])
@pytest.mark.parametrize("packed", [True, False])
def test_idx_files_are_read_packed_or_not(tmp_path, shape, packed):
    values = RNG.integers(0, 256, shape).astype(np.uint8)
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(_idx(values)) if packed else _idx(values))
    np.testing.assert_array_equal(read_idx(path), values)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: c[:2], lambda c: b"\x00\x00\x0d" + c[3:], lambda c: c + b"1"]
)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_idx_files_are_refused(tmp_path, damage, packed):
    content = damage(_idx(np.zeros((5, 4, 3), np.uint8)))
    path = tmp_path / ("a.gz" if packed else "a")
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_idx(path)


def test_a_cut_gzip_is_refused(tmp_path):
    (tmp_path / "a.gz").write_bytes(gzip.compress(_idx(RNG.integers(0, 256, (50, 50)).astype(np.uint8)))[:-40])
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_idx(tmp_path / "a.gz")


@pytest.mark.parametrize("labels", [1, 2])
def test_cifars_binary_version_is_labels_then_planes(labels):
    images = RNG.integers(0, 256, (6, 3, 32, 32)).astype(np.uint8)
    marks = RNG.integers(0, 10, (6, labels)).astype(np.uint8)
    rows = np.concatenate([marks, images.reshape(6, -1)], axis=1)
    found, classes = parse_cifar([rows[:2].tobytes(), rows[2:].tobytes()], labels)
    np.testing.assert_array_equal(found, images)
    np.testing.assert_array_equal(classes, marks[:, -1])


def test_members_of_an_archive_come_in_the_order_asked_for(tmp_path):
    path = _tar(tmp_path / "a.tgz", **{"./one": b"1", "two": b"22", "three": b"333"})
    assert read_members(path, ["three", "one"]) == [b"333", b"1"]


def test_an_archive_without_a_member_is_refused(tmp_path):
    with pytest.raises(DataError, match="of another layout"):
        read_members(_tar(tmp_path / "a.tgz", one=b"1"), ["one", "two"])


def test_a_cut_archive_is_refused(tmp_path):
    path = _tar(tmp_path / "a.tgz", one=RNG.bytes(100_000))
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(DataError, match="truncated"):
        read_members(path, ["one"])


def test_svhns_matlab_files_have_the_records_last_and_ten_for_zero(tmp_path):
    from scipy.io import savemat

    images = RNG.integers(0, 256, (4, 3, 32, 32)).astype(np.uint8)
    savemat(tmp_path / "a.mat", {"X": images.transpose(2, 3, 1, 0), "y": np.array([[1], [10], [9], [2]], np.uint8)})
    found, labels = read_svhn(tmp_path / "a.mat")
    np.testing.assert_array_equal(found, images)
    assert labels.tolist() == [1, 0, 9, 2]


def test_a_file_that_is_no_matlab_file_is_refused(tmp_path):
    (tmp_path / "a.mat").write_bytes(b"nothing of the sort" * 20)
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_svhn(tmp_path / "a.mat")


def _bit_lines(bits, labels=None, form="{}", end="\n"):
    heads = ["" if labels is None else form.format(label) + "," for label in (labels if labels is not None else bits)]
    return end.join(head + ",".join(map(str, row)) for head, row in zip(heads, bits, strict=True)) + end


@pytest.mark.parametrize("form", ["{}", '"{}"'])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_of_a_label_and_bits_are_read_quoted_or_not(tmp_path, form, end):
    bits, labels = RNG.integers(0, 2, (30, 9)), RNG.integers(1, 1000, 30)
    path = tmp_path / "a"
    path.write_text(_bit_lines(bits, labels, form, end), newline="")
    found, classes = read_bits(path, 9)
    np.testing.assert_array_equal(found, bits)
    np.testing.assert_array_equal(classes, labels)


def test_bits_alone_and_numbers_alone_are_read_from_an_archive(tmp_path):
    bits = RNG.integers(0, 2, (30, 9))
    path = _tar(tmp_path / "a.tgz", feats=_bit_lines(bits).encode(), labels=b"3\n1\n2\n")
    np.testing.assert_array_equal(read_bits(path, 9, member="feats", labelled=False)[0], bits)
    assert read_numbers(path, member="labels").tolist() == [3, 1, 2]


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
@pytest.mark.parametrize("last", ["\n", ""])
def test_blocks_of_any_size_give_the_same_bits(tmp_path, monkeypatch, block, last):
    monkeypatch.setattr(formats, "_BLOCK", block)
    bits, labels = RNG.integers(0, 2, (30, 9)), RNG.integers(1, 101, 30)
    (tmp_path / "a").write_text(_bit_lines(bits, labels).rstrip("\n") + last)
    found, classes = read_bits(tmp_path / "a", 9)
    np.testing.assert_array_equal(found, bits)
    np.testing.assert_array_equal(classes, labels)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1,0,1\n",
        "1,0,1,0,1\n",
        "1,0,2,0\n",
        "x,0,1,0\n",
        ",0,1,0\n",
        "0,1,0\n",
        "1;0;1;0\n",
        "1,0,1,0\n1,0\n",
        "-1,0,1,0\n",
    ],
)
def test_lines_that_are_not_a_label_and_three_bits_are_refused(tmp_path, text):
    (tmp_path / "a").write_text(text)
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_bits(tmp_path / "a", 3)


def test_lines_that_are_longer_than_bits_alone_are_refused(tmp_path):
    (tmp_path / "a").write_text("1,0,1,0\n")
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_bits(tmp_path / "a", 3, labelled=False)


def test_labels_that_are_no_numbers_are_refused(tmp_path):
    (tmp_path / "a").write_text("1\nx\n")
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_numbers(tmp_path / "a")


@pytest.mark.parametrize("last", ["\n", ""])
def test_baskets_become_bits_of_the_items_bought_most(tmp_path, last):
    (tmp_path / "a.dat").write_text(f"3 7 12 \n\n7 12\n12 5{last}")
    lines, items, baskets = read_baskets(tmp_path / "a.dat")
    assert lines.tolist() == [0, 0, 0, 2, 2, 3, 3]
    assert items.tolist() == [3, 7, 12, 7, 12, 12, 5]
    assert baskets == 4
    assert top_items(lines, items, baskets, count=2).tolist() == [[1, 1], [0, 0], [1, 1], [0, 1]]
    assert top_items(lines, items, baskets, count=2, top=np.array([3, 5])).tolist() == [[1, 0], [0, 0], [0, 0], [0, 1]]


def test_fewer_items_than_wanted_are_refused():
    with pytest.raises(DataError, match="2 different items"):
        top_items(np.array([0, 1]), np.array([3, 9]), 2, count=3)


def test_baskets_that_are_no_numbers_are_refused(tmp_path):
    (tmp_path / "a.dat").write_text("milk bread\n")
    with pytest.raises(DataError, match="truncated, corrupt"):
        read_baskets(tmp_path / "a.dat")


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
