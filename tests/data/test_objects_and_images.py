"""Tables in memory, torch datasets and folders of pictures are records like those of a file."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from noiseproof.data import Schema, images, load
from noiseproof.data.lazy import StoredTensor
from noiseproof.errors import DataError, SettingError

SCHEMA = Schema.model_validate(
    {"columns": {"age": {"low": 0, "high": 100}}, "target": {"name": "ill", "classes": ["no", "yes"]}}
)


def _frame(rows=80):
    generator = np.random.default_rng(0)
    return pd.DataFrame({"age": generator.integers(0, 100, rows), "ill": generator.choice(["no", "yes"], rows)})


class Foreign:
    """A table as Hugging Face's datasets give it."""

    def to_pandas(self):
        return _frame()


def test_a_table_in_memory_or_of_another_library_is_that_of_a_file(tmp_path):
    _frame().to_csv(tmp_path / "a.csv", index=False)
    expected = load(tmp_path / "a.csv", schema=SCHEMA).train.fingerprint()
    assert load(_frame(), schema=SCHEMA).train.fingerprint() == expected
    assert load(Foreign(), schema=SCHEMA).train.fingerprint() == expected
    assert load(_frame(), target="ill").train.public.bounds == "data"
    with pytest.raises(SettingError, match="say which column"):
        load(_frame())
    with pytest.raises(SettingError, match="from a int"):
        load(3)


def test_a_torch_dataset_is_read_once():
    pairs = torch.utils.data.TensorDataset(torch.rand(40, 3), torch.arange(40) % 2)
    assert len(load(pairs).train) + len(load(pairs).test) == 40


@pytest.fixture
def pictures(tmp_path):
    generator = np.random.default_rng(0)
    for name, ending in (("cats", "png"), ("dogs", "jpg")):
        (tmp_path / name).mkdir()
        for number in range(12):
            shape = (20, 30, 3) if number % 2 else (20, 30)
            colours = generator.integers(0, 256, shape).astype(np.uint8)
            Image.fromarray(colours).save(tmp_path / name / f"{number}.{ending}")
    return tmp_path


def test_a_folder_of_pictures_has_its_folders_as_classes(pictures, monkeypatch):
    made = images.open_images(pictures, size=8)
    assert made.public.classes == ("cats", "dogs")
    assert made.features.shape == (24, 3, 8, 8)
    assert made.features.min() >= 0
    assert made.features.max() <= 1
    assert len(load(pictures, image_size=8).train) + len(load(pictures, image_size=8).test) == 24
    monkeypatch.setattr(images, "SMALL", 0)
    streamed = images.open_images(pictures, size=8)
    assert isinstance(streamed.features, StoredTensor)
    assert streamed.features[torch.tensor([3, 20])].equal(made.features[[3, 20]])
    assert streamed.identities().tolist() == made.identities().tolist()


def test_a_broken_picture_and_one_class_are_refused(pictures):
    (pictures / "dogs" / "3.jpg").write_bytes(b"secret")
    with pytest.raises(DataError, match="corrupt"):
        load(pictures)
    for file in (pictures / "dogs").iterdir():
        file.unlink()
    (pictures / "dogs").rmdir()
    with pytest.raises(DataError, match="one class only"):
        load(pictures)
