"""Tails: what was entered in an account since its clients' balances were last added up.

A spend writes its entry and the model's own balance. A row for each client would lie on another page for each, and cost more than
the spend: these are added up later, thousands at a time. Until then a client's balance is its row and what was entered since.
"""

from __future__ import annotations

import json
import operator
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from sqlalchemy import Connection

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger.records import Balance, Chain, Entry
from noiseproof.serve.ledger.statements import Statement
from noiseproof.serve.ledger.tables import EVERYONE

_Units = tuple[int, ...]

_SINCE = Statement(
    "SELECT sequence, client, kind, units FROM entries WHERE model = :model AND sequence > "
    "(SELECT CASE WHEN folded > :after THEN folded ELSE :after END FROM models WHERE model = :model) ORDER BY sequence"
)
_SINCE_OF = Statement(
    "SELECT sequence, client, kind, units FROM entries WHERE model = :model AND client = ANY(:clients) "
    "AND sequence > (SELECT folded FROM models WHERE model = :model) ORDER BY sequence"
)


class Tail:
    """Entries of one account behind those that its clients' balances add up, read once and then kept.

    Entries are never changed, so that those of other processes need only be read behind the last that is known. Whoever spends
    holds the account's lock while it reads them.
    """

    def __init__(self) -> None:
        self._upto = 0
        self._entries: deque[_Known] = deque()
        self._sums: dict[str, tuple[_Units | None, _Units]] = {}
        """By client: its last limit, if there is one, and what it spent."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def ask(self, connection: Connection, model: str) -> Callable[[Chain, int], Tail]:
        """Ask for what is not known; what is returned reads it, and is told the account and up to where its balances go."""
        cursor = _SINCE.run(connection, model=model, after=self._upto)

        def read(chain: Chain, folded: int) -> Tail:
            # All is read, and understood, before any of it counts as known: a connection may break.
            found = [_known(chain, *row) for row in cursor]
            with self._lock:
                if self._entries and self._entries[0].sequence <= folded:
                    while self._entries and self._entries[0].sequence <= folded:
                        self._entries.popleft()
                    self._sums = {}
                    for entry in self._entries:
                        self._add_up(entry)
                self._upto = max(self._upto, folded)
                for entry in found:
                    self._append(entry)
            return self

        return read

    def follow(self, made: Iterable[Entry]) -> None:
        """Add entries that this process has committed, if they come right behind the last that is known."""
        with self._lock:
            for entry in made:
                if entry.sequence == self._upto + 1:
                    self._append(_Known(entry.sequence, entry.client, entry.kind, entry.units))

    def balance(self, chain: Chain, client: str, before: Balance | None) -> Balance | None:
        """A client's balance, of the one that is added up."""
        found = self._sums.get(client)
        if found is None:
            return before
        limit, spent = None if found[0] is None else chain.known(found[0]), chain.known(found[1])
        if before is None:
            return None if limit is None else Balance(limit, spent)
        return Balance(before.capacity if limit is None else limit, before.spent + spent)

    @property
    def clients(self) -> Collection[str]:
        """Whose entries are in it."""
        return self._sums.keys()

    def _append(self, entry: _Known) -> None:
        if entry.sequence > self._upto:
            self._upto = entry.sequence
            if entry.client != EVERYONE:
                self._entries.append(entry)
                self._add_up(entry)

    def _add_up(self, entry: _Known) -> None:
        limit, spent = self._sums.get(entry.client) or (None, (0,) * len(entry.units))
        if entry.kind == "limit":
            limit = entry.units
        else:
            spent = tuple(map(operator.add, spent, entry.units))
        self._sums[entry.client] = limit, spent


def tail_of(connection: Connection, chain: Chain, clients: Collection[str] | None = None) -> Tail:
    """What was entered since clients' balances were added up, of all of them or of some; for one look."""
    if clients is None:
        return Tail().ask(connection, chain.model)(chain, 0)
    tail = Tail()
    for row in _SINCE_OF.run(connection, model=chain.model, clients=list(clients)):
        tail._append(_known(chain, *row))
    return tail


class _Known(NamedTuple):
    """An entry, as far as balances go."""

    sequence: int
    client: str
    kind: str
    units: _Units


def _known(chain: Chain, sequence: int, client: str, kind: str, units: str) -> _Known:
    try:
        return _Known(sequence, client, kind, chain.known(tuple(json.loads(units))).units)
    except (ValueError, TypeError, RecursionError):
        raise LedgerError("a row of the ledger is malformed; `noiseproof ledger verify` says which.") from None
