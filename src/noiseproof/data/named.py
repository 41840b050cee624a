"""Named sets: what is public about each published set (`sets.json`), and the readers of the files it comes in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union

import numpy as np
from pydantic import BeforeValidator, TypeAdapter

from noiseproof.data.dataset import Kind
from noiseproof.data.formats import (
    Part,
    csv_types,
    parse_cifar,
    read_baskets,
    read_bits,
    read_csv,
    read_idx,
    read_members,
    read_npz,
    read_numbers,
    read_svhn,
    read_table,
    readable,
    top_items,
)
from noiseproof.data.schema import built_in
from noiseproof.errors import SettingError

if TYPE_CHECKING:
    import pandas as pd

Records: TypeAlias = Union[Part, "pd.DataFrame"]
Paths: TypeAlias = Sequence[Path]

CLUSTERS = (2, 10, 20, 50, 100)
"""Into how many classes the shopping baskets of `retail` can be had, as with Purchase."""


def _numbered(classes: Any) -> Any:
    """A number of classes stands for classes that are called by their numbers."""
    return tuple(map(str, range(classes))) if isinstance(classes, int) else classes


@dataclass(frozen=True)
class Download:
    """A file of a published set: its name, where it is, and its SHA-256 digest where that is publicly known.

    Where none is known, the digest of the first download is written beside the file and later reads are held against
    it: that tells a file that changed on disk, not one that was wrong from the start.
    """

    file: str
    url: str
    sha256: str | None = None


@dataclass(frozen=True)
class Layout:
    """Files in which a set may come, and the name of what reads them."""

    reader: str
    files: tuple[str, ...]
    folders: tuple[str, ...]
    """Where under a data folder the files may lie."""
    members: tuple[str, ...] = ()
    """Members to read, if the file is an archive."""
    counts: tuple[str, ...] = ()
    """Arrays of an npz file whose lengths tell how many records a copy has."""


@dataclass(frozen=True)
class NamedSet:
    """A published data set: everything here is known without looking at a record."""

    name: str
    kind: Kind
    sizes: tuple[int, ...]
    """Records of the training and the test part, or of the whole where the set has no test part of its own."""
    shape: tuple[int, ...]
    classes: Annotated[tuple[str, ...], BeforeValidator(_numbered)]
    layouts: tuple[Layout, ...]
    high: float = 1.0
    """The largest value of a feature as it is in the files (the least is 0); tables have their schema instead."""
    downloads: tuple[Download, ...] = ()
    how: str = "comes with scikit-learn"
    notes: tuple[str, ...] = ()
    bounds: Literal["public", "data"] = "public"
    """`data` where features or classes were chosen by looking at the records, as clusters are."""
    family: str | None = None
    """The set whose files it shares, if it is a variant of one."""

    @property
    def folder(self) -> str:
        """Its own folder under a data folder or the cache."""
        return self.family or self.name

    def read(self, layout: Layout, paths: Paths) -> Sequence[Records]:
        """The records in files of one of its layouts: the training part, then the test part if there is one."""
        return _READERS[layout.reader](self, layout, paths)


@cache
def named_sets() -> Mapping[str, NamedSet]:
    """Every named set by its name, the variants of `retail` last."""
    content = resources.files("noiseproof.data").joinpath("sets.json").read_bytes()
    sets = {known.name: known for known in TypeAdapter(list[NamedSet]).validate_json(content)}
    for k in CLUSTERS:
        variant = replace(sets["retail"], name=f"retail-{k}", family="retail", classes=_numbered(k))
        sets[variant.name] = variant
    return MappingProxyType(sets)


def cluster_labels(features: np.ndarray[Any, Any], k: int, *, seed: int = 0) -> np.ndarray[Any, np.dtype[np.int64]]:
    """One of `k` labels a record, by k-means (in mini-batches, so that large sets take seconds).

    Args:
        features: Records without labels, (records, features).
        k: How many labels.
        seed: Where the clusters start.

    Returns:
        A label from 0 to k - 1 for each record.

    Raises:
        SettingError: If there are fewer than 2 clusters, or more than records.

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


# The readers that `sets.json` names.


ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
)


def _digits(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return [(found.images, found.target)]


def _breast_cancer(known: NamedSet, layout: Layout, paths: Paths) -> list[pd.DataFrame]:
    from sklearn.datasets import load_breast_cancer

    found = load_breast_cancer(as_frame=True)
    return [found.data.assign(diagnosis=np.array(found.target_names)[found.target])]


def _arrays(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    arrays = read_npz(paths[0])
    with readable(paths[0]):
        return [
            (arrays[f"x{end}"], arrays[f"y{end}"]) for end in (("_train", "_test") if len(known.sizes) > 1 else ("",))
        ]


def _idx(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    images, labels, test_images, test_labels = map(read_idx, paths)
    return [(images, labels), (test_images, test_labels)]


def _cifar(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    with readable(paths[0] if layout.members else paths[0].parent):
        contents = read_members(paths[0], layout.members) if layout.members else [path.read_bytes() for path in paths]
        # CIFAR-100 has a coarse label before the fine one.
        labels = 2 if len(known.classes) == 100 else 1
        return [parse_cifar(contents[:-1], labels), parse_cifar(contents[-1:], labels)]


def _adult_csv(known: NamedSet, layout: Layout, paths: Paths) -> list[pd.DataFrame]:
    return [read_table(path, built_in("adult")) for path in paths]


def _adult_uci(known: NamedSet, layout: Layout, paths: Paths) -> list[pd.DataFrame]:
    """The files as UCI has them: no header, a first line that starts with a bar, a full stop after the test labels."""
    options = {"header": None, "names": list(ADULT_COLUMNS), "comment": "|", **csv_types(built_in("adult"))}
    frames = [read_csv(path, **options) for path in paths]
    return [frame.assign(income=frame["income"].str.removesuffix(".")) for frame in frames]


def _packed_bits(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    arrays = read_npz(paths[0])
    with readable(paths[0]):
        return [(np.unpackbits(arrays["x_packed"], axis=1, count=int(arrays["n_features"])), arrays["y"])]


def _labelled_bits(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    bits, labels = read_bits(paths[0], known.shape[0], member="".join(layout.members))
    return [(bits, labels - 1)]


def _bits_and_labels(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    members = layout.members or ("", "")
    bits, _ = read_bits(paths[0], known.shape[0], member=members[0], labelled=False)
    return [(bits, read_numbers(paths[-1], member=members[1]) - 1)]


def _baskets(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    if paths[0].suffix == ".npz":
        arrays = read_npz(paths[0])
        with readable(paths[0]):
            baskets = len(arrays["indptr"]) - 1
            lines = np.repeat(np.arange(baskets), np.diff(arrays["indptr"]))
            bits = top_items(lines, arrays["indices"], baskets, count=known.shape[0], top=arrays["top600_items"])
    else:
        bits = top_items(*read_baskets(paths[0]), count=known.shape[0])
    return [(bits, cluster_labels(bits, len(known.classes)))]


_READERS: dict[str, Callable[[NamedSet, Layout, Paths], Sequence[Records]]] = {
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "arrays": _arrays,
    "idx": _idx,
    "cifar": _cifar,
    "svhn": lambda known, layout, paths: [read_svhn(path) for path in paths],
    "adult_csv": _adult_csv,
    "adult_uci": _adult_uci,
    "packed_bits": _packed_bits,
    "labelled_bits": _labelled_bits,
    "bits_and_labels": _bits_and_labels,
    "baskets": _baskets,
}
