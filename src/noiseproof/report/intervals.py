"""Claimed, proven and audited epsilon on one axis: where each mark stands, and between which the true epsilon lies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from noiseproof.privacy.card import Audit, Claim, Proof
from noiseproof.report.charts import Axis
from noiseproof.report.words import STRENGTHS

Promises = Mapping[str, Claim | Proof | Audit | None]
"""By the names claimed, proven and audited."""

TONES = {
    **{"proven": "good", "weaker than claimed": "warn", "rehearsal": "warn"},
    **{"refuted": "bad", "nothing proven": "void", "failed": "void"},
}


@dataclass(frozen=True)
class Interval:
    """Marks at shares of an axis. `span` is where the true epsilon lies; `unbounded` if nothing proves an upper end."""

    marks: dict[str, float]
    span: tuple[float, float] | None
    unbounded: bool
    text: str
    tone: str
    asked: float | None = None


def interval(promises: Promises, verdict: str, axis: Axis, asked: float | None = None) -> Interval:
    """The three epsilons of one promise on an axis.

    Args:
        promises: What is claimed, proven and audited.
        verdict: What they say together.
        axis: A logarithmic axis of epsilons.
        asked: The epsilon that was asked for, which gets a line.

    Returns:
        What to draw. What lies beyond an end of the axis, or is infinite, is drawn there.
    """
    found = {kind: one.epsilon for kind, one in promises.items() if one is not None}
    marks = {kind: axis.at(value) if math.isfinite(value) else 1.0 for kind, value in found.items()}
    low, high = marks.get("audited", 0.0), marks.get("proven")
    broken = high is not None and low > high
    return Interval(
        marks,
        (low, 1.0) if high is None or broken else (low, high),
        high is None or broken,
        described(promises),
        TONES.get(verdict, "void"),
        None if asked is None else axis.at(asked),
    )


def described(promises: Promises) -> str:
    """The same in words, for those who do not see the picture."""

    def said(kind: str, none: str, before: str = "") -> str:
        one = promises.get(kind)
        if one is None:
            return none
        return f"{kind} {before}{'infinite' if math.isinf(one.epsilon) else f'{one.epsilon:.3g}'}"

    parts = (
        said("claimed", "nothing claimed"),
        said("proven", "nothing proven"),
        said("audited", "not audited", "at least "),
    )
    return "Epsilon: " + ", ".join(parts) + "."


class Row(NamedTuple):
    """One of the three numbers, with its label on the side where there is room."""

    kind: str
    share: float | None
    at: float
    anchor: str
    label: str


class Zone(NamedTuple):
    """A part of the axis and what practice calls it."""

    name: str
    start: float
    end: float


class Tick(NamedTuple):
    """A value on the axis."""

    share: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Three:
    """The picture at the top of an officer's page: a row for each number over zones of strength."""

    rows: tuple[Row, ...]
    zones: tuple[Zone, ...]
    ticks: tuple[Tick, ...]
    span: tuple[float, float] | None
    tone: str
    text: str
    caption: str


_NAMES = {"claimed": "claimed", "proven": "proven", "audited": "audited, at least"}
_MISSING = {"claimed": "nothing is claimed", "proven": "nothing is proven", "audited": "no attack has been tried"}


_HIGHEST = 1e300
"""Where an axis ends, whatever a card says: beyond it numbers have no double."""


def three(promises: Promises, verdict: str) -> Three:
    """The picture of one promise.

    Args:
        promises: What is claimed, proven and audited.
        verdict: What they say together.

    Returns:
        What to draw.
    """
    finite = [one.epsilon for one in promises.values() if one is not None and math.isfinite(one.epsilon)]
    highest = max([50.0, *finite])
    axis = Axis("epsilon", 0.1, 2 * min(highest, _HIGHEST), log=True)
    shown, rows = interval(promises, verdict, axis), []
    for kind, name in _NAMES.items():
        one, share = promises.get(kind), shown.marks.get(kind)
        if one is None or share is None:
            rows.append(Row(kind, None, 0.0, "start", _MISSING[kind]))
            continue
        value = "infinite" if math.isinf(one.epsilon) else f"{one.epsilon:.3g}"
        anchor = "start" if share < 0.15 else "end" if share > 0.85 else "middle"
        rows.append(Row(kind, share, share, anchor, f"{name} {value}"))
    ends = [axis.low, *(most for most, _ in STRENGTHS[:-1]), axis.high]
    zones = (Zone(word, axis.at(a), axis.at(b)) for (_, word), a, b in zip(STRENGTHS, ends, ends[1:], strict=False))
    ticks = [value for value in axis.ticks() if value in (0.1, 1, 10, 100, 1000)]
    anchors = {0: "start", len(ticks) - 1: "end" if axis.at(ticks[-1]) > 0.95 else "middle"}
    attacked = promises.get("audited") is not None
    if shown.unbounded:
        low = "The true epsilon is not below the triangle; nothing" if attacked else "Nothing"
        caption = f"{low} proves how high {'it' if attacked else 'the true epsilon'} is."
    else:
        low = "an attack showed that it is not lower, and a proof that it is not higher"
        caption = (
            f"The true epsilon lies in the shaded part: {low if attacked else 'a proof shows that it is not higher'}."
        )
    return Three(
        tuple(rows),
        tuple(zones),
        tuple(Tick(axis.at(value), f"{value:g}", anchors.get(place, "middle")) for place, value in enumerate(ticks)),
        shown.span,
        shown.tone,
        shown.text,
        caption,
    )
