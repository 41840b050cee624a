"""Heads: where a ledger's histories are, signed and kept elsewhere, so that nobody can cut them off or write them anew.

A checkpoint is a head with everybody's balances: whoever trusts its signer verifies on from there.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import select

from noiseproof.errors import LedgerError, SettingError
from noiseproof.releases import signing
from noiseproof.releases.signing_keys import PublicKey, Signer
from noiseproof.serve.ledger import grants as chain
from noiseproof.serve.ledger.database import Database
from noiseproof.serve.ledger.replay import Position, Standing
from noiseproof.serve.ledger.tables import anchors, lock

PREDICATE = "urn:noiseproof:ledger-head:v1"
_BALANCES = "balances.json"
_LARGEST = 1 << 28
"""Bytes of an anchor at most."""
_SECONDS = 10.0
"""Seconds that a URL may take to answer."""

Head = tuple[int, str]
"""The number and the hash of a chain's last entry."""


@dataclass(frozen=True)
class Checkpoint:
    """Where every chain of a ledger was at a moment, and how everybody stood."""

    ledger: str
    made_at: int
    grants: Head
    models: Mapping[str, Head]
    standings: Mapping[str, Mapping[str, Standing]] = field(default_factory=dict)

    def position(self, model: str) -> Position:
        """The place in a model's history to go on from."""
        return Position(*self.models[model], dict(self.standings[model]))

    def signed(self, key: Signer) -> str:
        """The checkpoint as a document: a DSSE envelope over the heads and a digest of the balances, and these."""
        balances = json.dumps(self.standings, sort_keys=True)
        head = {"ledger": self.ledger, "made_at": self.made_at, "grants": self.grants, "models": self.models}
        envelope = signing.sign({_BALANCES: balances.encode()}, PREDICATE, head, key)
        return json.dumps({"head": json.loads(envelope), "balances": json.loads(balances)})

    @classmethod
    def read(cls, document: bytes | str, key: PublicKey, where: str) -> Checkpoint:
        """The checkpoint in a document, if the key's holder signed it.

        Raises:
            LedgerError: If it cannot be read, was changed, or is signed by somebody else.
        """
        try:
            given = json.loads(document)
            envelope, standings = json.dumps(given["head"]), given["balances"]
            balances = json.dumps(standings, sort_keys=True)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise LedgerError(f"{where} is no signed head of a ledger.") from None
        found = signing.verify(envelope, {_BALANCES: balances.encode()}, PREDICATE, key)
        if not found.valid:
            raise LedgerError(f"{where} is not to be believed: {'; '.join(found.findings) or 'it is not signed.'}")
        try:
            head = found.predicate
            heads = {str(model): _head(one) for model, one in head["models"].items()}
            stood = {
                str(model): {str(client): _standing(one) for client, one in clients.items()}
                for model, clients in standings.items()
            }
            if heads.keys() != stood.keys():
                raise ValueError
            return cls(str(head["ledger"]), int(head["made_at"]), _head(head["grants"]), heads, stood)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise LedgerError(f"{where} was signed, but is no head of a ledger that this version can read.") from None


def fetch(where: str, key: PublicKey, ledger: str) -> list[Checkpoint]:
    """The checkpoints of a ledger that are kept in a file, in a URL's answer, or in another ledger.

    Args:
        where: A file that `ledger sign` wrote, an `http(s)://` address that answers with one, or another ledger.
        key: Who must have signed.
        ledger: The id of the ledger that they must be about, if another ledger keeps them for several.

    Raises:
        LedgerError: If there is none, or one is not to be believed.
    """
    if where.startswith(("http://", "https://")):
        return [Checkpoint.read(_download(where), key, where)]
    file = Path(where.removeprefix("sqlite:///"))
    if "://" not in where and file.is_file():
        with file.open("rb") as opened:
            start = opened.read(16)
            if start != b"SQLite format 3\x00":
                content = start + opened.read(_LARGEST)
                return [Checkpoint.read(content, key, where)]
    with Database(where, create=False) as other, other.reading() as connection:
        granted = chain.replay(connection)
        if granted.problems or (found := chain.check_tables(connection, granted)):
            raise LedgerError(f"the ledger that keeps the heads does not hold: {(granted.problems or found)[0]}")
        kept = connection.execute(select(anchors.c.document).where(anchors.c.ledger == ledger)).scalars().all()
    if not kept:
        raise LedgerError("that ledger keeps no head of this one; `noiseproof ledger sign --into` puts one there.")
    return [Checkpoint.read(document, key, "the other ledger's head") for document in kept]


def keep(database: Database, checkpoint: Checkpoint, document: str) -> None:
    """Keep another ledger's signed head in this ledger, in its own chain."""
    with database.writing() as connection:
        lock(connection, "open")
        row = {"ledger": checkpoint.ledger, "made_at": checkpoint.made_at, "document": document}
        chain.put(connection, anchors, row)


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            content: bytes = answer.read(_LARGEST + 1)
    except (OSError, urllib.error.URLError, ValueError) as error:
        raise LedgerError(f"{url} does not answer ({type(error).__name__}).") from None
    if len(content) > _LARGEST:
        raise SettingError(f"{url} answers with more than {_LARGEST} bytes.")
    return content


def _head(given: Any) -> Head:
    sequence, hash = given
    if type(sequence) is not int or type(hash) is not str or sequence < 0:
        raise ValueError
    return sequence, hash


def _standing(given: Any) -> Standing:
    capacity, spent, answers = given
    numbers = [*capacity, *spent, answers]
    if len(capacity) != len(spent) or not all(type(one) is int and one >= 0 for one in numbers):
        raise ValueError
    return tuple(capacity), tuple(spent), answers
