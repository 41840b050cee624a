"""Raw formats of published sets: what is read, and every way in which a file can be bad."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest

from noiseproof.data import raw as module
from noiseproof.data.raw import (
    parse_cifar,
    read_baskets,
    read_bits,
    read_idx,
    read_members,
    read_numbers,
    read_svhn,
    top_items,
)
from noiseproof.errors import DataError

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
    with pytest.raises(DataError, match="in another format"):
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
    monkeypatch.setattr(module, "_ROWS", block)
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
