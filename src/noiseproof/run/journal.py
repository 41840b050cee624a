"""Journal: what a training has spent, on disk before the update that it paid for is visible anywhere."""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.privacy.events import DpEvent, EventLog
from noiseproof.run.checkpoint_files import sync_folder

Spend = tuple[DpEvent, int]
"""An event and how often it happened."""

_KNOWN = {kind.__name__: kind for kind in DpEvent.__subclasses__()}


class Journal:
    """A file of spends, one line each with a checksum, only ever added to; a line is on disk when `spend` returns.

    With `ahead` above 1 that many steps are noted at once, which saves the disk's time and costs, at a crash, up to so
    many steps that did not happen.

    Formal guarantee
    ----------------
    None by itself. If every spend is noted before its result is visible, then what `spends` returns after a crash at any
    moment holds every event whose result ever was; it may hold more, never less. A last line that was not written to
    its end was not yet on disk, so that its result was not visible; any other damage is refused. Assumes that the disk
    keeps what `fsync` said it has.
    """

    def __init__(self, path: Path, *, ahead: int = 1) -> None:
        if ahead < 1:
            raise SettingError(f"a journal notes 1 step or more at once, not {ahead}.")
        self._path, self._ahead = path, ahead
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            self._lock()
            self._lines = self._read()
            sync_folder(path.parent)
        except BaseException:
            os.close(self._file)
            raise
        self._reserved: tuple[DpEvent | None, int] = None, 0

    def __len__(self) -> int:
        return len(self._lines)

    def spend(self, event: DpEvent, count: int = 1) -> None:
        """Note that `event` is about to happen `count` times."""
        noted, left = self._reserved
        if noted != event or left < count:
            block = max(count, self._ahead)
            text = json.dumps({"event": encode(event), "count": block}, sort_keys=True)
            os.write(self._file, f"{zlib.crc32(text.encode()):08x} {text}\n".encode())
            os.fsync(self._file)
            self._lines.append((event, block))
            left = block
        self._reserved = event, left - count

    def settle(self) -> int:
        """Forget what was noted ahead, and return the place up to which a checkpoint of now has it all."""
        self._reserved = None, 0
        return len(self._lines)

    def spends(self, start: int = 0) -> Sequence[Spend]:
        """What was noted from that place on."""
        return self._lines[start:]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _lock(self) -> None:
        """Keep others out: two trainings from one checkpoint would each forget what the other spent."""
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            return  # not a POSIX system
        except OSError:
            raise NoiseproofError(f"another process is training in {self._path.parent}; wait for it to end.") from None

    def _read(self) -> list[Spend]:
        content = self._path.read_bytes()
        whole, newline, rest = content.rpartition(b"\n")
        lines: list[Spend] = []
        for number, line in enumerate(whole.split(b"\n") if newline else []):
            checksum, _, text = line.partition(b" ")
            try:
                if int(checksum, 16) != zlib.crc32(text):
                    raise ValueError
                noted = json.loads(text)
                lines.append((decode(noted["event"]), int(noted["count"])))
            except (ValueError, KeyError, TypeError):
                raise NoiseproofError(
                    f"line {number + 1} of {self._path} is damaged, so that what was spent is not known; restore the file "
                    "from a backup, or train anew in another folder and count this training as spent in full."
                ) from None
        if rest:
            with self._path.open("r+b") as file:
                file.truncate(len(whole) + len(newline))
        return lines


class JournalledLog(EventLog):
    """An event log that notes each event in a journal before it takes it in."""

    def __init__(self, journal: Journal, past: Sequence[Spend] = ()) -> None:
        super().__init__()
        for event, count in past:
            super().append(event, count)
        self._journal = journal

    def append(self, event: DpEvent, count: int = 1) -> None:
        """Note that `event` happened `count` times, on disk first."""
        if count > 0:
            self._journal.spend(event, count)
        super().append(event, count)


def encode(event: DpEvent) -> dict[str, Any]:
    """An event as JSON."""
    if type(event).__name__ not in _KNOWN:
        raise SettingError(f"a {type(event).__name__} cannot be written to a journal.")
    fields = [field.name for field in dataclasses.fields(event)]
    return {"kind": type(event).__name__, **{name: _encode(getattr(event, name)) for name in fields}}


def decode(document: dict[str, Any]) -> DpEvent:
    """The event that `encode` wrote."""
    fields = {name: _decode(value) for name, value in document.items() if name != "kind"}
    event: DpEvent = _KNOWN[document["kind"]](**fields)
    return event


def _encode(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return encode(value)
    return [_encode(each) for each in value] if isinstance(value, list | tuple) else value


def _decode(value: Any) -> Any:
    if isinstance(value, dict):
        return decode(value)
    return [_decode(each) for each in value] if isinstance(value, list) else value
