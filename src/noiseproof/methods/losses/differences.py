"""Columns that a public rule puts after others (`discharge >= admission`), known by how much they are after them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from noiseproof.data import Column, Public, layout


class Differences:
    """Coded records with a later column's number as its difference from the earlier one, and back.

    Days of a stay are few, and equally many all year, where pairs of days would be a thousand by a thousand.

    Formal guarantee
    ----------------
    None is needed: each record is changed alone, by a map that public bounds and a public rule fix.

    >>> public = Public((2,), ("no", "yes"), "table", columns=(Column("a", 0, 10), Column("b", 0, 10)), target="y")
    >>> Differences(public, [("b", "a")]).apart(torch.tensor([[0.2, 0.5]]))
    tensor([[0.2000, 0.3000]])
    """

    def __init__(self, public: Public, orders: Sequence[tuple[str, str]]) -> None:
        places = {column.name: (column, place.start) for column, place in layout(public.columns)}
        self._orders = [
            (*places[later], *places[earlier], _whole(places[later][0]) and _whole(places[earlier][0]))
            for later, earlier in orders
        ]
        changed = {later.name: _difference(later, earlier, whole) for later, _, earlier, _, whole in self._orders}
        self.public = replace(public, columns=tuple(changed.get(column.name, column) for column in public.columns))
        """What is public about the records that `apart` gives."""

    def apart(self, features: torch.Tensor) -> torch.Tensor:
        """Coded records, (records, features), with differences; a record that breaks the rule has none."""
        found = features.clone() if self._orders else features
        for later, place, earlier, start, whole in self._orders:
            step = number_of(later, features[:, place], whole) - number_of(earlier, features[:, start], whole)
            _put(found, later, place, step / _width(later, earlier))
        return found

    def together(self, features: torch.Tensor) -> torch.Tensor:
        """Coded records from those that `apart` gave."""
        for later, place, earlier, start, whole in self._orders:
            step = features[:, place].double() * _width(later, earlier)
            sum_ = number_of(earlier, features[:, start], whole) + (step.round() if whole else step)
            low, high = bounds(later)
            _put(features, later, place, (sum_ - low) / (high - low))
        return features


def _put(features: torch.Tensor, column: Column, place: int, values: torch.Tensor) -> None:
    """Set a column's numbers where it is not missing."""
    known = features[:, place + 1] <= 0.5 if column.missing else torch.ones(len(features), dtype=torch.bool)
    features[known, place] = values[known].clamp(0, 1).float()


def _whole(column: Column) -> bool:
    return column.integer or column.date is not None


def _difference(later: Column, earlier: Column, whole: bool) -> Column:
    return Column(later.name, 0.0, _width(later, earlier), integer=whole, missing=later.missing)


def _width(later: Column, earlier: Column) -> float:
    return bounds(later)[1] - bounds(earlier)[0]


def bounds(column: Column) -> tuple[float, float]:
    """The public bounds of a column of numbers or dates."""
    assert column.low is not None
    assert column.high is not None
    return column.low, column.high


def number_of(column: Column, coded: torch.Tensor, whole: bool) -> torch.Tensor:
    """The numbers, or days, that are coded between the bounds."""
    low, high = bounds(column)
    found = low + coded.double() * (high - low)
    return found.round() if whole else found
