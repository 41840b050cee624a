"""Apply a feature map to a data set, once: the result is kept on disk under the content it came from."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from noiseproof.data.dataset import Dataset
from noiseproof.data.features.maps import FeatureMap
from noiseproof.data.fetch import cache_folder
from noiseproof.progress import SILENT, Progress

VERSION = 1
"""Raised when a map's result changes, so that old files are not taken for new ones."""


def apply(dataset: Dataset, feature_map: FeatureMap, *, cache: bool = True, progress: Progress = SILENT) -> Dataset:
    """The data set with mapped features; labels and what is public stay.

    With `cache` the features are read from, or written to, the cache folder (private records: it is readable by its
    owner alone), under a hash of the records and the map.

    Formal guarantee
    ----------------
    None is needed: see `FeatureMap`.
    """
    public = replace(dataset.public, shape=feature_map.shape(dataset.public.shape), kind="vector", columns=())
    path = _path(dataset, feature_map) if cache else None
    features = _read(path, (len(dataset), *public.shape)) if path is not None else None
    if features is None:
        features = feature_map(dataset.features, progress)
        if path is not None:
            _write(path, features)
    return Dataset(dataset.name, features, dataset.labels, public)


def _path(dataset: Dataset, feature_map: FeatureMap) -> Path:
    key = f"{VERSION} {feature_map!r} {dataset.fingerprint()}"
    return cache_folder() / "features" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"


def _read(path: Path, shape: tuple[int, ...]) -> torch.Tensor | None:
    if not path.is_file():
        return None
    try:
        features = load_file(path)["features"]
    except (SafetensorError, KeyError, OSError):
        return None
    return features if tuple(features.shape) == shape else None


def _write(path: Path, features: torch.Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    staging = path.with_suffix(f".{os.getpid()}")
    save_file({"features": features.contiguous()}, staging)
    staging.chmod(0o600)
    staging.replace(path)
