"""What the charts show: series of points, taken from a comparison's results. The page and the pictures share them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Kind = str
KINDS: tuple[Kind, ...] = ("claimed", "proven", "audited")


@dataclass(frozen=True)
class Point:
    """A place in a chart and what it says to a reader."""

    x: float
    y: float
    says: str
    kind: Kind = ""


@dataclass(frozen=True)
class Series:
    """One method's points. `number` is its place in the legend, which also stands beside its points."""

    name: str
    number: int
    points: tuple[Point, ...]
    says: str = ""


def numbered(document: Mapping[str, Any]) -> dict[str, int]:
    """The methods' numbers, the same in every chart of a run."""
    return {name: place for place, name in enumerate(dict.fromkeys(row["method"] for row in document["rows"]))}


def done(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows that came to a result."""
    return [row for row in document["rows"] if row["status"] == "done"]


def _by_method(document: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in done(document):
        found.setdefault(row["method"], []).append(row)
    return found


def epsilons(document: Mapping[str, Any]) -> list[Series]:
    """Accuracy against claimed, proven and audited epsilon; what is missing or infinite has no point."""
    numbers = numbered(document)
    found = []
    for name, rows in _by_method(document).items():
        points = []
        for row in rows:
            for kind in KINDS:
                value = number(row["card"][kind] and row["card"][kind]["epsilon"])
                if value is None or not math.isfinite(value):
                    continue
                how = "at least " if kind == "audited" else ""
                says = f"{name}: {kind} epsilon {how}{value:.3g}, accuracy {row['accuracy']:.1%}"
                points.append(Point(value, row["accuracy"], says, kind))
        found.append(Series(name, numbers[name], tuple(points)))
    return found


def curves(document: Mapping[str, Any]) -> list[Series]:
    """The ROC curves of the attacks, at the smallest epsilon of each method where several were run."""
    numbers = numbered(document)
    found = []
    for name, rows in _by_method(document).items():
        attack = min(rows, key=lambda row: row["epsilon"])["attack"]
        points = tuple(Point(x, y, "") for x, y in zip(attack["roc"]["fpr"], attack["roc"]["tpr"], strict=True))
        says = f"{name}: {attack['attack']} attack, AUC {attack['auc']:.3f}, advantage {attack['advantage']:.3f}"
        found.append(Series(name, numbers[name], points, says))
    return found


def sweep(document: Mapping[str, Any]) -> list[Series]:
    """Accuracy by asked epsilon; empty where only one was run."""
    if not isinstance(document["epsilon"], list) or len(document["epsilon"]) < 2:
        return []
    numbers = numbered(document)
    found = []
    for name, rows in _by_method(document).items():
        points = tuple(
            Point(
                row["epsilon"], row["accuracy"], f"{name}: accuracy {row['accuracy']:.1%} at epsilon {row['epsilon']:g}"
            )
            for row in sorted(rows, key=lambda row: row["epsilon"])
        )
        if name != "none":
            found.append(Series(name, numbers[name], points))
    return found


def spent(document: Mapping[str, Any]) -> list[Series]:
    """Proven epsilon by share of the steps or answers that are done, at the smallest epsilon that was run."""
    numbers = numbered(document)
    found = []
    for name, rows in _by_method(document).items():
        row = min(rows, key=lambda row: row["epsilon"])
        spending = row.get("spending")
        if not spending:
            continue
        total, unit = spending["done"][-1], spending["unit"]
        points = tuple(
            Point(count / total, epsilon, f"{name}: epsilon {epsilon:.3g} after {count} of {total} {unit}")
            for count, epsilon in zip(spending["done"], spending["epsilon"], strict=True)
        )
        found.append(Series(name, numbers[name], points))
    return found


def number(value: Any) -> float | None:
    """A number of a card: JSON has no infinity, so that cards write it as a word."""
    return None if value is None else float(value)


def extent(series: Sequence[Series], axis: str) -> tuple[float, float]:
    """The smallest and the largest value of the points, or (0, 1) where there is none."""
    values = [getattr(point, axis) for one in series for point in one.points]
    return (min(values), max(values)) if values else (0.0, 1.0)
