"""Charts as SVG text: axes, lines and points that can be focused, hovered over and hidden. No script is needed to see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from noiseproof.report.series import Series

COLOURS = 8
"""How many colours the style sheet has; a method is also told by its number, its line and its marker."""

_DASHES = ("", "7 3", "2 3", "9 3 2 3", "12 4")
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 20, 12, 44


@dataclass(frozen=True)
class Axis:
    """A scale from values to places: linear or logarithmic, with what is written beside it."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    def at(self, value: float) -> float:
        """The place of a value, 0 at the low end and 1 at the high one; what is beyond an end is put there."""
        if self.log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, share))

    def ticks(self) -> list[float]:
        """Values to write: 1, 2 and 5 times powers of ten, fewer where they would be crowded."""
        if self.log:
            first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
            steps = (1, 2, 5) if last - first <= 2 else (1,)
            found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        else:
            rough = (self.high - self.low) / 5
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(times * power for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
            found = [place * step for place in range(math.floor(self.low / step), math.ceil(self.high / step) + 1)]
        return [value for value in found if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]

    def words(self, value: float) -> str:
        """A tick's text."""
        return f"{value:.0%}" if self.percent else f"{value:g}"


def padded(label: str, low: float, high: float, *, log: bool = False, percent: bool = False) -> Axis:
    """An axis with some room around the values."""
    if log:
        low = max(low, 1e-3)
        high = max(high, low)
        return Axis(label, low / 1.6, high * 1.6, True, percent)
    room = max((high - low) * 0.08, 0.01)
    top = min(high + room, 1.0) if percent else high + room
    return Axis(label, max(0.0, low - room), max(top, 0.02), False, percent)


@dataclass
class Chart:
    """One picture of a given width, in the pixels that it will be shown at."""

    title: str
    x: Axis
    y: Axis
    width: int
    height: int
    _parts: list[str] = field(default_factory=list)
    _taken: list[tuple[float, float]] = field(default_factory=list)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Where a value is drawn."""
        inner_width, inner_height = self.width - _LEFT - _RIGHT, self.height - _TOP - _BOTTOM
        return _LEFT + self.x.at(x) * inner_width, _TOP + (1 - self.y.at(y)) * inner_height

    def guide(self, *, x: float | None = None, y: float | None = None, says: str) -> None:
        """A dashed line across the chart, with its name at the end."""
        if x is not None:
            left, _ = self.place(x, self.y.low)
            self._parts.append(
                f'<g class="guide"><line x1="{left:.1f}" x2="{left:.1f}" y1="{_TOP}" y2="{self.height - _BOTTOM}"/>'
                f'<text x="{left - 4:.1f}" y="{self.height - _BOTTOM - 6}" text-anchor="end">{escape(says)}</text></g>'
            )
        if y is not None:
            _, top = self.place(self.x.low, y)
            self._parts.append(
                f'<g class="guide"><line x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>'
                f'<text x="{_LEFT + 4}" y="{top + 12:.1f}">{escape(says)}</text></g>'
            )

    def diagonal(self, says: str) -> None:
        """The line where x equals y."""
        low = max(self.x.low, self.y.low)
        (x1, y1), (x2, y2) = self.place(low, low), self.place(1.0, 1.0)
        self._parts.append(
            f'<g class="guide"><line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
            f'<text x="{x1 + 0.8 * (x2 - x1):.1f}" y="{y1 + 0.8 * (y2 - y1) + 60:.1f}">{escape(says)}</text></g>'
        )

    def line(self, one: Series, *, steps: bool = False, focusable: bool = True) -> None:
        """A series as a line; it can be focused and says what it is."""
        if not one.points:
            return
        path, before = "", None
        for point in one.points:
            x, y = self.place(point.x, point.y)
            if before is None:
                path = f"M{x:.1f} {y:.1f}"
            else:
                path += f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}"
            before = (x, y)
        says = escape(one.says or one.name, quote=True)
        role = f'tabindex="0" role="img" aria-label="{says}" data-says="{says}"' if focusable else 'aria-hidden="true"'
        dash = _DASHES[one.number % len(_DASHES)]
        self._parts.append(
            f'<g class="series s{one.number % COLOURS}" data-series="{escape(one.name, quote=True)}" {role}>'
            f'<path class="touch" d="{path}"/><path class="line" d="{path}" stroke-dasharray="{dash}"/></g>'
        )

    def joined(self, one: Series) -> None:
        """A thin line between a series' points of one height: they are one method's numbers."""
        rows: dict[float, list[float]] = {}
        for point in one.points:
            rows.setdefault(point.y, []).append(point.x)
        for y, xs in rows.items():
            (x1, top), (x2, _) = self.place(min(xs), y), self.place(max(xs), y)
            self._parts.append(
                f'<line class="join s{one.number % COLOURS}" data-series="{escape(one.name, quote=True)}" '
                f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{top:.1f}" y2="{top:.1f}"/>'
            )

    def points(self, one: Series, *, numbers: Literal["all", "last"] = "all") -> None:
        """A series' points, each with a marker of its kind; the series' number is at all of them or at the last."""
        for point in one.points:
            x, y = self.place(point.x, point.y)
            says = escape(point.says, quote=True)
            kind = f'data-kind="{point.kind}"' if point.kind else ""
            number = ""
            if numbers == "all" or point is one.points[-1]:
                left, top = self._room(x, y)
                number = f'<text class="number" x="{left:.1f}" y="{top:.1f}">{one.number}</text>'
            self._parts.append(
                f'<g class="series point s{one.number % COLOURS} {point.kind}" tabindex="0" role="img" '
                f'data-series="{escape(one.name, quote=True)}" {kind} aria-label="{says}" data-says="{says}">'
                f'<circle class="touch" cx="{x:.1f}" cy="{y:.1f}" r="11"/>{_marker(point.kind, x, y)}{number}</g>'
            )

    def _room(self, x: float, y: float) -> tuple[float, float]:
        """Where a point's number does not cover another's."""
        for dx, dy in (
            (8, -6),
            (8, 13),
            (-16, -6),
            (-16, 13),
            (21, -6),
            (21, 13),
            (-29, -6),
            (-29, 13),
            (8, -19),
            (8, 26),
        ):
            left, top = x + dx, y + dy
            inside = _LEFT < left < self.width - 12 and 8 < top < self.height - _BOTTOM
            if inside and all(abs(left - a) >= 12 or abs(top - b) >= 12 for a, b in self._taken):
                break
        self._taken.append((left, top))
        return left, top

    def svg(self, css_class: str) -> str:
        """The picture."""
        bottom = self.height - _BOTTOM
        axes = []
        for value in self.x.ticks():
            x, _ = self.place(value, self.y.low)
            axes.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
            axes.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{self.x.words(value)}</text>')
        for value in self.y.ticks():
            _, y = self.place(self.x.low, value)
            axes.append(f'<line class="grid" x1="{_LEFT}" x2="{self.width - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            axes.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{self.y.words(value)}</text>')
        middle = (_LEFT + self.width - _RIGHT) / 2
        axes.append(f'<text x="{middle:.0f}" y="{self.height - 8}" text-anchor="middle">{escape(self.x.label)}</text>')
        axes.append(
            f'<text transform="translate(12 {(_TOP + bottom) / 2:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y.label)}</text>"
        )
        return (
            f'<svg class="{css_class}" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" role="group" aria-label="{escape(self.title, quote=True)}">'
            f'<g class="axes" aria-hidden="true">{"".join(axes)}</g>{"".join(self._parts)}</svg>'
        )


def _marker(kind: str, x: float, y: float) -> str:
    if kind == "claimed":
        return f'<circle class="mark open" cx="{x:.1f}" cy="{y:.1f}" r="7.5"/>'
    if kind == "audited":
        # An arrow to the right: the truth is here or further on.
        return f'<path class="mark" d="M{x - 4:.1f} {y - 6:.1f}L{x + 6:.1f} {y:.1f}L{x - 4:.1f} {y + 6:.1f}Z"/>'
    if kind == "proven":
        return f'<rect class="mark" x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>'
    return f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'


def used_numbers(series: Sequence[Series]) -> list[Series]:
    """The series that have something to show, for a legend."""
    return [one for one in series if one.points]
