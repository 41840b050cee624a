"""Records on disk are what they would be in memory, and are sampled one by one."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof.data import Dataset, from_arrays, load
from noiseproof.data.lazy import MappedArray, StoredTensor
from noiseproof.data.splits import sides
from noiseproof.errors import DataError, SettingError
from noiseproof.run.training import train

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    """300 little images of bytes in three classes."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (300, 6, 5), dtype=np.uint8)
    labels = generator.integers(0, 3, 300)
    np.save(tmp_path / "x.npy", images)
    np.save(tmp_path / "y.npy", labels)
    (tmp_path / "public.json").write_text(json.dumps({"classes": 3}))
    return tmp_path, from_arrays(images, labels, classes=3)


def everything(folder: Path) -> StoredTensor:
    return StoredTensor(MappedArray(folder / "x.npy", np.zeros(()), np.full((), 255.0)))


def test_stored_records_are_those_in_memory(folder):
    path, memory = folder
    split = load(path, seed=3)
    assert split.train.public == memory.public
    kept, held = (places.sort().values for places in sides(memory, 3, 0.25, "add-or-remove"))
    assert torch.equal(split.train.features[torch.arange(len(kept))], memory.features[kept])
    assert torch.equal(split.train.labels, memory.labels[kept])
    assert torch.equal(split.test.labels, memory.labels[held])


@pytest.mark.parametrize(
    "look",
    [
        lambda x: x[torch.tensor([5, 0, -1, 5])],
        lambda x: x[torch.zeros(300, dtype=torch.bool).index_fill_(0, torch.tensor([3, 7]), True)],
        lambda x: x.index_select(0, torch.tensor([5, 0, 299])),
        lambda x: x.index_select(2, torch.tensor([1, 0])),
        lambda x: x[10:50:3][torch.tensor([1, 2])],
        lambda x: x[10:50][4],
        lambda x: x.split(128)[2] + 0,
        lambda x: x.sum(),
        lambda x: x.flatten(1)[:, 3],
        lambda x: torch.cat([x[:2], x[3:4]]),
        lambda x: x[torch.empty(0, dtype=torch.int64)],
        lambda x: x.double().mean(),
        lambda x: x.detach().cpu().clone(),
        lambda x: torch.stack([part.sum() for part in x.split(100)]),
        lambda x: pickle.loads(pickle.dumps(x))[7:9] * 2,
    ],
)
def test_a_stored_tensor_gives_what_a_tensor_gives(folder, look):
    path, memory = folder
    stored = everything(path)
    assert stored.shape == memory.features.shape
    expected, found = look(memory.features), look(stored)
    assert type(found) is torch.Tensor
    assert torch.equal(found, expected)


def test_slices_and_long_lists_stay_on_disk_and_too_much_is_refused(folder, monkeypatch):
    path, memory = folder
    monkeypatch.setattr("noiseproof.data.lazy.SMALL", 4 * 30 * 10)
    monkeypatch.setattr("noiseproof.data.lazy.LARGEST", 4 * 30 * 100)
    stored = everything(path)
    assert isinstance(stored[5:250], StoredTensor)
    many = stored[torch.arange(299, 0, -2)]
    assert isinstance(many, StoredTensor)
    again = many[torch.arange(0, 100, 3)]
    assert isinstance(again, StoredTensor)
    assert torch.equal(again + 0, memory.features[torch.arange(299, 0, -2)][torch.arange(0, 100, 3)])
    assert not isinstance(many[:50][torch.tensor([3])], StoredTensor)
    with pytest.raises(DataError, match="too many to be read"):
        stored.sum()
    with pytest.raises(IndexError, match="not among the 300"):
        stored[torch.tensor([300])]


def test_training_from_disk_gives_the_weights_of_training_in_memory(folder, monkeypatch):
    path, _ = folder
    monkeypatch.setattr("noiseproof.data.lazy.SMALL", 4 * 30 * 40)
    stored = load(path).train
    assert isinstance(stored.features, StoredTensor)
    memory = Dataset("memory", stored.features + 0, stored.labels, stored.public)
    settings = {"epsilon": 3.0, "seed": 1, "epochs": 3, "batch_size": 32, "noise_multiplier": 1.0, "recipe": "none"}
    one = train("dp-sgd", stored, **settings)
    other = train("dp-sgd", memory, **settings)
    assert all(torch.equal(value, other.tensors()[name]) for name, value in one.tensors().items())
    assert stored.fingerprint() == memory.fingerprint()


