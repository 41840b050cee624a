"""Folders of pictures, `folder/class/*.jpg`, read from disk when they are looked at."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.formats import readable
from noiseproof.data.lazy import SMALL, Rows, StoredTensor
from noiseproof.errors import DataError, MissingPartError

ENDINGS = (".jpg", ".jpeg", ".png")
NOTE = "the classes are the names of the folders that the pictures lie in, which are taken for public."


def is_image_folder(path: Path) -> bool:
    """Whether a folder holds folders of pictures, one a class."""
    return path.is_dir() and any(_pictures(folder) for folder in path.iterdir() if folder.is_dir())


def open_images(path: Path, *, size: int = 32) -> Dataset:
    """The pictures of a folder of classes, in colour and brought to one public size.

    Few are read into memory; many stay on disk and are read, and decoded, as they are drawn.

    Args:
        path: A folder with one folder a class.
        size: Height and width that every picture is scaled to.

    Returns:
        The records, in the order of classes and names.

    Raises:
        DataError: If there are fewer than two classes, or a picture cannot be read.
        MissingPartError: If Pillow is not installed.

    Formal guarantee
    ----------------
    Each picture is decoded and scaled by itself, so that neighbouring folders are coded as neighbouring data sets. Names of
    files are read to find them and go nowhere.
    """
    if find_spec("PIL") is None:
        raise MissingPartError("pictures need one more part: pip install 'noiseproof[images]'.")
    classes = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files = [(file, label) for label, folder in enumerate(classes) for file in _pictures(folder)]
    if len(classes) < 2:
        raise DataError(f"{path} has pictures of one class only; put each class into a folder of its own.")
    public = Public((3, size, size), tuple(folder.name for folder in classes), kind="image", notes=(NOTE,))
    features = StoredTensor(ImageFiles([file for file, _ in files], size))
    labels = torch.tensor([label for _, label in files])
    small = features.numel() * 4 <= SMALL
    return Dataset(path.name, features.read() if small else features, labels, public)


class ImageFiles:
    """Pictures as a source of records: each is decoded, brought to RGB and scaled when it is read."""

    def __init__(self, files: list[Path], size: int) -> None:
        self._files, self._size = files, size
        self.shape: tuple[int, ...] = (len(files), 3, size, size)

    def read(self, rows: Rows) -> torch.Tensor:
        """The pictures at these places, in [0, 1]."""
        from PIL import Image

        out = np.empty((len(rows), *self.shape[1:]), np.float32)
        for place, row in enumerate(rows):
            with readable(self._files[row].parent), Image.open(self._files[row]) as picture:
                scaled = picture.convert("RGB").resize((self._size, self._size), Image.Resampling.BILINEAR)
                out[place] = np.asarray(scaled, np.float32).transpose(2, 0, 1) / 255
        return torch.from_numpy(out)


def _pictures(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS)
