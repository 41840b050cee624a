"""Bodies of JSON, npy and Arrow: the same records give the same features, and what is none is refused in a sentence."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import DataError, NoiseproofError
from noiseproof.serve import bodies
from noiseproof.serve.bodies import ARROW, NPY


def npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def stream(table, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "uint8"])
def test_an_npy_file_is_answered_like_json(service, kind):
    array = np.array([[0, 1, 0, 1], [1, 0, 0, 0]], dtype=kind)
    response = service.ask(npy(array), model="free", **{"Content-Type": NPY})
    assert response.json() == service.ask(array.tolist(), model="free").json()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x93NUMPY",
        npy(np.zeros((2, 3), "f4")),
        npy(np.zeros((0, 4), "f4")),
        npy(np.zeros((2, 4), "f4"))[:-1],
        npy(np.zeros((2, 4), "f4")) + b"x",
        npy(np.asfortranarray(np.zeros((2, 4), "f4"))),
        npy(np.zeros((2, 4), "c8")),
        npy(np.array([["a"] * 4])),
        npy(np.full((1, 4), np.nan, "f4")),
        npy(np.full((1, 4), 1e38, "f4")),
        npy(np.full((1, 4), 1e300, "f8")),
        npy(np.zeros((2, 4), "f4")).replace(b"(2, 4)", b"(9999999, 4)"),
    ],
)
def test_what_is_no_npy_file_of_records_costs_nothing(service, body):
    assert service.ask(body, **{"Content-Type": NPY}).status_code == 422
    assert service.spent == 0


def test_an_arrow_stream_is_a_table_by_names():
    table = pa.table({"age": [30, 40], "sex": ["f", "m"]})
    frame = bodies.read_arrow(stream(table), 10)
    assert frame.to_dict("records") == [{"age": 30, "sex": "f"}, {"age": 40, "sex": "m"}]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no Arrow stream"),
        (b"\xff" * 100, "no Arrow stream"),
        (stream(pa.table({"a": [1]}))[:-20], "Arrow stream"),
        (stream(pa.table({"a": list(range(1000))}), compression="zstd"), "compressed"),
        (stream(pa.table({"a": list(range(1000))}), compression="lz4"), "compressed"),
        (stream(pa.table({"a": [[1]]})), "not of texts"),
        (stream(pa.table({"a": pa.array(["x"]).dictionary_encode()})), "not of texts"),
        (stream(pa.table({"a": list(range(11))})), "1 to 10 inputs"),
        (stream(pa.table({"a": pa.nulls(1000)})), "1 to 10 inputs"),
    ],
)
def test_what_is_no_arrow_stream_of_records_is_refused(body, said):
    with pytest.raises(DataError, match=said):
        bodies.read_arrow(body, 10)


def test_a_model_of_no_table_takes_no_arrow(service):
    response = service.ask(stream(pa.table({"a": [1]})), **{"Content-Type": ARROW})
    assert response.status_code == 422


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(["json", "npy", "arrow"]), st.integers(0, 200))
def test_no_bytes_do_anything_but_be_read_or_refused(noise, kind, at):
    whole = {
        "json": json.dumps({"inputs": [[0.5, 0, 1, 0.25]] * 3}).encode(),
        "npy": npy(np.zeros((3, 4), "f4")),
        "arrow": stream(pa.table({"a": [1, 2], "b": ["x", "y"]})),
    }[kind]
    body = whole[:at] + noise + whole[at + len(noise) :]
    try:
        if kind == "json":
            found = bodies.read_numbers(body, (4,), 10)
            assert found is None or found.shape[1:] == (4,)
        elif kind == "npy":
            assert bodies.read_npy(body, (4,), 10).shape[1:] == (4,)
        else:
            assert 1 <= len(bodies.read_arrow(body, 10)) <= 10
    except NoiseproofError:
        pass  # refused, in a sentence
