"""Entry: one line of a model's history, chained to the line before it by a hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from sqlalchemy import RowMapping

from noiseproof.serve.ledger.amounts import Amount, Measure

Kind = Literal["limit", "spend"]
"""`limit`: a client's capacity was set to `units`. `spend`: `units` were spent for `answers`."""


@dataclass(frozen=True)
class Chain:
    """Whose history it is: a model, the release it answers from, and what is counted."""

    model: str
    release: str
    measure: Measure
    orders: tuple[float, ...]

    @property
    def origin(self) -> str:
        """The hash that the first entry follows."""
        return _digest(asdict(self))

    def amount(self, units: tuple[int, ...]) -> Amount:
        """Units of this chain's measure."""
        return Amount(self.measure, units, self.orders)


@dataclass(frozen=True)
class Entry:
    """One line of history. `made_at` (microseconds since 1970) is what the clock said: order comes from `sequence`."""

    model: str
    sequence: int
    receipt: str
    kind: Kind
    client: str
    answers: int
    units: tuple[int, ...]
    made_at: int

    def hash_after(self, previous: str) -> str:
        """The hash of this entry in a chain whose last hash is `previous`."""
        return _digest({**self._fields(), "previous": previous})

    def row(self, hash: str) -> dict[str, Any]:
        """The entry as it is stored."""
        return {**self._fields(), "units": json.dumps(self.units), "hash": hash}

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_row(cls, row: RowMapping) -> Entry:
        """The entry that was stored."""
        stored = {name: row[name] for name in _NAMES}
        return cls(**{**stored, "units": tuple(json.loads(stored["units"]))})


_NAMES = tuple(field.name for field in fields(Entry))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
