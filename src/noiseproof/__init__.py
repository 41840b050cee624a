"""Differentially private deep learning whose guarantees are checked.

import noiseproof as npf

data = npf.load("digits")
release = npf.train("dp-sgd", data.train, epsilon=3)
print(release.card.verdict, release.card.proven, npf.accuracy(release, data.test))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Names are imported when they are first used: `import noiseproof` and `noiseproof --help` stay quick.
_HOMES = {
    "Budget": "noiseproof.guarantees",
    "Card": "noiseproof.guarantees",
    "Dataset": "noiseproof.data",
    "Network": "noiseproof.networks",
    "accuracy": "noiseproof.releases",
    "load": "noiseproof.data",
    "load_bundle": "noiseproof.bundles",
    "train": "noiseproof.training",
}
_MODULES = (
    "attacks",
    "audits",
    "compare",
    "data",
    "gradients",
    "guarantees",
    "inputs",
    "losses",
    "methods",
    "networks",
    "parameters",
    "predictions",
    "recipes",
    "releases",
    "studies",
)

__all__ = [*_HOMES, *_MODULES]

if TYPE_CHECKING:
    from noiseproof import (
        attacks,
        audits,
        compare,
        data,
        gradients,
        guarantees,
        inputs,
        losses,
        methods,
        networks,
        parameters,
        predictions,
        recipes,
        releases,
        studies,
    )
    from noiseproof.bundles import load as load_bundle
    from noiseproof.data import Dataset, load
    from noiseproof.guarantees import Budget, Card
    from noiseproof.networks import Network
    from noiseproof.releases import accuracy
    from noiseproof.training import train


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"noiseproof.{name}")
    if name in _HOMES:
        home = importlib.import_module(_HOMES[name])
        return getattr(home, "load" if name == "load_bundle" else name)
    raise AttributeError(f"module 'noiseproof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])
