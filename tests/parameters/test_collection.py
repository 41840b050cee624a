"""A collection refuses what cannot be published from; its file is safetensors at all times and can be gone on with."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.parameters import Collection
from noiseproof.parameters.layout import Layout

LAYOUT = Layout((("0.weight", (2, 3)), ("0.bias", (2,))))


def network(value: float, **changes: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"0.weight": torch.full((2, 3), value), "0.bias": torch.full((2,), value), **changes}


def test_networks_become_rows_whatever_the_order_of_their_tensors():
    one, two = network(1.0), network(2.0)
    found = Collection.of([one, dict(reversed(two.items()))])
    assert (len(found), found.parameters) == (2, 8)
    assert torch.equal(found.rows[1], torch.full((8,), 2.0))
    assert torch.equal(found.mean(), torch.full((8,), 1.5))


@pytest.mark.parametrize(
    ("networks", "words"),
    [
        ([], "at least 2"),
        ([network(1.0)], "at least 2"),
        ([network(1.0), network(1.0), network(1.0)], "all equal"),
        ([network(1.0), {**network(2.0), "0.bias": torch.zeros(3)}], r"network 2 .*0\.bias is 3 rather than 2"),
        ([network(1.0), {"0.weight": torch.zeros(2, 3)}], r"0\.bias is missing"),
        ([network(1.0), network(2.0), network(float("nan"))], "network 3 has weights that are NaN"),
        ([network(1.0), network(float("inf"))], "network 2 has weights that are NaN or infinite"),
    ],
)
def test_what_cannot_be_published_from_is_refused_in_one_sentence(networks, words):
    with pytest.raises(DataError, match=words):
        Collection.of(networks)


def test_a_file_is_safetensors_and_mapped_back_as_it_was(tmp_path):
    rows = torch.randn(5, 8)
    path = Collection(rows, LAYOUT).save(tmp_path / "nets.safetensors")
    found = Collection.open(path)
    assert torch.equal(found.rows, rows)
    assert found.layout == LAYOUT
    assert torch.equal(load_file(path)["parameters"], rows)
    # A reader's writes do not reach the file.
    found.rows.zero_()
    assert torch.equal(Collection.open(path).rows, rows)


def test_an_unfinished_file_can_be_read_and_gone_on_with_but_not_published_from(tmp_path):
    path = tmp_path / "nets.safetensors"
    begun = Collection.create(path, 3, LAYOUT, {"seed": 1})
    begun.rows[1] = 7.0
    begun.done[1] = 1
    again = Collection.open(path, writable=True, belongs={"seed": 1})
    assert again.done.tolist() == [0, 1, 0]
    assert torch.equal(again.rows[1], torch.full((8,), 7.0))
    with pytest.raises(DataError, match="not finished"):
        again.check()


def test_a_file_of_other_settings_or_a_broken_one_is_refused(tmp_path):
    path = tmp_path / "nets.safetensors"
    Collection.create(path, 3, LAYOUT, {"seed": 1})
    with pytest.raises(SettingError, match="other records or settings"):
        Collection.open(path, belongs={"seed": 2})
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(NoiseproofError, match="not a whole collection"):
        Collection.open(path)
    (tmp_path / "text").write_text("no")
    with pytest.raises(NoiseproofError, match="not a whole collection"):
        Collection.open(tmp_path / "text")
