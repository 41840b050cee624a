"""The folder that keeps finished parts of the study, so that it can be taken up again."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.studies.mao.leakage import Leak
from noiseproof.studies.mao.plans import AttackPlan, Plan, QualityPlan
from noiseproof.studies.mao.quality import Point, Quality


class Store:
    """A folder of finished parts, one JSON file each, whole or not at all; collections of networks are beside them.

    Each says which plan and seed it belongs to: parts of another one are refused rather than mixed in.
    """

    def __init__(self, folder: Path, plan: Plan, seed: int) -> None:
        self._folder = folder / "runs"
        self.collections = folder / "collections"
        for made in (self._folder, self.collections):
            made.mkdir(parents=True, exist_ok=True)
        self._common = {"seed": seed, "sigma": plan.sigma, "delta": plan.delta}

    def clear(self) -> None:
        """Forget every finished part."""
        for folder in (self._folder, self.collections):
            for path in folder.iterdir():
                path.unlink()

    def quality(self, plan: QualityPlan) -> Quality | None:
        """One data set's points, if they are finished."""
        fields = self._load(f"quality-{plan.data}", plan)
        if fields is None:
            return None
        return Quality(**{**fields, "points": tuple(Point(**point) for point in fields["points"])})

    def leakage(self, plan: AttackPlan) -> tuple[Leak, ...] | None:
        """The attacks, if they are finished."""
        fields = self._load(f"attack-{plan.data}", plan)
        if fields is None:
            return None
        return tuple(Leak(**{**leak, "per_class": tuple(leak["per_class"])}) for leak in fields["leaks"])

    def save_quality(self, plan: QualityPlan, found: Quality) -> None:
        """Keep one data set's points."""
        self._save(f"quality-{plan.data}", plan, dataclasses.asdict(found))

    def save_leakage(self, plan: AttackPlan, found: tuple[Leak, ...]) -> None:
        """Keep the attacks."""
        self._save(f"attack-{plan.data}", plan, {"leaks": [dataclasses.asdict(leak) for leak in found]})

    def _save(self, name: str, plan: QualityPlan | AttackPlan, fields: dict[str, Any]) -> None:
        path = self._folder / f"{name}.json"
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        staging.write_text(json.dumps({"belongs": self._belongs(plan), "result": fields}))
        staging.replace(path)

    def _load(self, name: str, plan: QualityPlan | AttackPlan) -> dict[str, Any] | None:
        path = self._folder / f"{name}.json"
        if not path.exists():
            return None
        try:
            document = json.loads(path.read_bytes())
            belongs, fields = document["belongs"], dict(document["result"])
        except (ValueError, KeyError, TypeError):
            raise NoiseproofError(f"{path} is not a finished part; delete it and resume.") from None
        if belongs != self._belongs(plan):
            raise SettingError(
                f"{path.parent.parent} holds runs of another scale or seed; choose another folder, or do not resume."
            )
        return fields

    def _belongs(self, plan: QualityPlan | AttackPlan) -> Any:
        return json.loads(json.dumps({**self._common, **dataclasses.asdict(plan)}))
