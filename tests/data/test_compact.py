"""Records of a large table kept by column: what is read is what would have been coded."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof.data import load, tables
from noiseproof.data.compact import CompactTable
from noiseproof.data.lazy import StoredTensor
from noiseproof.data.schema import Schema
from noiseproof.data.tables import code
from noiseproof.errors import DataError

SCHEMA = {
    "columns": {
        "age": {"low": 20, "high": 60, "integer": True},
        "dose": {"low": -1.5, "high": 2.5, "missing": True},
        "colour": {"categories": ["red", "green", "blue"], "missing": True},
        "ward": {"categories": ["7", "8"]},
        "day": {"low": "2020-01-01", "high": "2020-12-31", "date": "ISO8601"},
        "note": {"text": 16},
    },
    "target": {"name": "ill", "classes": ["no", "yes"]},
}


@pytest.fixture
def frame():
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": rng.integers(15, 70, 200),
            "dose": np.where(rng.random(200) < 0.2, np.nan, rng.normal(0, 1, 200)),
            "colour": rng.choice(["red", "green", "blue", "violet", None], 200),
            "ward": rng.choice([7, 8], 200),
            "day": np.datetime_as_string(np.datetime64("2020-01-01") + rng.integers(0, 366, 200)),
            "note": rng.choice(["well", "very ill", ""], 200),
            "ill": rng.choice(["no", "yes"], 200),
        }
    )


@pytest.fixture
def everything_is_large(monkeypatch):
    monkeypatch.setattr(tables, "SMALL", 0)


def test_a_compact_table_reads_bit_for_bit_as_the_coded_one(frame, everything_is_large):
    schema = Schema.model_validate(SCHEMA)
    (usual, said), (compact, also) = (code(frame, schema, name="t", compact=way) for way in (False, True))
    assert isinstance(compact.features, StoredTensor)
    assert said == also
    assert torch.equal(compact.features.read(), usual.features)
    places = torch.tensor([3, 199, 3, 0])
    assert torch.equal(compact.take(places).features, usual.features[places])
    assert torch.equal(compact.features[10:50:7].read(), usual.features[10:50:7])
    assert (compact.identities() == usual.identities()).all()
    assert compact.fingerprint() == usual.fingerprint()


def test_coded_records_can_be_made_compact_part_by_part(frame):
    usual = code(frame, Schema.model_validate(SCHEMA), name="t")[0]
    table = CompactTable.of(usual.public.columns, 200, usual.features.split(64))
    assert table.shape == tuple(usual.features.shape)
    assert torch.equal(pickle.loads(pickle.dumps(table)).read(range(200)), usual.features)


def test_a_file_is_split_alike_however_its_records_are_kept(frame, everything_is_large, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "t.json").write_text(json.dumps(SCHEMA))
    usual, compact = (load(tmp_path / "t.csv", schema=tmp_path / "t.json", compact=way) for way in (False, True))
    for one, other in ((usual.train, compact.train), (usual.test, compact.test)):
        assert torch.equal(one.features, torch.as_tensor(other.features).clone())
        assert torch.equal(one.labels, other.labels)


def test_what_is_wrong_is_said_as_ever(frame, everything_is_large):
    frame.loc[5, "ward"] = None
    said = []
    for way in (False, True):
        with pytest.raises(DataError) as error:
            code(frame, Schema.model_validate(SCHEMA), name="t", compact=way)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert "'ward' has 1 missing values" in said[0]
