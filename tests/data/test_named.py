"""Named sets in every layout they come in, on small files of the same shape, and on the real ones."""

from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof.data import cluster_labels, decode, load
from noiseproof.data.named import named_sets
from noiseproof.data.raw import ADULT_COLUMNS, top_items
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


def test_svhns_matlab_files_are_read_with_the_extra_part_or_without(folder):
    from scipy.io import savemat

    parts = {}
    for file, records in (("train", TRAIN), ("extra", 2 * TRAIN), ("test", TEST)):
        images, labels = _images(records, 3, 32, 32), _labels(records, 10)
        parts[file] = images, labels
        y = np.where(labels == 0, 10, labels)[:, None]
        savemat(folder / f"{file}_32x32.mat", {"X": images.transpose(2, 3, 1, 0), "y": y})
    _check(load("svhn"), *parts["train"], *parts["test"])
    whole = [np.concatenate(both) for both in zip(parts["train"], parts["extra"], strict=True)]
    _check(load("svhn-extra"), *whole, *parts["test"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": _images(4, 28, 28)}, "in another format"),
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
    if message == "in another format":
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


def test_groups_that_lie_apart_get_a_label_each():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(3), 200)
    features = np.eye(3)[group] * 10 + rng.normal(0, 0.1, (600, 3))
    labels = cluster_labels(features, 3)
    assert len({(one, other) for one, other in zip(group.tolist(), labels.tolist(), strict=True)}) == 3
    assert set(labels.tolist()) == {0, 1, 2}


def test_the_same_seed_gives_the_same_labels():
    features = np.random.default_rng(0).integers(0, 2, (500, 20))
    assert cluster_labels(features, 5, seed=1).tolist() == cluster_labels(features, 5, seed=1).tolist()


@pytest.mark.parametrize("k", [0, 1, 11])
def test_too_many_or_too_few_clusters_are_refused(k):
    with pytest.raises(SettingError, match="cannot be put into"):
        cluster_labels(np.zeros((10, 2)), k)


# Named tables and binary records in every layout they come in, and the real ones.


RNG = np.random.default_rng(0)


def _tar(path, **members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def _lines(bits, labels=None, form="{}"):
    rows = [",".join(map(str, row)) for row in bits]
    if labels is not None:
        rows = [f"{form.format(label)},{row}" for label, row in zip(labels, rows, strict=True)]
    return ("\n".join(rows) + "\n").encode()


def _whole(split):
    """All the records of a split in an order of their own, for sets that are split at random."""
    x = np.concatenate([split.train.features.numpy(), split.test.features.numpy()])
    y = np.concatenate([split.train.labels.numpy(), split.test.labels.numpy()])
    return _sorted(x, y)


def _sorted(x, y):
    rows = np.concatenate([x.astype(np.int64), y[:, None].astype(np.int64)], axis=1)
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize("layout", ["archive", "file", "npz"])
@pytest.mark.parametrize(("name", "features", "classes"), [("purchase", 600, 100), ("location", 446, 30)])
def test_labelled_bits_are_read_in_every_layout(folder, name, features, classes, layout):
    bits, labels = RNG.integers(0, 2, (40, features)), np.arange(40) % classes
    member = {"purchase": "dataset_purchase", "location": "bangkok"}[name]
    text = _lines(bits, labels + 1, '"{}"' if name == "location" else "{}")
    if layout == "archive":
        _tar(folder / f"dataset_{name}.tgz", **{member: text})
    elif layout == "file":
        (folder / member).write_bytes(text)
    elif name == "purchase":
        np.savez(folder / "purchase.npz", x=bits, y=labels)
    else:
        np.savez(folder / "location30.npz", x_packed=np.packbits(bits, axis=1), n_features=features, y=labels)
    split = load(name)
    np.testing.assert_array_equal(_whole(split), _sorted(bits, labels))
    assert len(split.train) + len(split.test) == 40
    assert split.train.classes == classes
    assert split.train.public.kind == "vector"
    assert split.train.public.bounds == "public"


@pytest.mark.parametrize("layout", ["archive", "npz"])
def test_purchase_comes_in_the_papers_fewer_classes_too_by_clusters_of_its_baskets(folder, layout):
    bits, labels = RNG.integers(0, 2, (40, 600)), np.arange(40) % 100
    if layout == "archive":
        _tar(folder / "dataset_purchase.tgz", dataset_purchase=_lines(bits, labels + 1))
    else:
        np.savez(folder / "purchase.npz", x=bits, y=labels)
    split = load("purchase-10")
    assert split.train.classes == 10
    assert (split.train.public.bounds, split.train.public.notes[0]) == ("data", "labelled by k-means into 10 classes.")
    np.testing.assert_array_equal(_whole(split), _sorted(bits, cluster_labels(bits, 10)))


@pytest.mark.parametrize("layout", ["archive", "files", "npz"])
def test_texas_is_read_in_every_layout(folder, layout):
    bits, labels = RNG.integers(0, 2, (40, 6169)), np.arange(40) % 100
    feats, marks = _lines(bits), ("\n".join(map(str, labels + 1)) + "\n").encode()
    if layout == "archive":
        _tar(folder / "dataset_texas.tgz", **{"texas/100/labels": marks, "texas/100/feats": feats})
    elif layout == "files":
        (folder / "texas" / "100").mkdir(parents=True)
        (folder / "texas" / "100" / "feats").write_bytes(feats)
        (folder / "texas" / "100" / "labels").write_bytes(marks)
    else:
        np.savez(folder / "texas.npz", x=bits, y=labels)
    np.testing.assert_array_equal(_whole(load("texas")), _sorted(bits, labels))


def test_a_label_beyond_the_classes_is_refused(folder):
    (folder / "bangkok").write_bytes(_lines(RNG.integers(0, 2, (4, 446)), [1, 2, 30, 31]))
    with pytest.raises(DataError, match="1 labels of location are outside its 30 classes"):
        load("location")


def _baskets(records=300, items=700):
    return [np.sort(RNG.choice(items, RNG.integers(1, 20), replace=False)) for _ in range(records)]


def _retail_npz(folder, baskets):
    items = np.concatenate(baskets)
    top = np.sort(np.argsort(-np.bincount(items), kind="stable")[:600]).astype(np.uint16)
    indptr = np.cumsum([0, *map(len, baskets)]).astype(np.int32)
    np.savez(folder / "retail.npz", indptr=indptr, indices=items.astype(np.uint16), n_items=700, top600_items=top)


@pytest.mark.parametrize("end", [".dat", ".dat.gz"])
def test_retail_is_the_same_from_text_and_from_npz(folder, end):
    baskets = _baskets()
    _retail_npz(folder, baskets)
    from_npz = load("retail")
    (folder / "retail.npz").unlink()
    text = "".join(" ".join(map(str, basket)) + " \n" for basket in baskets).encode()
    (folder / f"retail{end}").write_bytes(gzip.compress(text) if end.endswith("gz") else text)
    assert load("retail").train.fingerprint() == from_npz.train.fingerprint()


@pytest.mark.parametrize(("name", "k"), [("retail", 10), ("retail-2", 2), ("retail-20", 20), ("retail-100", 100)])
def test_retail_comes_in_as_many_classes_as_asked_and_says_what_it_is(folder, name, k):
    _retail_npz(folder, _baskets())
    split = load(name)
    assert split.train.classes == k
    assert split.train.public.shape == (600,)
    assert split.train.public.bounds == "data"
    notes = " ".join(split.train.public.notes)
    assert "stand-in for Purchase" in notes
    assert "clusters of these same records" in notes
    assert set(split.train.features.unique().tolist()) == {0.0, 1.0}


def test_the_labels_of_retail_do_not_depend_on_how_it_is_split(folder):
    _retail_npz(folder, _baskets())
    np.testing.assert_array_equal(_whole(load("retail")), _whole(load("retail", seed=5, test_fraction=0.5)))


ADULT_ROW = [
    39,
    "State-gov",
    77516,
    "Bachelors",
    13,
    "Never-married",
    "Adm-clerical",
    "Not-in-family",
    "White",
    "Male",
    2174,
    0,
    40,
]


def _adult_frame(country, incomes):
    rows = [[*ADULT_ROW, country, income] for income in incomes]
    return pd.DataFrame(rows, columns=list(ADULT_COLUMNS))


def test_adult_is_the_same_from_csv_and_from_the_files_of_uci(folder):
    incomes = ["<=50K", ">50K", "<=50K"]
    _adult_frame(None, incomes).to_csv(folder / "adult-train.csv", index=False)
    _adult_frame("Cuba", incomes[1:]).to_csv(folder / "adult-test.csv", index=False)
    from_csv = load("adult")
    for file in folder.iterdir():
        file.unlink()
    lines = [", ".join(map(str, row)) for row in _adult_frame("?", incomes).to_numpy()]
    (folder / "adult.data").write_text("\n".join(lines) + "\n\n")
    test = [", ".join(map(str, row)) + "." for row in _adult_frame("Cuba", incomes[1:]).to_numpy()]
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "\n".join(test) + "\n\n")
    from_uci = load("adult")
    assert from_csv.train.fingerprint() == from_uci.train.fingerprint()
    assert from_csv.test.fingerprint() == from_uci.test.fingerprint()
    assert from_csv.train.public.shape == (107,)
    assert from_uci.train.labels.tolist() == [0, 1, 0]


def test_breast_cancer_needs_no_network_and_has_documented_bounds(folder):
    split = load("breast-cancer")
    assert len(split.train) + len(split.test) == 569
    assert split.train.public.shape == (30,)
    assert split.train.public.classes == ("malignant", "benign")
    assert split.train.public.bounds == "public"
    assert "documentation" in split.train.public.notes[0]
    assert split.remarks == ()
    assert int((split.train.labels == 0).sum() + (split.test.labels == 0).sum()) == 212


def test_a_number_of_breast_cancer_can_be_predicted_within_its_bounds(folder):
    assert load("breast-cancer", target="diagnosis").train.public.target == "diagnosis"
    public = load("breast-cancer", target="mean radius").train.public
    assert (public.task, public.classes, public.outputs) == ("regression", (), 1)
    assert "diagnosis" in {column.name for column in public.columns}
    with pytest.raises(SettingError, match="is a number"):
        load("breast-cancer", target="mean radius", task="classification")


def test_the_real_adult_has_its_own_test_part_and_public_bounds_that_hold(real_data):
    real_data("adult-train.csv")
    split = load("adult", target="income")
    assert (len(split.train), len(split.test)) == (32_561, 16_281)
    assert split.train.public.bounds == "public"
    assert split.train.public.shape == (107,)
    assert split.remarks == ()
    assert int(split.train.labels.sum()) == 7_841
    assert int(split.test.labels.sum()) == 3_846


def test_the_real_adult_is_decoded_as_it_was(real_data):
    path = real_data("adult-train.csv")
    train = load("adult").train
    before = pd.read_csv(path).drop(columns="fnlwgt")
    pd.testing.assert_frame_equal(decode(train.public, train.features, train.labels), before, check_dtype=False)


def test_adult_can_be_asked_for_another_of_its_columns(real_data):
    real_data("adult-train.csv")
    split = load("adult", target="sex")
    assert split.train.public.classes == ("Female", "Male")
    assert "income" in [column.name for column in split.train.public.columns]
    with pytest.raises(SettingError, match="no column 'salary'"):
        load("adult", target="salary")


def test_the_real_location_loads(real_data):
    real_data("location30.npz")
    split = load("location")
    assert len(split.train) + len(split.test) == 5010
    assert split.train.public.notes == ()


def test_the_most_bought_items_of_the_real_baskets_are_those_listed_with_them(real_data):
    arrays = np.load(real_data("retail.npz"))
    lines = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))
    given = top_items(lines, arrays["indices"], 88_162, count=600, top=arrays["top600_items"])
    assert given.shape == (88_162, 600)
    # Ties at the last place may fall either way: what counts is how much was bought.
    assert given.sum() == top_items(lines, arrays["indices"], 88_162, count=600).sum()


@pytest.mark.slow
def test_the_real_retail_loads_in_clusters_of_every_number(real_data):
    real_data("retail.npz")
    for k in (2, 10, 20, 50, 100):
        split = load(f"retail-{k}")
        assert len(split.train) + len(split.test) == 88_162
        assert len(split.train.labels.unique()) == k
