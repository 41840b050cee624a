"""Checkpoint files: one safetensors file each, whole or not at all, with a digest of everything in it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from noiseproof.errors import NoiseproofError

FORMAT = "1"


class DamagedError(NoiseproofError):
    """A checkpoint is truncated or was changed; it is not used."""


def encode(tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> bytes:
    """Tensors and JSON values as the bytes of a safetensors file, the values and a digest in its header."""
    text = json.dumps(values, sort_keys=True)
    metadata = {"format": FORMAT, "values": text, "digest": _digest(tensors, text)}
    return bytes(save_tensors(dict(tensors), metadata=metadata))


def decode(content: bytes, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and values of a file's bytes; anything that is not whole is refused."""
    try:
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size])["__metadata__"]
        tensors = load_tensors(content)
        text, digest, version = metadata["values"], metadata["digest"], metadata["format"]
    except (ValueError, KeyError, TypeError, IndexError, SafetensorError):
        raise DamagedError(f"the checkpoint {name} is truncated or is none.") from None
    if version != FORMAT:
        raise DamagedError(f"the checkpoint {name} has format {version}; this version reads format {FORMAT}.")
    if digest != _digest(tensors, text):
        raise DamagedError(f"the checkpoint {name} was changed or is damaged.")
    return tensors, json.loads(text)


def write(path: Path, content: bytes) -> None:
    """Write a file so that after a crash at any moment it is there whole or not at all."""
    staging = path.with_name(f".{path.name}")
    with staging.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put a folder's entries on disk, so that a file made or renamed in it is found again."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
