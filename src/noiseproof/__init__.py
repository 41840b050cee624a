"""Differentially private deep learning whose guarantees are checked.

import noiseproof as npf

data = npf.load("digits")
release = npf.train("dp-sgd", data.train, epsilon=3)
print(release.card.verdict, release.card.proven, npf.accuracy(release, data.test))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

# Names are imported when they are first used: `import noiseproof` and `noiseproof --help` stay quick.
_HOMES = {
    "Budget": "noiseproof.privacy",
    "Card": "noiseproof.privacy",
    "CorrelatedGradients": "noiseproof.engine",
    "Dataset": "noiseproof.data",
    "Network": "noiseproof.networks",
    "PrivateGradients": "noiseproof.engine",
    "accuracy": "noiseproof.releases",
    "compare": "noiseproof.run",
    "fix": "noiseproof.integrations",
    "load": "noiseproof.data",
    "load_bundle": "noiseproof.releases",
    "make_private": "noiseproof.integrations",
    "train": "noiseproof.run",
}
_MODULES = ("attacks", "audits", "data", "engine", "integrations", "methods", "networks", "privacy", "releases", "run")

__all__ = [*_HOMES, *_MODULES]

if TYPE_CHECKING:
    from noiseproof import attacks, audits, data, engine, integrations, methods, networks, privacy, releases, run
    from noiseproof.data import Dataset
    from noiseproof.data.load import load
    from noiseproof.engine import CorrelatedGradients, PrivateGradients
    from noiseproof.integrations import fix, make_private
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Card
    from noiseproof.releases import accuracy, load_bundle
    from noiseproof.run import compare, train


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"noiseproof.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'noiseproof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
