"""Bindings: the file in a bundle that names its ledger, where that ledger's history was, and how much may be spent by now.

A ledger can be lost, or put back from an old copy; it cannot tell so by itself. The bundle that it pays for can.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, select

from noiseproof.errors import BundleError, LedgerError
from noiseproof.files import write_whole
from noiseproof.releases.bundles import BINDING, read_file
from noiseproof.serve.ledger.records import Balance
from noiseproof.serve.ledger.tables import entries

_SHARE = 64
"""How often, at most, a spend waits for the file while a budget is spent: what is noted ahead is a share of the budget."""


@dataclass(frozen=True)
class Noted:
    """What a bundle knows of its ledger: its id, the account's last entry, and what was spent at most since."""

    ledger: str
    model: str | None = None
    sequence: int = 0
    head: str = ""
    at_most: tuple[int, ...] = ()
    """Units that may have been spent of the account: never less than what was."""

    @classmethod
    def read(cls, file: Path) -> Noted | None:
        """What is noted in a file; None if there is none."""
        if not os.path.lexists(file):
            return None
        try:
            document = json.loads(read_file(file.parent, file.name))
            found = cls(**{**document, "at_most": tuple(document.get("at_most", ()))})
            texts = [found.ledger, found.head, *(() if found.model is None else (found.model,))]
            numbers = [found.sequence, *found.at_most]
            if not all(isinstance(one, str) for one in texts) or not all(
                type(one) is int and one >= 0 for one in numbers
            ):
                raise ValueError
            "".join(texts).encode()  # which half a character cannot be, and no database takes one
        except (BundleError, ValueError, TypeError, AttributeError, RecursionError):
            raise LedgerError(
                f"{file} cannot be read, so that nobody knows which ledger pays for this bundle; it was changed."
            ) from None
        return found

    def check(self, connection: Connection, where: Path) -> None:
        """Refuse a ledger whose history does not hold what was noted.

        Raises:
            LedgerError: If it was put back from an older copy, cut off or rewritten.
        """
        if self.model is None or self.sequence == 0:
            return
        query = select(entries.c.hash).where(entries.c.model == self.model, entries.c.sequence == self.sequence)
        if connection.execute(query).scalar_one_or_none() != self.head:
            raise LedgerError(
                f"the ledger does not have entry {self.sequence} of {self.model!r} that {where} noted: it is an older "
                "copy, or was rewritten, and would sell answers again. Use the ledger as it was, or count what may have "
                "been spent with `noiseproof ledger restore --bundle`."
            )


class Binding:
    """The file of one bundle, kept ahead of what is spent, so that a lost ledger is no lost count.

    Formal guarantee
    ----------------
    Before an answer of the bundle is released, the file on disk says `at_most` units that are no fewer than what was
    spent in all. Whoever goes on with a budget from which `at_most` is taken therefore spends nothing twice. Assumes
    that the file is not itself put back from an older copy. A bundle that cannot be written to is refused.
    """

    def __init__(self, bundle: Path, ledger: str) -> None:
        self._file = bundle / BINDING
        self._threads = threading.Lock()
        self._noted = Noted.read(self._file) or Noted(ledger)
        if not os.access(bundle, os.W_OK):
            raise LedgerError(
                f"{bundle} cannot be written to, so that nothing would tell which ledger pays for it; let it be written to "
                "by whoever serves it."
            )
        if self._noted.ledger != ledger:
            raise LedgerError(
                f"{bundle} is paid for by another ledger (id {self._noted.ledger}), which knows what was answered; serve it "
                "with that one."
            )

    def check(self, connection: Connection) -> None:
        """Refuse a ledger that lacks what was noted (see `Noted.check`)."""
        self._noted.check(connection, self._file)

    def check_account(self, model: str) -> None:
        """Refuse another account than the one that was noted: the ledger was changed so that it does not know the release."""
        if self._noted.model not in (None, model):
            raise LedgerError(
                f"{self._file} noted the account {self._noted.model!r}, and the ledger has another for this bundle, "
                f"{model!r}: it was changed, and would sell answers again."
            )

    def reach(self, model: str, sequence: int, head: str, everyone: Balance) -> None:
        """Note that an account has come so far, before what was paid for is released; usually that was noted ahead."""
        with self._threads:
            if _within(everyone.spent.units, self._noted.at_most):
                return
            with _locked(self._file.parent):
                noted = Noted.read(self._file) or self._noted
                if not _within(everyone.spent.units, noted.at_most):  # another worker may have noted it
                    noted = _ahead(noted.ledger, model, sequence, head, everyone)
                    _write(self._file, noted)
                self._noted = noted

    def keep_up(self, model: str, sequence: int, head: str, everyone: Balance) -> None:
        """Note where an account is, unless that is noted: a copy of the ledger from before is then known for one.

        What is noted ahead is a share of the budget, in which an older copy would not be missed.
        """
        with self._threads:
            if self._noted.model is not None and sequence <= self._noted.sequence:
                return
            with _locked(self._file.parent):
                noted = Noted.read(self._file) or self._noted
                if noted.model is None or noted.sequence < sequence:
                    noted = _ahead(noted.ledger, model, sequence, head, everyone)
                    _write(self._file, noted)
                self._noted = noted

    def renew(self, model: str, sequence: int, head: str, everyone: Balance) -> None:
        """Note where an account is, whatever was noted before: what that said has been counted as spent."""
        self._noted = _ahead(self._noted.ledger, model, sequence, head, everyone)
        _write(self._file, self._noted)


def _ahead(ledger: str, model: str, sequence: int, head: str, everyone: Balance) -> Noted:
    room = zip(everyone.spent.units, everyone.capacity.units, strict=True)
    return Noted(ledger, model, sequence, head, tuple(min(most, used + most // _SHARE) for used, most in room))


def _write(file: Path, noted: Noted) -> None:
    try:
        write_whole(file, json.dumps(asdict(noted)), mode=0o600)
    except OSError as error:
        raise LedgerError(
            f"{file} cannot be written ({error.strerror}), so that a lost ledger would be a lost count; nothing was released."
        ) from error


def _within(spent: tuple[int, ...], most: tuple[int, ...]) -> bool:
    return len(spent) == len(most) and all(a <= b for a, b in zip(spent, most, strict=True))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder against other workers of this machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
