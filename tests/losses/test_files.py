"""Synthetic records on disk."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread

from noiseproof.errors import SettingError
from noiseproof.guarantees import Card
from noiseproof.losses import files
from noiseproof.releases import DataRelease

CARD = Card(method="dp-gan", place="losses", neighbours="add-or-remove", randomness="reproducible", why="a test")


def test_a_table_is_written_as_it_came_with_its_card_beside_it(table, tmp_path):
    for name in ("made.csv", "made.parquet"):
        out = tmp_path / name
        written = files.write(DataRelease(table, CARD, {}), out)
        assert written == [out, tmp_path / f"{name}.card.json"]
        frame = pd.read_csv(out) if name.endswith("csv") else pd.read_parquet(out)
        assert list(frame.columns) == ["age", "city", "money", "same", "income"]
        assert len(frame) == len(table)
        assert Card.from_json(written[1].read_text()) == CARD


def test_pictures_come_with_a_contact_sheet(pictures, tmp_path):
    written = files.write(DataRelease(pictures, CARD, {}), tmp_path / "made.npz")
    with np.load(written[0]) as arrays:
        assert arrays["x"].shape == (400, 1, 8, 8)
        assert list(arrays["class_names"]) == ["upper", "lower"]
    assert imread(written[2]).shape[:2] == (10 * 10 * 3, 2 * 10 * 3)


def test_the_sheet_has_one_column_a_class(pictures):
    sheet = files.contact_sheet(pictures.take(torch.arange(2)), rows=1)
    assert float(sheet[1:5, 1:9].mean()) > float(sheet[5:9, 1:9].mean())
    assert float(sheet[1:5, 11:19].mean()) < float(sheet[5:9, 11:19].mean())


@pytest.mark.parametrize(("name", "words"), [("made.npz", "csv"), ("folder/made.csv", "folder"), ("made.txt", "csv")])
def test_a_file_that_could_not_be_written_is_refused_at_once(table, tmp_path, name, words):
    with pytest.raises(SettingError, match=words):
        files.check_target(tmp_path / name, table)
