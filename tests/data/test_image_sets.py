"""Named sets of images in every layout they come in, on small files of the same shape, and on the real ones."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest
import torch

from noiseproof.data import load
from noiseproof.data.library import named_sets
from noiseproof.errors import DataError, SettingError

RNG = np.random.default_rng(0)
TRAIN, TEST = 24, 12


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A data folder of the test's own, and nothing in the cache."""
    monkeypatch.setenv("NOISEPROOF_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def _images(records, *shape):
    return RNG.integers(0, 256, (records, *shape)).astype(np.uint8)


def _labels(records, classes):
    return (np.arange(records) % classes).astype(np.uint8)


def _idx(values):
    return b"\x00\x00\x08" + bytes([values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def _check(split, images, labels, test_images, test_labels):
    for dataset, x, y in ((split.train, images, labels), (split.test, test_images, test_labels)):
        np.testing.assert_allclose(dataset.features, x / 255.0, atol=1e-6)
        assert dataset.features.dtype == torch.float32
        assert dataset.labels.tolist() == y.tolist()
        assert dataset.public.kind == "image"
        assert dataset.public.bounds == "public"


@pytest.mark.parametrize("end", [".gz", ""])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "."),
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "fashion-mnist"),
    ],
)
def test_idx_files_are_found_and_read(folder, name, place, end):
    parts = _images(TRAIN, 28, 28), _labels(TRAIN, 10), _images(TEST, 28, 28), _labels(TEST, 10)
    (folder / place).mkdir(parents=True, exist_ok=True)
    kinds = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for kind, values in zip(kinds, parts, strict=True):
        content = gzip.compress(_idx(values)) if end else _idx(values)
        (folder / place / f"{kind}-ubyte{end}").write_bytes(content)
    _check(load(name), parts[0][:, None], parts[1], parts[2][:, None], parts[3])


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [
        ("mnist", (28, 28), 10),
        ("fashion-mnist", (28, 28), 10),
        ("cifar10", (32, 32, 3), 10),
        ("cifar100", (32, 32, 3), 100),
        ("svhn", (32, 32, 3), 10),
    ],
)
def test_npz_files_are_found_and_read_with_the_channels_first(folder, name, shape, classes):
    parts = _images(TRAIN, *shape), _labels(TRAIN, classes), _images(TEST, *shape), _labels(TEST, classes)
    np.savez(folder / f"{name}.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True)))
    planes = [np.moveaxis(x, 3, 1) if x.ndim == 4 else x[:, None] for x in (parts[0], parts[2])]
    _check(load(name), planes[0], parts[1], planes[1], parts[3])


def _cifar_rows(records, name):
    images, labels = _images(records, 3, 32, 32), _labels(records, 10 if name == "cifar10" else 100)
    marks = [labels] if name == "cifar10" else [labels // 5, labels]
    return (
        images,
        labels,
        np.concatenate([*(m[:, None] for m in marks), images.reshape(records, -1)], 1).astype(np.uint8),
    )


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifars_binary_version_is_read_from_its_archive_and_unpacked(folder, name, packed):
    images, labels, rows = _cifar_rows(TRAIN + 6, name)
    test_images, test_labels, test_rows = _cifar_rows(TEST, name)
    if name == "cifar10":
        blocks = {f"cifar-10-batches-bin/data_batch_{n + 1}.bin": rows[n * 6 : n * 6 + 6] for n in range(5)}
        members = {
            "cifar-10-batches-bin/readme.html": rows[:0],
            "cifar-10-batches-bin/test_batch.bin": test_rows,
            **blocks,
        }
    else:
        members = {"cifar-100-binary/test.bin": test_rows, "cifar-100-binary/train.bin": rows}
    if packed:
        with tarfile.open(folder / f"cifar-{name[5:]}-binary.tar.gz", "w:gz") as archive:
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = content.nbytes
                archive.addfile(info, io.BytesIO(content.tobytes()))
    else:
        for member, content in members.items():
            (folder / member).parent.mkdir(exist_ok=True)
            (folder / member).write_bytes(content.tobytes())
    _check(load(name), images, labels, test_images, test_labels)


def test_a_cut_cifar_file_is_refused(folder):
    (folder / "cifar-100-binary").mkdir()
    for file in ("train", "test"):
        (folder / "cifar-100-binary" / f"{file}.bin").write_bytes(_cifar_rows(4, "cifar100")[2].tobytes()[:-5])
    with pytest.raises(DataError, match="truncated, corrupt"):
        load("cifar100")


def test_svhns_matlab_files_are_read(folder):
    from scipy.io import savemat

    parts = {}
    for file, records in (("train", TRAIN), ("test", TEST)):
        images, labels = _images(records, 3, 32, 32), _labels(records, 10)
        parts[file] = images, labels
        y = np.where(labels == 0, 10, labels)[:, None]
        savemat(folder / f"{file}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": y})
    _check(load("svhn"), *parts["train"], *parts["test"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": _images(4, 28, 28)}, "of another layout"),
        ({"x_train": _images(4, 9, 9), "x_test": _images(4, 9, 9)}, r"records of shape \(1, 9, 9\), not \(1, 28, 28\)"),
        ({"y_train": np.array([0, 1, 2, 10])}, "1 labels of mnist are outside its 10 classes"),
        ({"y_train": np.array([0, 1, 2])}, "4 records but 3 labels"),
    ],
)
def test_files_that_are_not_the_named_set_are_refused(folder, arrays, message):
    whole = {
        "x_train": _images(4, 28, 28),
        "y_train": _labels(4, 10),
        "x_test": _images(4, 28, 28),
        "y_test": _labels(4, 10),
    }
    if message == "of another layout":
        whole = {}
    np.savez(folder / "mnist.npz", **(whole | arrays))
    with pytest.raises(DataError, match=message):
        load("mnist")


def test_a_copy_of_another_size_than_the_published_set_says_so(folder):
    parts = _images(TRAIN, 28, 28), _labels(TRAIN, 10), _images(TEST, 28, 28), _labels(TEST, 10)
    np.savez(folder / "mnist.npz", **dict(zip(("x_train", "y_train", "x_test", "y_test"), parts, strict=True)))
    assert load("mnist").train.public.notes == (
        "this copy of mnist holds 24 and 12 records, where the published set has 60,000 and 10,000.",
    )


def test_images_have_labels_of_their_own(folder):
    with pytest.raises(SettingError, match="digits has labels of its own"):
        load("digits", target="label")


def test_digits_need_no_network_and_are_split_by_seed(folder):
    first, again, other = load("digits"), load("digits"), load("digits", seed=1)
    assert first.train.fingerprint() == again.train.fingerprint() != other.train.fingerprint()
    assert len(first.train) + len(first.test) == 1797
    assert first.train.public.shape == (1, 8, 8)
    assert first.train.features.max() == 1
    assert first.train.public.bounds == "public"
    assert first.train.public.notes == ()


def test_class_names_are_as_many_as_classes():
    sets = named_sets()
    assert len(sets["cifar100"].classes) == len(set(sets["cifar100"].classes)) == 100
    assert list(sets["cifar100"].classes) == sorted(sets["cifar100"].classes)
    for name in ("digits", "mnist", "fashion-mnist", "cifar10", "svhn"):
        assert len(set(sets[name].classes)) == 10


@pytest.mark.parametrize(
    ("name", "records", "shape"),
    [
        ("mnist", (60_000, 10_000), (1, 28, 28)),
        ("cifar10", (20_000, 10_000), (3, 32, 32)),
        ("svhn", (12_000, 4_000), (3, 32, 32)),
    ],
)
def test_the_real_sets_load(real_data, name, records, shape):
    real_data(f"{name}.npz")
    split = load(name)
    assert (len(split.train), len(split.test)) == records
    assert split.train.public.shape == shape
    assert float(split.train.features.min()) == 0
    assert float(split.train.features.max()) == 1
    assert sorted(split.train.labels.unique().tolist()) == list(range(10))
