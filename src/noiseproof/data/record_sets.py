"""Named sets of tables and of binary records: Adult, breast cancer, Location, Purchase, Texas, and retail baskets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.data.files import csv_types, read_csv, read_npz, read_table, readable
from noiseproof.data.formats import Part, read_baskets, read_bits, read_numbers, top_items
from noiseproof.data.named import Download, Layout, NamedSet, numbered
from noiseproof.data.schema import built_in
from noiseproof.errors import SettingError

if TYPE_CHECKING:
    import pandas as pd


CLUSTERS = (2, 10, 20, 50, 100)
"""Into how many classes the shopping baskets of `retail` can be had, as with Purchase."""


def record_sets() -> list[NamedSet]:
    """Every named set of tables and of binary records."""
    sets = [_breast_cancer(), _adult(), _location(), _purchase(), _texas(), _retail("retail", 10)]
    return sets + [_retail(f"retail-{k}", k) for k in CLUSTERS]


def _breast_cancer() -> NamedSet:
    notes = ("the bounds are the minima and maxima that the set's documentation prints, to their last digit.",)
    layout = Layout((), _read_breast_cancer, ("",))
    classes = built_in("breast-cancer").classes
    return NamedSet("breast-cancer", (569,), (30,), classes, "table", (layout,), notes=notes, table=True)


def _read_breast_cancer(paths: Sequence[Path]) -> list[pd.DataFrame]:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer(as_frame=True)
    return [found.data.assign(diagnosis=np.array(found.target_names)[found.target])]


def _read_npz(paths: Sequence[Path]) -> list[Part]:
    arrays = read_npz(paths[0])
    with readable(paths[0]):
        return [(arrays["x"], arrays["y"])]


def _adult() -> NamedSet:
    base = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
    files = ("adult.data", "adult.test")
    digests = (
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    )
    schema = built_in("adult")
    return NamedSet(
        name="adult",
        sizes=(32_561, 16_281),
        shape=(sum(column.width for column in schema.features()),),
        classes=schema.classes,
        kind="table",
        layouts=(
            Layout(("adult-train.csv", "adult-test.csv"), _read_adult_csv, ("", "adult")),
            Layout(files, _read_adult_data, ("", "adult")),
        ),
        downloads=tuple(Download(file, f"{base}/{file}", digest) for file, digest in zip(files, digests, strict=True)),
        how=f"{' and '.join(files)} of https://archive.ics.uci.edu/dataset/2/adult",
        notes=ADULT_NOTES,
        table=True,
    )


ADULT_NOTES = ("bounds and categories are those documented for Adult; its survey weight (fnlwgt) is left out.",)
ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
)


def _read_adult_csv(paths: Sequence[Path]) -> list[pd.DataFrame]:
    return [read_table(path, built_in("adult")) for path in paths]


def _read_adult_data(paths: Sequence[Path]) -> list[pd.DataFrame]:
    """The files as UCI has them: no header, a first line that starts with a bar, a full stop after the test labels."""
    options = {"header": None, "names": list(ADULT_COLUMNS), "comment": "|", **csv_types(built_in("adult"))}
    frames = [read_csv(path, **options) for path in paths]
    return [frame.assign(income=frame["income"].str.removesuffix(".")) for frame in frames]


def _trust_lab(file: str) -> Download:
    return Download(file, f"https://github.com/privacytrustlab/datasets/raw/master/{file}")


def _how_trust_lab(file: str) -> str:
    return f"{file} of https://github.com/privacytrustlab/datasets"


def _location() -> NamedSet:
    archive, classes, features = "dataset_location.tgz", 30, 446

    def from_packed(paths: Sequence[Path]) -> list[Part]:
        arrays = read_npz(paths[0])
        with readable(paths[0]):
            return [(np.unpackbits(arrays["x_packed"], axis=1, count=int(arrays["n_features"])), arrays["y"])]

    return NamedSet(
        name="location",
        sizes=(5_010,),
        shape=(features,),
        classes=numbered(classes),
        kind="vector",
        layouts=(
            Layout(("location30.npz",), from_packed, ("", "location"), ("y",)),
            Layout((archive,), partial(_read_labelled, features=features, member="bangkok"), ("", "location")),
            Layout(("bangkok",), partial(_read_labelled, features=features), ("", "location")),
        ),
        downloads=(_trust_lab(archive),),
        how=_how_trust_lab(archive),
    )


def _purchase() -> NamedSet:
    archive, features = "dataset_purchase.tgz", 600
    return NamedSet(
        name="purchase",
        sizes=(197_324,),
        shape=(features,),
        classes=numbered(100),
        kind="vector",
        layouts=(
            Layout(("purchase.npz",), _read_npz, ("", "purchase"), ("y",)),
            Layout((archive,), partial(_read_labelled, features=features, member="dataset_purchase"), ("", "purchase")),
            Layout(("dataset_purchase",), partial(_read_labelled, features=features), ("", "purchase")),
        ),
        downloads=(_trust_lab(archive),),
        how=_how_trust_lab(archive),
    )


def _read_labelled(paths: Sequence[Path], *, features: int, member: str = "") -> list[Part]:
    bits, labels = read_bits(paths[0], features, member=member)
    return [(bits, labels - 1)]


def _texas() -> NamedSet:
    archive, features = "dataset_texas.tgz", 6_169
    feats, labels = "texas/100/feats", "texas/100/labels"

    def from_archive(paths: Sequence[Path]) -> list[Part]:
        bits, _ = read_bits(paths[0], features, member=feats, labelled=False)
        return [(bits, read_numbers(paths[0], member=labels) - 1)]

    def from_files(paths: Sequence[Path]) -> list[Part]:
        return [(read_bits(paths[0], features, labelled=False)[0], read_numbers(paths[1]) - 1)]

    return NamedSet(
        name="texas",
        sizes=(67_330,),
        shape=(features,),
        classes=numbered(100),
        kind="vector",
        layouts=(
            Layout(("texas.npz",), _read_npz, ("", "texas"), ("y",)),
            Layout((archive,), from_archive, ("", "texas")),
            Layout((feats, labels), from_files, ("", "texas")),
        ),
        downloads=(_trust_lab(archive),),
        how=_how_trust_lab(archive),
    )


def _retail(name: str, k: int) -> NamedSet:
    def labelled(bits: np.ndarray[Any, Any]) -> list[Part]:
        return [(bits, cluster_labels(bits, k))]

    def from_npz(paths: Sequence[Path]) -> list[Part]:
        arrays = read_npz(paths[0])
        with readable(paths[0]):
            baskets = len(arrays["indptr"]) - 1
            lines = np.repeat(np.arange(baskets), np.diff(arrays["indptr"]))
            bits = top_items(lines, arrays["indices"], baskets, count=_ITEMS, top=arrays["top600_items"])
        return labelled(bits)

    def from_text(paths: Sequence[Path]) -> list[Part]:
        return labelled(top_items(*read_baskets(paths[0]), count=_ITEMS))

    places = ("", "retail")
    return NamedSet(
        name=name,
        family="retail",
        bounds="data",
        sizes=(88_162,),
        shape=(_ITEMS,),
        classes=numbered(k),
        kind="vector",
        layouts=(
            Layout(("retail.npz",), from_npz, places),
            Layout(("retail.dat.gz",), from_text, places),
            Layout(("retail.dat",), from_text, places),
        ),
        downloads=(Download("retail.dat.gz", "https://fimi.uantwerpen.be/data/retail.dat.gz"),),
        how="retail.dat.gz of https://fimi.uantwerpen.be/data",
        notes=(
            "retail (shopping baskets) is a stand-in for Purchase, not Purchase itself.",
            "which items are features, and the labels (k-means clusters of these same records), were read off the "
            "records, which no guarantee accounts for.",
        ),
    )


_ITEMS = 600


# Labels for records that have none, by clustering them.


def cluster_labels(features: np.ndarray[Any, Any], k: int, *, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """One of `k` labels a record, by k-means (in mini-batches, so that large sets take seconds).

    Formal guarantee
    ----------------
    None: every label depends on all the records. Whatever is proven of a method that is trained on these labels is
    proven for the labelled records as they are, not for the clustering that labelled them.
    """
    from sklearn.cluster import MiniBatchKMeans

    if not 2 <= k <= len(features):
        raise SettingError(f"{len(features)} records cannot be put into {k} clusters.")
    # Random starts, not k-means++: that starts at outliers, and a few huge baskets would become classes of one record.
    means = MiniBatchKMeans(k, init="random", batch_size=4096, n_init=3, random_state=seed)
    labels: np.ndarray[Any, np.dtype[np.int64]] = means.fit_predict(features.astype(np.float32)).astype(np.int64)
    return labels
