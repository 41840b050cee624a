"""The pages, and the runner of their snippets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from noiseproof import attacks, methods
from noiseproof.attacks import attack
from noiseproof.cli.registry import app
from noiseproof.data import formats
from noiseproof.engine.rules import rule

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "tools"))


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Methods, layer rules, formats, attacks and commands that a page or an example registers are gone after it."""
    attacks.attack_names(), methods.registry()
    for module, name in ((methods, "_REGISTRY"), (attack, "_REGISTRY"), (formats, "_FORMATS"), (rule, "_RULES")):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))
    monkeypatch.setattr(app, "registered_commands", list(app.registered_commands))
