"""Published sets as their authors distribute them: raw formats, and the readers that `sets.json` names.

Nothing is unpickled, and no archive is unpacked to disk.
"""

from __future__ import annotations

import contextlib
import gzip
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from noiseproof.data.formats import Array, csv_types, read_csv, read_npz, read_table, readable
from noiseproof.data.schema import built_in
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.data.named import Layout, NamedSet

Part: TypeAlias = tuple[Array, Array]
Records: TypeAlias = Union[Part, "pd.DataFrame"]
Paths: TypeAlias = Sequence[Path]

_ROWS = 1 << 13
"""Lines of bits that are read at once: bounds memory whatever the file's size."""

ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
)


def read_idx(path: Path) -> Array:
    """An array in MNIST's idx format, gzipped or not."""
    with readable(path), _open(path) as file:
        content = file.read()
        dimensions = content[3]
        if content[:3] != b"\x00\x00\x08":
            raise ValueError("not an idx file of bytes")
        shape = np.frombuffer(content, ">u4", dimensions, 4)
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
        return values.reshape(shape)


def read_members(path: Path, wanted: Sequence[str]) -> list[bytes]:
    """The contents of members of a tar archive."""
    with readable(path):
        contents = {name: file.read() for name, file in _walk(path, wanted)}
        return [contents[name] for name in wanted]


def parse_cifar(contents: Sequence[bytes], labels: int) -> Part:
    """CIFAR's binary version: `labels` label bytes, of which the last counts, then 3 x 32 x 32 bytes a record."""
    rows = np.concatenate([np.frombuffer(content, np.uint8).reshape(-1, labels + 3072) for content in contents])
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].astype(np.int64)


def read_svhn(path: Path) -> Part:
    """SVHN's cropped digits in Matlab's format, where the digit 0 is labelled 10."""
    from scipy.io import loadmat

    with readable(path):
        content = loadmat(path, variable_names=["X", "y"])
        return np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1)), content["y"].reshape(-1).astype(np.int64) % 10


def read_bits(path: Path, features: int, *, member: str = "", labelled: bool = True) -> Part:
    """Lines of `label,bit,bit,...` (the label perhaps quoted), from a text file or a member of a tar archive.

    Without labels every line is bits alone. Read in blocks, as a large set as 64-bit numbers would not fit in memory.
    """
    import pandas as pd

    bits, labels = [], []
    with readable(path), _member(path, member) as file:
        for frame in pd.read_csv(file, header=None, chunksize=_ROWS, skipinitialspace=True, dtype=np.int64):
            cells = frame.to_numpy()
            if cells.shape[1] != features + labelled or cells.min() < 0 or cells[:, int(labelled) :].max() > 1:
                raise ValueError("not a label and bits")
            bits.append(cells[:, int(labelled) :].astype(np.uint8))
            labels.append(cells[:, 0])
        return np.concatenate(bits), np.concatenate(labels)


def read_numbers(path: Path, *, member: str = "") -> Array:
    """One whole number a line, from a text file or a member of a tar archive."""
    with readable(path):
        content = read_members(path, [member])[0] if member else path.read_bytes()
        return np.array(content.split(), dtype=np.int64)


def read_baskets(path: Path) -> tuple[Array, Array, int]:
    """Shopping baskets, one a line of item numbers: each purchase's basket and item, and how many baskets."""
    with readable(path), _open(path) as file:
        text = np.frombuffer(file.read(), np.uint8)
        digit = (text >= 48) & (text <= 57)
        if not (digit | np.isin(text, [9, 10, 13, 32])).all():
            raise ValueError("not lines of numbers")
        starts = digit & ~np.concatenate([[False], digit[:-1]])
        lines = np.cumsum(text == 10)
        baskets = int(lines[-1]) + (text[-1] != 10)
        return lines[starts], np.array(text.tobytes().split(), dtype=np.int64), baskets


