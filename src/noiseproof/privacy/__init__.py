"""What a promise is: budgets, events, accountants, noise, randomness, filters, cards, games. Knows no networks.

Names are imported when they are first used: a budget or a card needs neither torch nor an accountant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from noiseproof.privacy import accountants, calibration
    from noiseproof.privacy.budget import Budget, Neighbours
    from noiseproof.privacy.card import Audit, Card, Claim, Game, Proof
    from noiseproof.privacy.events import EventLog
    from noiseproof.privacy.filters import Filter
    from noiseproof.privacy.mechanisms import AboveThreshold, Exponential, Gaussian, Laplace, NoisyMax
    from noiseproof.privacy.randomness import Randomness
    from noiseproof.privacy.reproducible import Reproducible
    from noiseproof.privacy.secure import Secure
    from noiseproof.privacy.selection import Candidate, Selected, select

__all__ = [
    "AboveThreshold",
    "Audit",
    "Budget",
    "Candidate",
    "Card",
    "Claim",
    "EventLog",
    "Exponential",
    "Filter",
    "Game",
    "Gaussian",
    "Laplace",
    "Neighbours",
    "NoisyMax",
    "Proof",
    "Randomness",
    "Reproducible",
    "Secure",
    "Selected",
    "accountants",
    "calibration",
    "select",
]

_HOMES = {
    "budget": ("Budget", "Neighbours"),
    "card": ("Audit", "Card", "Claim", "Game", "Proof"),
    "events": ("EventLog",),
    "filters": ("Filter",),
    "mechanisms": ("AboveThreshold", "Exponential", "Gaussian", "Laplace", "NoisyMax"),
    "randomness": ("Randomness",),
    "reproducible": ("Reproducible",),
    "secure": ("Secure",),
    "selection": ("Candidate", "Selected", "select"),
}


def __getattr__(name: str) -> Any:
    if name in ("accountants", "calibration"):
        return importlib.import_module(f"{__name__}.{name}")
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
