"""What a stranger's program released, as numbers: JSON, CSV, text, npy, npz and safetensors; never a pickle."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noiseproof.audits.observed import WEIGHTS, Observed, numbers
from noiseproof.errors import DataError

LARGEST = 1 << 26
"""Bytes that a release may have, on disk and unpacked."""
_SINGLE = 512
"""Up to so many numbers are also looked at one by one; more only together."""


def read_release(path: Path) -> Observed:
    """The numbers in a release: each by its name, and all together; its size counts too.

    Args:
        path: The file that a run wrote.

    Returns:
        What can be looked at.

    Raises:
        DataError: If it is too large, of another kind, or not what its ending says; the message holds nothing of it.
    """
    size = path.stat().st_size
    if size > LARGEST:
        raise DataError(f"wrote a release of more than {LARGEST >> 20} MB")
    read = _READERS.get(path.suffix.lower())
    if read is None:
        kinds = ", ".join(sorted(_READERS))
        raise DataError(f"wrote a release that ends in {path.suffix or 'nothing'!r}, not in one of {kinds}")
    try:
        found = read(path)
    except Exception:  # whatever it is: no library says what it raises on bytes that somebody made up
        raise DataError(f"wrote a release that is no {path.suffix.lower().lstrip('.')} that can be read") from None
    together = np.concatenate([value.reshape(-1) for value in found.values()] or [np.zeros(0)]).astype(np.float64)
    together = np.nan_to_num(together, nan=0.0, posinf=1e100, neginf=-1e100).clip(-1e100, 1e100)
    single = {name: value for name, value in found.items() if value.shape == (1,)}
    if len(together) <= _SINGLE:
        single = {
            (name if value.shape == (1,) else f"{name}.{place}"): np.array([number])
            for name, value in found.items()
            for place, number in enumerate(value.reshape(-1).tolist())
        }
    return {**single, "values": np.array([float(len(together))]), "bytes": np.array([float(size)]), WEIGHTS: together}


def _json(path: Path) -> Observed:
    return {name: np.array([value]) for name, value in numbers("release", json.loads(path.read_bytes()))}


def _csv(path: Path) -> Observed:
    import pandas as pd

    frame = pd.read_csv(path)
    numeric = frame.select_dtypes(include=["number", "bool"]).astype(np.float64)
    columns = {str(name): numeric[name].to_numpy() for name in numeric.columns}
    # The rows of synthetic records come in any order, so that no single place tells anything; a column as a whole does.
    whole = {
        f"{name}: {what}": np.array([float(of(values))])
        for name, values in columns.items()
        for what, of in (("mean", np.mean), ("least", np.min), ("most", np.max), ("spread", np.std))
        if len(values) > 1
    }
    return {**columns, **whole, "rows": np.array([float(len(frame))])}


def _text(path: Path) -> Observed:
    return {"release": np.array([float(word) for word in path.read_text().replace(",", " ").split()])}


def _npy(path: Path) -> Observed:
    return {"release": _plain(np.load(path, allow_pickle=False))}


def _npz(path: Path) -> Observed:
    with zipfile.ZipFile(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > LARGEST:
            raise ValueError
    with np.load(path, allow_pickle=False) as held:
        return {name: _plain(held[name]) for name in held.files}


def _safetensors(path: Path) -> Observed:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return {name: _plain(value) for name, value in load_file(path).items()}
    except SafetensorError as error:
        raise ValueError from error


def _plain(array: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(array).astype(np.float64).reshape(-1)


_READERS = {".json": _json, ".csv": _csv, ".txt": _text, ".npy": _npy, ".npz": _npz, ".safetensors": _safetensors}
