"""What a shell offers after the tab key. The modules that hold the names are imported when they are asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable


def _among(where: str | Iterable[str]) -> Callable[[str], list[str]]:
    """Complete among these names, or among those that `module:attribute` holds or returns."""

    def complete(incomplete: str) -> list[str]:
        names: Iterable[str]
        if isinstance(where, str):
            module, _, attribute = where.partition(":")
            found = getattr(importlib.import_module(module), attribute)
            names = found() if callable(found) else found
        else:
            names = where
        return [name for name in names if name.startswith(incomplete)]

    return complete


methods = _among("noiseproof.methods:registry")
data = _among("noiseproof.data.named:named_sets")
networks = _among("noiseproof.networks:names")
attacks = _among("noiseproof.attacks:attack_names")
accountants = _among("noiseproof.privacy.budget:ACCOUNTANTS")
studies = _among(("lin", "lu", "ma", "mao", "phan"))
neighbours = _among(("add-or-remove", "replace-one"))
scales = _among(("small", "paper"))
