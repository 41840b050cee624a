"""Releases in an experiment tracker: MLflow or Weights & Biases, whichever is installed."""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from noiseproof.errors import MissingPartError, SettingError, UnsupportedError

if TYPE_CHECKING:
    from noiseproof.releases import Measures, Release

Tracker = Literal["mlflow", "wandb"]


def log_release(
    release: Release, to: Tracker, *, measures: Measures | None = None, inside: bool = False, **options: Any
) -> None:
    """Log a release's card and settings as one run of a tracker.

    Args:
        release: What was trained.
        to: `mlflow` or `wandb`.
        measures: How good it is on private records, exactly. Only with `inside`.
        inside: Whether the tracker is read by the records' owner alone; else rehearsals and measures are refused, since what
            is logged has left.
        options: For `mlflow.start_run` or `wandb.init`: the run's name, the project.

    Raises:
        MissingPartError: If the tracker is not installed.
        UnsupportedError: If what is to be logged must not leave.

    Formal guarantee
    ----------------
    Without `inside` only the card, the settings and public facts are logged, which may leave with the release.
    """
    if to not in ("mlflow", "wandb"):
        raise SettingError(f"releases are logged to mlflow or wandb, not to {to!r}.")
    if not inside and release.card.verdict == "rehearsal":
        raise UnsupportedError("a rehearsal must not leave; log it with inside=True to a tracker that is yours alone.")
    if not inside and measures is not None:
        raise UnsupportedError(
            "measures are exact numbers of private records; log them with inside=True, or leave them out."
        )
    try:
        tracker = importlib.import_module(to)
    except ImportError:
        raise MissingPartError(f"{to} is not installed: pip install {to}.") from None
    (_to_mlflow if to == "mlflow" else _to_wandb)(tracker, release, _numbers(release, measures), options)


def _numbers(release: Release, measures: Measures | None) -> dict[str, float]:
    found: dict[str, Any] = {} if measures is None else measures.model_dump()
    for kind in ("claimed", "proven", "audited"):
        promise = getattr(release.card, kind)
        if promise is not None:
            found |= {f"{kind}_epsilon": promise.epsilon, f"{kind}_delta": promise.delta}
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _facts(release: Release) -> dict[str, str]:
    card = release.card
    return {"method": card.method, "verdict": card.verdict, "unit": card.unit, "neighbours": card.neighbours}


def _to_mlflow(mlflow: ModuleType, release: Release, numbers: dict[str, float], options: dict[str, Any]) -> None:
    with mlflow.start_run(**options):
        mlflow.set_tags(_facts(release))
        mlflow.log_params(release.settings)
        mlflow.log_metrics(numbers)
        mlflow.log_text(release.card.to_json(), "card.json")


def _to_wandb(wandb: ModuleType, release: Release, numbers: dict[str, float], options: dict[str, Any]) -> None:
    with wandb.init(config={**_facts(release), **release.settings}, **options) as run:
        run.summary.update({**numbers, "card": release.card.model_dump(mode="json")})
