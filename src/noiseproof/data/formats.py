"""Raw formats of published data sets, read without unpickling anything and without unpacking to disk."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from noiseproof.data.files import readable
from noiseproof.errors import DataError

Array: TypeAlias = np.ndarray[Any, Any]
Part: TypeAlias = tuple[Array, Array]

_BLOCK = 1 << 24
"""Bytes of text that are turned into bits at once: bounds memory whatever the file's size."""


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

    Without labels every line is bits alone. Read in blocks, as the text of a large set would not fit in memory.
    """
    bits, labels = [], []
    with readable(path):
        for block in _member_lines(path, member):
            found = _parse_bits(block, features, labelled)
            bits.append(found[0])
            labels.append(found[1])
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


def _member_lines(path: Path, member: str) -> Iterator[bytes]:
    if not member:
        with path.open("rb") as file:
            yield from _lines(file.read)
    else:
        for _, content in _walk(path, [member]):
            yield from _lines(content.read)


def _lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Blocks of whole lines."""
    rest = b""
    while block := read(_BLOCK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
    if rest:
        yield rest + b"\n"


def _parse_bits(block: bytes, features: int, labelled: bool) -> Part:
    text = np.frombuffer(block, np.uint8)
    text = text[(text != ord('"')) & (text != ord("\r")) & (text != ord(" "))]
    ends = np.flatnonzero(text == ord("\n"))
    begins = np.concatenate([[0], ends[:-1] + 1])
    ends, begins = ends[ends > begins], begins[ends > begins]
    width = 2 * features - 1
    starts = ends - width
    if not len(ends) or (starts < begins).any():
        raise ValueError("a line is too short")
    cells = np.lib.stride_tricks.sliding_window_view(text, width)[starts]
    bits = cells[:, ::2] - ord("0")
    if (cells[:, 1::2] != ord(",")).any() or (bits > 1).any():
        raise ValueError("not bits with commas between")
    # What is left of a line before its bits is the label and a comma, or nothing.
    digits = np.maximum(starts - 1 - begins, 0)
    if labelled and ((digits < 1) | (digits > 9) | (text[starts - 1] != ord(","))).any():
        raise ValueError("a line does not start with a label")
    if not labelled and (starts != begins).any():
        raise ValueError("a line is too long")
    labels = np.zeros(len(ends), np.int64)
    for place in range(int(digits.max())):
        digit = text[starts - 2 - place].astype(np.int64) - ord("0")
        digit = np.where(place < digits, digit, 0)
        if ((digit < 0) | (digit > 9)).any():
            raise ValueError("a label is not a whole number")
        labels += digit * 10**place
    return bits, labels
