"""What version 0.1 and this one call by other names, so that one test can be run on both."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import nn

OLD = importlib.util.find_spec("noiseproof.guarantees") is not None
"""Whether this is 0.1."""

privacy = importlib.import_module("noiseproof.guarantees" if OLD else "noiseproof.privacy")
engine = importlib.import_module("noiseproof.gradients" if OLD else "noiseproof.engine")
per_record = importlib.import_module("noiseproof.gradients.engine" if OLD else "noiseproof.engine")
ledgers = importlib.import_module("noiseproof.ledger" if OLD else "noiseproof.serve.ledger")
releases = importlib.import_module("noiseproof.releases")
bundles = importlib.import_module("noiseproof.bundles" if OLD else "noiseproof.releases.bundles")

QUIET = 1e-7
"""A noise multiplier that leaves the sum of clipped gradients to be seen."""


def gradients(module: nn.Module, *, clip: float = 1.0, noise: float = QUIET, rate: float = 1.0, secure: bool = False):
    """The engine of a loop of one's own, with noise that is hardly there."""
    rng = privacy.Secure() if secure else privacy.Reproducible(0)
    if OLD:
        return engine.PrivateGradients(module, clip=clip, sigma=noise, rate=rate, rng=rng)
    return engine.PrivateGradients(module, max_grad_norm=clip, noise_multiplier=noise, sample_rate=rate, rng=rng)


def batches(found, *tensors, steps: int, micro: int | None = None):
    """Its batches."""
    return found.batches(*tensors, steps=steps, **{"micro_batch" if OLD else "micro_batch_size": micro})


def summed(module: nn.Module) -> torch.Tensor:
    """All gradients as one vector."""
    return torch.cat([parameter.grad.double().flatten() for parameter in module.parameters()])


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str


def noiseproof(*words: object) -> Said:
    """Run a command."""
    from noiseproof.cli import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Said(code, out.getvalue(), err.getvalue())


def released(*words: object) -> Said:
    """Run a command that makes what may leave, with secure randomness; in 0.1 that had to be asked for."""
    said = noiseproof(*words, *(("--secure",) if OLD else ()))
    assert said.code == 0, said.err
    return said


def people(folder: Path, records: int, *, more: bool = False) -> tuple[object, ...]:
    """A table of that many people and its schema, perhaps with one more in its middle; the options that read it."""
    folder.mkdir(parents=True, exist_ok=True)
    random = torch.Generator().manual_seed(7)
    ages, hours = (
        torch.randint(18, 90, (records,), generator=random),
        torch.randint(0, 60, (records,), generator=random),
    )
    rows = [(int(a), int(h), "no" if a + h < 80 else "yes") for a, h in zip(ages, hours, strict=True)]
    if more:
        rows.insert(records // 2, (90, 60, "no"))
    pd.DataFrame(rows, columns=["age", "hours", "label"]).to_csv(folder / "people.csv", index=False)
    (folder / "people.json").write_text(
        '{"columns": {"age": {"low": 0, "high": 100}, "hours": {"low": 0, "high": 60}},'
        ' "target": {"name": "label", "classes": ["no", "yes"]}}'
    )
    return ("--data", folder / "people.csv", "--schema", folder / "people.json")


@contextlib.contextmanager
def home(folder: Path):
    """Live in this folder: caches and temporary files go there."""
    names = ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME")
    before = {name: os.environ.get(name) for name in names}
    folder.mkdir(parents=True)
    os.environ.update(dict.fromkeys(names, str(folder)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
