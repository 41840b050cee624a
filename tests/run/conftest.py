"""A small set of records and methods that fail in every way there is, for worker processes to import."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager

import numpy as np
import pytest

METHODS = """
import errno, os, signal, time
from dataclasses import dataclass
from typing import ClassVar

import torch

from noiseproof.methods.baseline import Baseline
from noiseproof.privacy.card import Claim, Proof
from noiseproof.privacy.card import Game
from noiseproof.methods import register
from noiseproof.releases import DataRelease


@dataclass(frozen=True)
class Quick(Baseline):
    epochs: float = 2.0

    def game(self, budget):
        def play(world, trials, generator):
            return torch.randn(trials, generator=generator, dtype=torch.float64) + world
        return Game("a normal that moves by 1", play, budget.neighbours, budget.delta, gaussian=True)


@register
@dataclass(frozen=True)
class Steady(Quick):
    name: ClassVar[str] = "steady"


@register
@dataclass(frozen=True)
class Second(Quick):
    name: ClassVar[str] = "second"
    epochs: float = 4.0


@register
@dataclass(frozen=True)
class Raises(Quick):
    name: ClassVar[str] = "raises"

    def fit(self, *arguments, **named):
        raise ValueError("could not read 'Jane Doe, 1950-01-01'")


@register
@dataclass(frozen=True)
class Greedy(Quick):
    name: ClassVar[str] = "greedy"

    def fit(self, *arguments, **named):
        torch.empty(1 << 50)


@register
@dataclass(frozen=True)
class Killed(Quick):
    name: ClassVar[str] = "killed"

    def fit(self, *arguments, **named):
        os.kill(os.getpid(), signal.SIGKILL)


@register
@dataclass(frozen=True)
class Chatty(Quick):
    name: ClassVar[str] = "chatty"

    def fit(self, *arguments, **named):
        print("a line that is no message")
        return super().fit(*arguments, **named)


@register
@dataclass(frozen=True)
class FullDisk(Quick):
    name: ClassVar[str] = "full-disk"

    def fit(self, *arguments, **named):
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")


@register
@dataclass(frozen=True)
class Copies(Quick):
    name: ClassVar[str] = "copies"

    def fit(self, network, dataset, budget, *, rng, progress):
        return DataRelease(dataset, self.card(dataset, budget, rng, why="the records themselves"), {})


@register
@dataclass(frozen=True)
class Unplayable(Quick):
    name: ClassVar[str] = "unplayable"

    def game(self, budget):
        def play(world, trials, generator):
            return torch.full((trials,), float("nan"), dtype=torch.float64)
        return Game("a game that breaks", play, budget.neighbours, budget.delta)


@register
@dataclass(frozen=True)
class Slow(Quick):
    name: ClassVar[str] = "slow"

    def fit(self, *arguments, **named):
        time.sleep(float(os.environ.get("NOISEPROOF_TEST_SLEEP", "0")))
        return super().fit(*arguments, **named)
"""


@pytest.fixture(scope="session")
def records(tmp_path_factory):
    """Two classes of points, in a file."""
    generator = np.random.default_rng(0)
    labels = np.arange(80) % 2
    features = (labels[:, None] * 0.4 + generator.uniform(0, 0.6, (80, 4))).astype(np.float32)
    path = tmp_path_factory.mktemp("records") / "points.npz"
    np.savez(path, x=features, y=labels, class_names=["no", "yes"], low=np.zeros(4), high=np.ones(4))
    return path


@pytest.fixture(scope="session")
def methods_home(tmp_path_factory):
    """The folder of a module whose methods fail in every way there is."""
    home = tmp_path_factory.mktemp("methods")
    (home / "trying_methods.py").write_text(METHODS)
    return home


@pytest.fixture
def own_methods(methods_home):
    """Let this process and its workers find them; gives the module's name."""
    with registered_from(methods_home):
        yield "trying_methods"


@contextmanager
def registered_from(home):
    """While it lasts methods of that folder can be imported and registered; afterwards nobody knows them."""
    from noiseproof import methods

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(home))
        patch.setenv("PYTHONPATH", str(home), prepend=os.pathsep)
        patch.setattr(methods, "_REGISTRY", dict(methods._REGISTRY))
        yield
        sys.modules.pop("trying_methods", None)
