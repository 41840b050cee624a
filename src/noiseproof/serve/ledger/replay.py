"""Replay: a model's account as its history makes it, entry by entry, and everything that is wrong with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, select

from noiseproof.serve.ledger.grants import Granted, Right
from noiseproof.serve.ledger.records import Chain, entry_hash, period_start, quoted
from noiseproof.serve.ledger.tables import EVERYONE, balances, entries

_AT_ONCE = 1000
_COLUMNS = [
    entries.c[name] for name in ("sequence", "receipt", "kind", "client", "answers", "units", "made_at", "hash")
]
_TYPES = (int, str, str, str, int, str, int, str)

Units = tuple[int, ...]
Standing = tuple[Units, Units, int]
"""A client's capacity, what it spent, and its answers."""


@dataclass
class Verification:
    """What checking one model's history found; `problems` is empty where all is well."""

    model: str
    entries: int = 0
    answers: int = 0
    head: str = ""
    problems: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether the history is whole, unchanged, never overdrawn, and what the balances say."""
        return not self.problems


@dataclass
class Position:
    """A place in a model's history: its last entry, and how everybody stood then."""

    sequence: int
    head: str
    standings: dict[str, Standing] = field(default_factory=dict)


class Replay:
    """A model's account as its history makes it, from its beginning or from a place that somebody vouches for."""

    def __init__(self, chain: Chain, start: Position | None = None) -> None:
        self.chain = chain
        self.place = Position(0, chain.origin) if start is None else start
        self.result = Verification(chain.model, head=self.place.head)
        self._model = quoted(chain.model)
        self._coordinates = max(1, len(chain.orders))
        self._periods: Counter[tuple[str, str, int]] = Counter()
        self._zero = (0,) * self._coordinates

    def run(self, connection: Connection, granted: Granted, noted: Mapping[int, str]) -> Verification:
        """Follow all entries behind the place, and compare them with hashes that were noted elsewhere by number."""
        left = {sequence: hash for sequence, hash in noted.items() if sequence > self.place.sequence}
        limits = _Limits(granted, self.chain.model)
        query = select(*_COLUMNS).where(entries.c.model == self.chain.model, entries.c.sequence > self.place.sequence)
        for row in connection.execute(query.order_by(entries.c.sequence), execution_options={"yield_per": _AT_ONCE}):
            self._add(row, limits)
            if left and left.pop(self.place.sequence, self.place.head) != self.place.head:
                self._problem(f"entry {self.place.sequence} is not the one that was noted: the history was rewritten.")
        for sequence in sorted(left):
            self._problem(f"entry {sequence}, which was noted, is missing: the history was cut off.")
        self.result.head = self.place.head
        return self.result

    def check_balances(self, connection: Connection, folded: Any) -> None:
        """Compare what the history adds up to with the balances that spends are checked against.

        Those of clients are what is stored and what was entered behind entry number `folded`.
        """
        query = select(balances.c.client, balances.c.coordinate, balances.c.capacity, balances.c.spent)
        query = query.where(balances.c.model == self.chain.model).order_by(balances.c.client, balances.c.coordinate)
        stored: dict[Any, list[tuple[Any, Any, Any]]] = {}
        for client, *rest in connection.execute(query, execution_options={"yield_per": _AT_ONCE}):
            stored.setdefault(client, []).append(tuple(rest))
        expected = {
            client: [(i, *both) for i, both in enumerate(zip(capacity, spent, strict=True))]
            for client, (capacity, spent, _) in self.place.standings.items()
        }
        with suppress(ValueError, TypeError):  # a row that cannot be read: then nothing adds up
            self._add_up(connection, folded, stored)
        if stored != expected:
            self._problem("the balances are not what the history adds up to.")

    def _add_up(self, connection: Connection, folded: Any, stored: dict[Any, list[tuple[Any, Any, Any]]]) -> None:
        """Add to stored balances of clients what was entered since they were stored."""
        since = select(entries.c.client, entries.c.kind, entries.c.units).where(
            entries.c.model == self.chain.model, entries.c.client != EVERYONE, entries.c.sequence > folded
        )
        for client, kind, text in connection.execute(since.order_by(entries.c.sequence)):
            units = self._units(text) or self._zero
            before = stored.get(client) or [(i, 0, 0) for i in range(self._coordinates)]
            stored[client] = [
                (i, amount, spent) if kind == "limit" else (i, capacity, spent + amount)
                for amount, (i, capacity, spent) in zip(units, before, strict=True)
            ]

    def _problem(self, sentence: str) -> None:
        self.result.problems.append(sentence)

    def _add(self, row: Any, limits: _Limits) -> None:
        place = self.place
        place.sequence += 1
        self.result.entries += 1
        sequence, receipt, kind, client, answers, text, made_at, hash = row
        if sequence != place.sequence:
            self._problem(f"entry {place.sequence} is missing.")
            if type(sequence) is int:
                place.sequence = sequence
        if tuple(map(type, row)) != _TYPES or (units := self._units(text)) is None or answers < 0:
            self._problem(f"entry {place.sequence} cannot be read.")
            place.head = str(hash)
            return
        place.head = entry_hash(self._model, sequence, receipt, kind, client, answers, units, made_at, place.head)
        if place.head != hash:
            self._problem(f"entry {place.sequence} was changed, or the one before it.")
            place.head = hash  # one changed entry is one problem, not all that follow
        if kind == "limit":
            self._limit(client, units)
        elif kind == "spend" and client != EVERYONE:
            self._spend(client, answers, units, made_at, limits)
        else:
            self._problem(f"entry {place.sequence} is of no kind that there is.")

    def _units(self, text: str) -> Units | None:
        try:
            units = tuple(json.loads(text))
        except (ValueError, TypeError, RecursionError):
            return None
        right = len(units) == self._coordinates and all(type(one) is int and one >= 0 for one in units)
        return units if right else None

    def _limit(self, client: str, units: Units) -> None:
        before = self.place.standings.get(client)
        if client == EVERYONE:
            if before is None and self.place.sequence != 1:
                self._problem(f"entry {self.place.sequence} sets the model's budget, which only the first may.")
            elif before is not None and not _fits(units, before[0]):
                self._problem(f"entry {self.place.sequence} raised the model's budget.")
        elif not _fits(units, self.place.standings.get(EVERYONE, (self._zero,))[0]):
            self._problem(f"entry {self.place.sequence} allows a client more than the model has.")
        self.place.standings[client] = (units, *((self._zero, 0) if before is None else before[1:]))

    def _spend(self, client: str, answers: int, units: Units, made_at: int, limits: _Limits) -> None:
        self.result.answers += answers
        within = True
        for one in (EVERYONE, client):
            capacity, spent, count = self.place.standings.get(one, (self._zero, self._zero, 0))
            spent = (
                (spent[0] + units[0],) if len(units) == 1 else tuple(a + b for a, b in zip(spent, units, strict=True))
            )
            within = within and _fits(spent, capacity)
            self.place.standings[one] = capacity, spent, count + answers
        if not within:
            self._problem(f"entry {self.place.sequence} spent more than was left.")
        if (right := limits.of(client)) is not None and right.answers is not None:
            used = self.place.standings[client][2]
            if right.period is not None:
                start = client, right.period, period_start(right.period, made_at)
                self._periods[start] += answers
                used = self._periods[start]
            if used > right.answers:
                self._problem(f"entry {self.place.sequence} gave {client} more answers than it ever had a right to.")


class _Limits:
    """The largest right that each client ever had of a model, looked up once."""

    def __init__(self, granted: Granted, model: str) -> None:
        self._granted, self._model = granted, model
        self._found: dict[str, Right | None] = {}

    def of(self, client: str) -> Right | None:
        if client not in self._found:
            self._found[client] = self._granted.most(client, self._model)
        return self._found[client]


def entries_of(connection: Connection, model: str) -> Iterator[Any]:
    """All entries of a model in order, as they are stored."""
    query = select(entries).where(entries.c.model == model).order_by(entries.c.sequence)
    yield from connection.execute(query, execution_options={"yield_per": _AT_ONCE}).mappings()


def _fits(units: Units, most: Units) -> bool:
    if len(units) == 1 == len(most):
        return units[0] <= most[0]
    return len(units) == len(most) and all(a <= b for a, b in zip(units, most, strict=True))