def test_floats_need_public_bounds_and_bad_values_are_told_when_they_are_read(tmp_path):
    values = np.linspace(-1, 3, 80, dtype=np.float32).reshape(20, 4)
    np.save(tmp_path / "x.npy", values)
    np.save(tmp_path / "y.npy", np.arange(20) % 2)
    with pytest.raises(SettingError, match="how many `classes`"):
        load(tmp_path)
    (tmp_path / "public.json").write_text(json.dumps({"classes": ["a", "b"]}))
    with pytest.raises(SettingError, match="`low` and `high`"):
        load(tmp_path)
    (tmp_path / "public.json").write_text(json.dumps({"classes": ["a", "b"], "low": 0, "high": 2}))
    np.save(tmp_path / "x_test.npy", values[:3])
    np.save(tmp_path / "y_test.npy", np.array([0, 1, 0]))
    split = load(tmp_path)
    assert len(split.test) == 3
    assert torch.equal(split.test.features[0:1] + 0, torch.tensor([[0.0, 0.0, 0.0, 0.0]]))
    assert split.train.public.bounds == "public"
    values[4, 2] = np.nan
    np.save(tmp_path / "x.npy", values)
    assert torch.isfinite(load(tmp_path).train.features[torch.tensor([1, 2])]).all()
    with pytest.raises(DataError, match="NaN or infinite in 1 records"):
        load(tmp_path).train.features[torch.tensor([4])]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": 2}, "outside its 2 classes"),
        ({"classes": 3, "hight": 1}, "may have classes"),
        ({"classes": 3, "low": 1, "high": 0}, "low must be less"),
    ],
)
def test_what_does_not_fit_is_refused(folder, change, message):
    path, _ = folder
    (path / "public.json").write_text(json.dumps(change))
    with pytest.raises((SettingError, DataError), match=message):
        load(path)


def test_a_folder_of_something_else_and_a_broken_one_are_refused(folder, tmp_path):
    path, _ = folder
    with pytest.raises(SettingError, match="are for tables"):
        load(path, target="y")
    np.save(path / "y.npy", np.arange(5))
    with pytest.raises(DataError, match="300 records but 5 labels"):
        load(path)
    (path / "public.json").write_text("[")
    with pytest.raises(SettingError, match="not a file of JSON"):
        load(path)


@pytest.fixture
def table(tmp_path):
    """A Parquet table of 1000 people in many small row groups, and its schema."""
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(
        {
            "age": generator.integers(17, 95, 1000),
            "work": generator.choice(["private", "state", "none"], 1000),
            "income": generator.choice(["low", "high"], 1000),
        }
    )
    schema = {
        "columns": {
            "age": {"low": 17, "high": 90, "integer": True},
            "work": {"categories": ["private", "state", "none"]},
        },
        "target": {"name": "income", "classes": ["low", "high"]},
    }
    frame.to_parquet(tmp_path / "people.parquet", row_group_size=70)
    (tmp_path / "people.json").write_text(json.dumps(schema))
    return tmp_path / "people.parquet", tmp_path / "people.json"


def test_a_stored_table_is_coded_as_one_in_memory(table, tmp_path, monkeypatch):
    monkeypatch.setattr("noiseproof.data.formats.ROWS", 64)
    path, schema = table
    stored = load(path, schema=schema, store=tmp_path / "store", seed=5)
    memory = load(path, schema=schema, seed=5)
    assert stored.train.public == memory.train.public
    assert any("age" in remark for remark in stored.remarks)
    for one, other in ((stored.train, memory.train), (stored.test, memory.test)):
        rows = torch.cat([one.features + 0, one.labels[:, None].float()], dim=1)
        others = torch.cat([other.features, other.labels[:, None].float()], dim=1)
        assert torch.equal(rows.unique(dim=0, return_counts=True)[1], others.unique(dim=0, return_counts=True)[1])
        assert torch.equal(rows.unique(dim=0), others.unique(dim=0))


