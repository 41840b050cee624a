"""Networks that were trained elsewhere: safetensors files, or torch's state dicts without their pickled code."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from noiseproof.errors import DataError
from noiseproof.parameters.collection import Collection


def read_networks(paths: Sequence[Path]) -> tuple[Collection, dict[str, torch.Tensor]]:
    """The collection of networks in these files, checked, and the whole-number tensors that all of them share.

    Formal guarantee
    ----------------
    None: the networks stay on the trusted side. No code of a file is run.
    """
    if len(paths) < 2:
        raise DataError("one network alone has no distribution to draw from; give at least 2 files.")
    names = [str(path) for path in paths]
    states = [read_network(path) for path in paths]
    whole = [{name: value for name, value in state.items() if not value.is_floating_point()} for state in states]
    for name, path in ((name, path) for constants, path in zip(whole, names, strict=True) for name in constants):
        values = [constants.get(name) for constants in whole]
        if any(value is None or not torch.equal(value, whole[0].get(name, torch.empty(0))) for value in values):
            raise DataError(
                f"{name} of {path} holds whole numbers and is not the same in all networks; it cannot be drawn."
            )
    floats = [{name: value for name, value in state.items() if value.is_floating_point()} for state in states]
    return Collection.of(floats, names), whole[0]


def read_network(path: Path) -> dict[str, torch.Tensor]:
    """One network's tensors: a safetensors file, or a state dict that torch saved, read with weights_only."""
    if not path.is_file():
        raise DataError(f"there is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            state: Any = load_file(path)
        else:
            with warnings.catch_warnings():
                # torch warns of pickles that it then refuses or reads all the same.
                warnings.simplefilter("ignore", UserWarning)
                state = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, OSError):
        raise DataError(
            f"{path} is neither a safetensors file nor a state dict that torch reads with weights_only; save "
            "`module.state_dict()`."
        ) from None
    if isinstance(state, Mapping) and set(state) == {"state_dict"}:
        state = state["state_dict"]
    if (
        not isinstance(state, Mapping)
        or not state
        or not all(isinstance(value, torch.Tensor) for value in state.values())
    ):
        raise DataError(f"{path} does not hold tensors by name; save `module.state_dict()`.")
    return {str(name): value for name, value in state.items()}
