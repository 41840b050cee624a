"""Networks are read from safetensors and from torch's files without running their code; what is no network is refused."""

from __future__ import annotations

import pickle

import pytest
import torch
from safetensors.torch import save_file

from noiseproof.errors import DataError
from noiseproof.methods.parameters.publishing import read_network, read_networks
from noiseproof.networks import Network

NETWORK = Network("mlp", (4,), 3, {"hidden": 5})


def test_both_kinds_of_files_make_one_collection(tmp_path):
    save_file(NETWORK.build(0).state_dict(), tmp_path / "a.safetensors")
    torch.save(NETWORK.build(1).state_dict(), tmp_path / "b.pt")
    torch.save({"state_dict": NETWORK.build(2).state_dict()}, tmp_path / "c.pth")
    found, constants = read_networks([tmp_path / name for name in ("a.safetensors", "b.pt", "c.pth")])
    assert len(found) == 3
    assert constants == {}
    for seed, row in enumerate(found.rows):
        assert torch.equal(row, found.layout.flatten(dict(NETWORK.build(seed).named_parameters())))


def test_whole_numbers_that_all_networks_share_are_kept_and_others_refused(tmp_path):
    for index, steps in enumerate((7, 7, 8)):
        tensors = {"w": torch.full((2,), float(index)), "steps": torch.tensor(steps)}
        save_file(tensors, tmp_path / f"{index}.safetensors")
    paths = [tmp_path / f"{index}.safetensors" for index in range(3)]
    found, constants = read_networks(paths[:2])
    assert found.parameters == 2
    assert constants == {"steps": torch.tensor(7)}
    with pytest.raises(DataError, match=r"steps of .* whole numbers"):
        read_networks(paths)


class Trap:
    """What a pickle could run."""

    def __reduce__(self):
        return (pytest.fail, ("code of the file was run",))


def _trap(path):
    path.write_bytes(pickle.dumps({"w": Trap()}))


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        ("missing.pt", lambda path: None, "there is no file"),
        ("text.safetensors", lambda path: path.write_text("hello"), "neither a safetensors"),
        ("text.pt", lambda path: path.write_text("hello"), "neither a safetensors"),
        ("trap.pt", _trap, "weights_only"),
        ("list.pt", lambda path: torch.save([torch.zeros(2)], path), "tensors by name"),
        ("empty.pt", lambda path: torch.save({}, path), "tensors by name"),
        ("mixed.pt", lambda path: torch.save({"w": torch.zeros(2), "epoch": 3}, path), "tensors by name"),
    ],
)
def test_what_is_no_network_is_refused_in_one_sentence(tmp_path, name, write, words):
    write(tmp_path / name)
    with pytest.raises(DataError, match=words):
        read_network(tmp_path / name)


def test_one_file_is_too_few(tmp_path):
    with pytest.raises(DataError, match="at least 2"):
        read_networks([tmp_path / "a.safetensors"])
