"""The folder that keeps finished parts of the study, with collections of networks beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from papers import store
from papers.mao.leakage import Leakage
from papers.mao.plans import Part, Plan
from papers.mao.quality import Quality

Found: TypeAlias = Quality | Leakage


class Store(store.Store[Part, Found]):
    """Finished parts: each belongs to its own plan, whatever the plan of the others."""

    def __init__(self, out: Path, plan: Plan, seed: int) -> None:
        belongs = {"sigma": plan.sigma, "delta": plan.delta}
        super().__init__(out / "runs", belongs, _read, out / "collections")
        self._seed = seed

    def belongs(self, cell: Part) -> dict[str, Any]:
        """What decides this part's result."""
        return {**super().belongs(cell), **store.settings(cell, self._seed)}


def _read(fields: dict[str, Any]) -> Found:
    return Leakage.from_json(fields) if "leaks" in fields else Quality.from_json(fields)
