"""Synthetic records on disk: a table as CSV or Parquet, pictures as npz with a contact sheet, each with its card."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from noiseproof.data.dataset import Dataset
from noiseproof.data.tables import decode
from noiseproof.errors import SettingError
from noiseproof.releases import DataRelease

_SHEET_ROWS = 10


def card_path(out: Path) -> Path:
    """Where the card of a file of records lies: beside it."""
    return out.with_name(out.name + ".card.json")


def sheet_path(out: Path) -> Path:
    """Where the contact sheet of a file of pictures lies."""
    return out.with_name(out.name + ".png")


def check_target(out: Path, dataset: Dataset) -> None:
    """Refuse, before any budget is spent, a file that could not be written or does not suit the records."""
    table = dataset.public.kind == "table"
    fitting = (".csv", ".parquet") if table else (".npz",)
    if out.suffix not in fitting:
        what = "a table is written as" if table else "records that are no table are written as"
        raise SettingError(f"{what} {' or '.join(fitting)}, not {out.name}; rename --out.")
    if out.is_dir():
        raise SettingError(f"{out} is a folder; give a file.")
    if not out.parent.is_dir():
        raise SettingError(f"there is no folder {out.parent}; make it, or choose another --out.")


def write(release: DataRelease, out: Path) -> list[Path]:
    """Write the records, their card and, of pictures, a contact sheet; the files written."""
    records = release.dataset
    if out.suffix == ".csv":
        decode(records.public, records.features, records.labels).to_csv(out, index=False)
    elif out.suffix == ".parquet":
        decode(records.public, records.features, records.labels).to_parquet(out, index=False)
    else:
        np.savez_compressed(
            out, x=records.features.numpy(), y=records.labels.numpy(), class_names=np.array(records.public.classes)
        )
    written = [out, card_path(out)]
    card_path(out).write_text(release.card.to_json() + "\n", encoding="utf-8")
    if _is_picture(records):
        written.append(write_sheet(records, sheet_path(out)))
    return written


def contact_sheet(dataset: Dataset, rows: int = _SHEET_ROWS) -> torch.Tensor:
    """Pictures side by side, one column a class, `rows` of each: (height, width, 3) in [0, 1]."""
    depth, height, width = dataset.public.shape
    sheet = torch.ones(dataset.classes, rows, depth, height + 2, width + 2)
    for place in range(dataset.classes):
        found = dataset.features[dataset.labels == place][:rows]
        sheet[place, : len(found), :, 1:-1, 1:-1] = found
    joined = sheet.permute(1, 3, 0, 4, 2).reshape(rows * (height + 2), dataset.classes * (width + 2), depth)
    return joined[:, :, :3] if depth >= 3 else joined[:, :, :1].expand(-1, -1, 3)


def write_sheet(dataset: Dataset, path: Path) -> Path:
    """Write the contact sheet as a PNG, three pixels for one."""
    from matplotlib.image import imsave

    pixels = contact_sheet(dataset).clamp(0, 1).numpy().repeat(3, axis=0).repeat(3, axis=1)
    imsave(path, pixels)
    return path


def _is_picture(dataset: Dataset) -> bool:
    return dataset.public.kind == "image" and len(dataset.public.shape) == 3
