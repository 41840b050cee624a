"""Tails: what was entered in an account since its clients' balances were last added up.

A spend writes its entry and the model's own balance. A row for each client would lie on another page for each, and cost more than
the spend: these are added up later, thousands at a time. Until then a client's balance is its row and what was entered since.
Nor is the row read again of a client that this process has seen: of its balance it knows what every later entry makes of it.
"""

from __future__ import annotations

import json
import operator
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger.records import Balance, Chain, Entry
from noiseproof.serve.ledger.statements import Statement
from noiseproof.serve.ledger.tables import EVERYONE

_Units = tuple[int, ...]
_MOST_BALANCES = 1 << 18

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
        """The last entry that is known: of this account, and in all balances here."""
        self._balances: dict[str, Balance | None] = {}
        """By client, of those that were asked for; None of one that never had anything."""
        self._entries: deque[_Known] = deque()
        self._sums: dict[str, tuple[_Units | None, _Units]] = {}
        """By client: its last limit, if there is one, and what it spent."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def unknown(self, clients: Collection[str]) -> set[str]:
        """Those of the clients whose balance is not known, so that its row must be read."""
        return {client for client in clients if client not in self._balances}

    def ask(self, connection: Connection, model: str) -> Callable[[Chain, int], Tail]:
        """Ask for what is not known; what is returned reads it, and is told the account and up to where its balances go."""
        cursor = _SINCE.run(connection, model=model, after=self._upto)

        def read(chain: Chain, folded: int) -> Tail:
            # All is read, and understood, before any of it counts as known: a connection may break.
            found = [_known(chain, *row) for row in cursor]
            with self._lock:
                if folded > self._upto or len(self._balances) > _MOST_BALANCES:
                    self._balances = {}  # what was added up meanwhile was not seen
                if self._entries and self._entries[0].sequence <= folded:
                    while self._entries and self._entries[0].sequence <= folded:
                        self._entries.popleft()
                    self._sums = {}
                    for entry in self._entries:
                        self._add_up(entry)
                self._upto = max(self._upto, folded)
                for entry in found:
                    if entry.sequence > self._upto:
                        self._learn(entry)
                    self._append(entry)
            return self

        return read

    def follow(self, made: Sequence[Entry], balances: Mapping[str, Balance]) -> None:
        """Add entries that this process has committed, if they come right behind the last that is known, and what they made of
        balances."""
        with self._lock:
            if made and made[0].sequence == self._upto + 1:
                for entry in made:
                    self._append(_Known(entry.sequence, entry.client, entry.kind, entry.units))
                    self._balances[entry.client] = balances[entry.client]

    def balance(self, chain: Chain, client: str, before: Balance | None) -> Balance | None:
        """A client's balance: the one that is known, or of the one that is added up."""
        if client not in self._balances:
            self._balances[client] = self._added_to(chain, client, before)
        return self._balances[client]

    def _added_to(self, chain: Chain, client: str, before: Balance | None) -> Balance | None:
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

    def _learn(self, entry: _Known) -> None:
        """What an entry of another process makes of a balance that is known."""
        now = self._balances.pop(entry.client, None)
        if now is not None and entry.kind == "limit":
            self._balances[entry.client] = Balance(now.capacity.of(entry.units), now.spent)
        elif now is not None:
            self._balances[entry.client] = Balance(now.capacity, now.spent + now.spent.of(entry.units))

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