def top_items(lines: Array, items: Array, baskets: int, *, count: int, top: Array | None = None) -> Array:
    """One row of bits a basket: which of the `count` most bought items (or of the given ones) it holds."""
    if top is None:
        bought = np.bincount(items)
        top = np.sort(np.argsort(-bought, kind="stable")[:count])
        top = top[bought[top] > 0]
    if len(top) != count:
        raise DataError(f"there are {len(top)} different items in the baskets, fewer than the {count} wanted.")
    column = np.full(max(int(items.max()), int(top.max())) + 1, -1)
    column[top] = np.arange(count)
    kept = column[items] >= 0
    bits = np.zeros((baskets, count), np.uint8)
    bits[lines[kept], column[items[kept]]] = 1
    return bits


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _walk(path: Path, wanted: Sequence[str]) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted members of a tar archive as they come, in one pass: going back would decompress all over again."""
    found = set()
    with tarfile.open(path, "r|*") as archive:
        for info in archive:
            # Archives differ in whether names start with "./"; nothing is written to disk, so names can do no harm.
            name = info.name.removeprefix("./")
            file = archive.extractfile(info) if name in wanted else None
            if file is not None:
                found.add(name)
                yield name, file
    if len(found) < len(wanted):
        raise KeyError("a member is not in the archive")


@contextlib.contextmanager
def _member(path: Path, member: str) -> Iterator[IO[bytes]]:
    """A text file, or a member of a tar archive."""
    if not member:
        with path.open("rb") as file:
            yield file
    else:
        for _, content in _walk(path, [member]):
            yield content


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

    Examples:
        >>> import numpy as np
        >>> from noiseproof.data import cluster_labels
        >>> baskets = np.random.default_rng(0).integers(0, 2, (200, 10))
        >>> labels = cluster_labels(baskets, 5)
        >>> labels.shape, set(labels) <= set(range(5))
        ((200,), True)
    """
    from sklearn.cluster import MiniBatchKMeans

    if not 2 <= k <= len(features):
        raise SettingError(f"{len(features)} records cannot be put into {k} clusters.")
    # Random starts, not k-means++: that starts at outliers, and a few huge baskets would become classes of one record.
    means = MiniBatchKMeans(k, init="random", batch_size=4096, n_init=3, random_state=seed)
    labels: np.ndarray[Any, np.dtype[np.int64]] = means.fit_predict(features.astype(np.float32)).astype(np.int64)
    return labels


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
    options: dict[str, Any] = {
        "separator": ",",
        "header": None,
        "names": list(ADULT_COLUMNS),
        "comment": "|",
        **csv_types(built_in("adult")),
    }
    frames = [read_csv(path, **options) for path in paths]
    return [frame.assign(income=frame["income"].str.removesuffix(".")) for frame in frames]


def _packed_bits(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    arrays = read_npz(paths[0])
    with readable(paths[0]):
        return [(np.unpackbits(arrays["x_packed"], axis=1, count=int(arrays["n_features"])), arrays["y"])]


def _labelled_bits(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    bits, labels = read_bits(paths[0], known.shape[0], member="".join(layout.members))
    return [(bits, labels - 1)]


def _svhn(known: NamedSet, layout: Layout, paths: Paths) -> list[Part]:
    *training, test = (read_svhn(path) for path in paths)
    images, labels = (np.concatenate(parts) for parts in zip(*training, strict=True))
    return [(images, labels), test]


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


READERS: dict[str, Callable[[NamedSet, Layout, Paths], Sequence[Records]]] = {
    "digits": _digits,
    "breast_cancer": _breast_cancer,
    "arrays": _arrays,
    "idx": _idx,
    "cifar": _cifar,
    "svhn": _svhn,
    "adult_csv": _adult_csv,
    "adult_uci": _adult_uci,
    "packed_bits": _packed_bits,
    "labelled_bits": _labelled_bits,
    "bits_and_labels": _bits_and_labels,
    "baskets": _baskets,
}