def test_a_table_is_stored_once_and_another_one_not_over_it(table, tmp_path):
    path, schema = table
    first = load(path, schema=schema, store=tmp_path / "store")
    written = (tmp_path / "store" / "x.npy").stat().st_mtime_ns
    again = load(tmp_path / "store")
    assert again.train.fingerprint() == first.train.fingerprint()
    load(path, schema=schema, store=tmp_path / "store")
    assert (tmp_path / "store" / "x.npy").stat().st_mtime_ns == written
    pd.read_parquet(path).iloc[:500].to_parquet(path)
    with pytest.raises(SettingError, match="holds another table"):
        load(path, schema=schema, store=tmp_path / "store")
    with pytest.raises(SettingError, match="only a table with a schema"):
        load(path, target="income", store=tmp_path / "other")


def test_a_table_that_cannot_be_stored_leaves_nothing_behind(table, tmp_path):
    path, schema = table
    frame = pd.read_parquet(path)
    frame.loc[900, "income"] = "unheard of"
    frame.to_parquet(path, row_group_size=70)
    with pytest.raises(DataError):
        load(path, schema=schema, store=tmp_path / "store")
    assert not [entry for entry in tmp_path.iterdir() if "store" in entry.name]


BIG = """
import resource, sys, time
import torch
from noiseproof.data import load
from noiseproof.run import train
torch.set_num_threads(1)
split = load(sys.argv[1], test_fraction=0.005)
features = split.train.features
started = time.perf_counter()
release = train("dp-sgd", split.train, seed=0, epochs=0.01, batch_size=4096, micro_batch_size=512, noise_multiplier=1.0,
                max_grad_norm=1.0, lr=0.5, network="linear", recipe="none")
seconds = time.perf_counter() - started
passed = sum(float(part.sum()) for part in features.split(1 << 16)) if len(sys.argv) > 2 else 0.0
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(release.card.ran["steps"], release.card.ran["records"], round(seconds, 1), round(memory, 3), passed)
"""


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "xlsx"])
def test_any_table_can_be_stored_part_by_part(table, ending, tmp_path, monkeypatch):
    monkeypatch.setattr("noiseproof.data.formats.ROWS", 64)
    path, schema = table
    other = tmp_path / f"people.{ending}"
    frame = pd.read_parquet(path)
    frame.to_excel(other, index=False) if ending == "xlsx" else frame.to_csv(other, index=False)
    stored = load(other, schema=schema, store=tmp_path / "store", seed=5)
    assert stored.train.fingerprint() == load(path, schema=schema, store=tmp_path / "first", seed=5).train.fingerprint()


def test_a_broken_row_far_down_is_told_and_nothing_is_left(table, tmp_path, monkeypatch):
    monkeypatch.setattr("noiseproof.data.formats.ROWS", 64)
    path, schema = table
    other = tmp_path / "people.csv"
    pd.read_parquet(path).to_csv(other, index=False)
    with other.open("a") as file:
        file.write("1,private,low,secret\n")
    with pytest.raises(DataError, match="more cells than its header"):
        load(other, schema=schema, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
def test_ten_gigabytes_on_disk_are_trained_on_in_less_than_two_of_memory(tmp_path):
    records = 10 * 2**30 // 784
    images = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.uint8, shape=(records, 28, 28))
    # A hundredth of the records is written, so that the file is sparse; all of them are read.
    images[: records // 100, 14] = 255
    images.flush()
    np.save(tmp_path / "y.npy", (np.arange(records) < records // 100).astype(np.int64))
    (tmp_path / "public.json").write_text('{"classes": 2}')
    assert (tmp_path / "x.npy").stat().st_size > 10 * 2**30 - 1000
    try:
        ended = subprocess.run(
            [sys.executable, "-c", BIG, str(tmp_path), "pass"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=3000,
            check=False,
        )
    finally:
        (tmp_path / "x.npy").unlink()
    assert ended.returncode == 0, ended.stderr
    steps, trained, _, gigabytes, total = map(float, ended.stdout.split())
    assert steps > 30
    assert trained > 0.99 * records
    assert total == pytest.approx(28 * records / 100, rel=0.02), "every record was read"
    assert gigabytes < 2, f"{gigabytes} GB"
