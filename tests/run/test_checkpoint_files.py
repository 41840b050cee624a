"""A checkpoint file is whole or refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.run.checkpoint_files import DamagedError, decode, encode, write

TENSORS = {
    "weights": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "step": torch.tensor(3.0),
    "bits": torch.tensor([True, False]),
    "none": torch.empty(0, 2),
}
VALUES = {"steps": 3, "rate": 0.1, "list": [1, {"a": None}]}
CONTENT = encode(TENSORS, VALUES)


def test_tensors_and_values_come_back_as_they_were():
    tensors, values = decode(CONTENT, "it")
    assert values == VALUES
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
def test_a_single_flipped_bit_is_noticed(place, bit):
    changed = bytearray(CONTENT)
    changed[place] ^= 1 << bit
    try:
        tensors, values = decode(bytes(changed), "it")
    except DamagedError:
        return
    # Some bits of the header carry nothing (a space for a tab): what is read must then be what was written.
    assert values == VALUES
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert tensors.keys() == TENSORS.keys()


@pytest.mark.parametrize("length", [0, 5, 8, 100, len(CONTENT) - 1])
def test_a_truncated_file_is_refused(length):
    with pytest.raises(DamagedError):
        decode(CONTENT[:length], "it")


def test_nothing_is_a_pickle(tmp_path):
    import pickle

    with pytest.raises(DamagedError):
        decode(pickle.dumps({"weights": [1.0]}), "it")


def test_writing_replaces_whole_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "step"
    write(path, b"old")
    write(path, CONTENT)
    assert path.read_bytes() == CONTENT
    assert list(tmp_path.iterdir()) == [path]
