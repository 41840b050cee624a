"""Torch datasets and tables of Hugging Face's library, larger than memory or without an end in sight."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof.data import Schema, from_torch, load
from noiseproof.data.lazy import StoredTensor
from noiseproof.errors import DataError, SettingError
from noiseproof.run import train

FACTS = {"classes": 2, "low": 0.0, "high": 1.0}
SCHEMA = Schema.model_validate(
    {
        "columns": {"age": {"low": 0, "high": 100}, "note": {"text": 64}},
        "target": {"name": "ill", "classes": ["no", "yes"]},
    }
)


class Items(torch.utils.data.Dataset):
    def __init__(self, count=300):
        self.count, self.made = count, 0

    def __len__(self):
        return self.count

    def __getitem__(self, place):
        self.made += 1
        random = np.random.default_rng(place)
        return random.random(5).astype(np.float32), place % 2


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, count=300):
        self.items = Items(count)

    def __iter__(self):
        return (self.items[place] for place in range(len(self.items)))


def test_all_ways_give_the_same_records(tmp_path, monkeypatch):
    memory = from_torch(Items(), **FACTS)
    assert from_torch(Stream(), **FACTS).fingerprint() == memory.fingerprint()
    stored = from_torch(Stream(), store=tmp_path / "store", groups=np.arange(300) // 3, **FACTS)
    assert isinstance(stored.features, StoredTensor)
    assert torch.equal(stored.features + 0, memory.features)
    assert (stored.persons, stored.public) == (100, memory.public)
    monkeypatch.setattr("noiseproof.data.lazy.SMALL", 100)
    lazily = from_torch(Items(), **FACTS)
    assert isinstance(lazily.features, StoredTensor)
    assert lazily.fingerprint() == memory.fingerprint()
    assert torch.equal(lazily.features[torch.tensor([7, 200])], memory.features[[7, 200]])


def test_training_on_items_that_are_read_when_they_are_drawn_gives_the_same_weights(monkeypatch):
    memory = from_torch(Items(), **FACTS)
    monkeypatch.setattr("noiseproof.data.lazy.SMALL", 100)
    lazily = from_torch(Items(), **FACTS)
    first, second = (train("dp-sgd", each, seed=0, epochs=2, network="linear") for each in (memory, lazily))
    for one, other in zip(first.tensors().values(), second.tensors().values(), strict=True):
        torch.testing.assert_close(one, other)


def test_what_does_not_fit_needs_public_facts_and_a_stream_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("noiseproof.data.lazy.SMALL", 100)
    with pytest.raises(SettingError, match="too large for memory"):
        from_torch(Items(), classes=2)
    with pytest.raises(DataError, match="store=FOLDER"):
        from_torch(Stream(), **FACTS)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(SettingError, match="not empty"):
        from_torch(Stream(), store=tmp_path / "full", **FACTS)
    with pytest.raises(DataError, match="no records"):
        from_torch(Stream(0), store=tmp_path / "empty", **FACTS)
    assert not (tmp_path / "empty").exists()


@pytest.fixture(scope="module")
def notes():
    random = np.random.default_rng(0)
    words = ["cough", "fever", "fall", "rest"]
    return pd.DataFrame(
        {
            "age": random.integers(0, 100, 400),
            "note": [" ".join(random.choice(words, 3)) for _ in range(400)],
            "ill": random.choice(["no", "yes"], 400),
        }
    )


def test_a_table_of_hugging_faces_is_streamed_into_a_folder_texts_and_all(notes, tmp_path):
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_pandas(notes)
    memory = load(table, schema=SCHEMA)
    assert memory.train.fingerprint() == load(notes, schema=SCHEMA).train.fingerprint()
    kept = load(table, schema=SCHEMA, store=tmp_path / "kept")
    streamed = load(table.to_iterable_dataset(), schema=SCHEMA, store=tmp_path / "streamed")
    assert streamed.train.fingerprint() == kept.train.fingerprint()
    assert isinstance(streamed.train.features, torch.Tensor)
    assert sorted(kept.train.labels.tolist()) == sorted(memory.train.labels.tolist())
    with pytest.raises(SettingError, match="store=FOLDER"):
        load(table.to_iterable_dataset(), schema=SCHEMA)


PROGRAM = """
import json, resource, sys
import numpy as np
import torch
from noiseproof.data import from_torch, load
from noiseproof.run import train

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        rows = np.random.default_rng(0)
        block = rows.integers(0, 256, (1000, 3, 64, 64)).astype(np.uint8)
        return ((block[place % 1000], place % 2) for place in range(int(sys.argv[2])))

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
records = from_torch(Stream(), store=sys.argv[1], classes=2)
train("dp-sgd", records, seed=0, epochs=0.01, batch_size=256, micro_batch_size=64, network="linear", recipe="none")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"before": before / 1024, "after": after / 1024}))
"""


@pytest.mark.slow
def test_a_stream_of_two_and_a_half_gigabytes_takes_some_hundred_megabytes_of_memory(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "store", "50000"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    # Coded as float32 the records are 2.5 GB; on disk, as bytes, 0.6.
    assert found["after"] - found["before"] < 800


ALLOWED = 900
"""Megabytes of memory that may be added to what imports take."""

TABLES = """
import json, re, resource, sys
import noiseproof as npf
import torch

def megabytes(field):
    return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

kind, table, schema, store, allowed = sys.argv[1:]
source = table
if kind == "hugging face":
    import datasets
    source = datasets.load_dataset("parquet", data_files=table, split="train", streaming=True)
npf.train("dp-sgd", npf.load("digits").train.take(torch.arange(64)), seed=0, epochs=1)  # imports and pools are there
limit = int((megabytes("VmData") + float(allowed)) * 2**20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
split = npf.load(source, schema=schema, store=store)
npf.train("dp-sgd", split.train, seed=0, epochs=0.01, batch_size=256, network="linear", recipe="none")
coded = (len(split.train) + len(split.test)) * split.train.public.shape[0] * 4 / 2**20
print(json.dumps({"coded": coded}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet", "hugging face"])
def test_a_table_is_stored_and_trained_on_where_its_coded_records_would_not_fit_into_memory(kind, tmp_path):
    """The operating system refuses more; pages of mapped files, which it can drop at any time, do not count."""
    if kind == "hugging face":
        pytest.importorskip("datasets")
    rows, random = 400_000, np.random.default_rng(0)
    words = np.array(["cough", "fever", "fall", "rest", "pain", "visit"], dtype=object)
    frame = pd.DataFrame({"age": random.integers(0, 100, rows), "note": words[random.integers(0, 6, rows)]})
    frame["ill"] = np.where(random.random(rows) < frame["age"] / 100, "yes", "no")
    table = tmp_path / ("table.csv" if kind == "csv" else "table.parquet")
    frame.to_csv(table, index=False) if kind == "csv" else frame.to_parquet(table, index=False)
    schema = {**SCHEMA.model_dump(exclude_none=True, exclude_defaults=True)}
    schema["columns"] = {"age": {"low": 0, "high": 100}, "note": {"text": 2048}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    arguments = [kind, table, tmp_path / "schema.json", tmp_path / "store", str(ALLOWED)]
    done = subprocess.run([sys.executable, "-c", TABLES, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["coded"] > 2.5 * ALLOWED
