"""A service takes records as in the user's table; another table's are refused, and what is refused costs nothing."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from noiseproof.data import Schema
from noiseproof.data.tables import code
from noiseproof.networks import Network

SCHEMA = Schema.model_validate(
    {
        "columns": {
            "age": {"low": 0, "high": 100, "missing": True},
            "ward": {"categories": ["a", "b"]},
            "day": {"low": "2020-01-01", "high": "2020-12-31"},
        },
        "target": {"name": "ill", "classes": ["no", "yes", "perhaps"]},
    }
)
RECORD = {"age": 40, "ward": "b", "day": "2020-07-01"}


@pytest.fixture
def hospital(start):
    """A service whose paid model was made from a table."""
    from tests.serve.conftest import NoisyRelease

    frame = pd.DataFrame([{**RECORD, "ill": name} for name in ("no", "yes", "perhaps")])
    release = NoisyRelease()
    release.public = code(frame, SCHEMA, name="x")[0].public
    release.module = Network("mlp", release.public.shape, 3).build(0)
    return start(releases={"paid": release})


def test_a_record_by_names_is_the_record_coded(hospital):
    model = hospital.service.models["paid"]
    coded = model.read(
        b'{"inputs": [{"age": 40, "ward": "b", "day": "2020-07-01"}, {"ward": "a", "day": "2020-01-01"}]}'
    )
    torch.testing.assert_close(coded[0], torch.tensor([0.4, 0, 0, 1, 182 / 365]))
    assert coded[1].tolist() == [0.5, 1, 1, 0, 0]
    answer = hospital.ask([RECORD, {**RECORD, "age": None}]).json()
    assert len(answer["labels"]) == 2
    assert answer["cost"]["answers"] == hospital.spent == 2
    assert [column["name"] for column in hospital.get("/v1/models").json()["models"][0]["columns"]] == list(RECORD)


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([{**RECORD, "height": 1}], "'height', which is no column"),
        ([{"Age": 40, "ward": "a", "day": "2020-01-01"}], "'Age', which is no column"),
        ([{"age": 40, "ward": "a"}], "no column 'day'"),
        ([{**RECORD, "ward": None}], "'ward' has 1 missing values"),
        ([{**RECORD, "age": "secret"}], "'age' is to hold numbers"),
        ([{**RECORD, "day": "secret"}], "'day' is to hold dates"),
        ([{**RECORD, "age": [1]}], "no text, number"),
        ([RECORD, [0.1] * 5], "inputs[1]"),
        ([{}], "no column"),
    ],
)
def test_what_is_no_record_of_the_table_is_refused_by_name_and_costs_nothing(hospital, records, words):
    refused = hospital.ask(records)
    assert refused.status_code == 422, refused.text
    assert words in refused.json()["detail"]
    assert "secret" not in refused.text
    assert hospital.spent == 0


def test_coded_records_are_taken_as_before(hospital):
    assert hospital.ask([[0.4, 0, 0, 1, 0.5]]).status_code == 200


def test_a_date_of_any_year_is_read(hospital):
    """Nanoseconds since 1970 end in 2262; such a date was a 500."""
    asked = [{**RECORD, "day": f"{year}-07-01"} for year in ("0990", "1666", "3990", "9999")]
    assert hospital.ask(asked).status_code == 200
    coded = hospital.service.models["paid"]._code(pd.DataFrame(asked))
    assert coded[:, -1].tolist() == [0, 0, 1, 1]


def test_what_an_arrow_stream_says_of_pandas_is_not_believed(hospital):
    pa = pytest.importorskip("pyarrow")
    table = pa.Table.from_pandas(pd.DataFrame([RECORD])).replace_schema_metadata({"pandas": '{"columns": [{}]}'})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    kind = {"Content-Type": "application/vnd.apache.arrow.stream"}
    assert hospital.ask(sink.getvalue().to_pybytes(), **kind).status_code in (200, 422)
