"""The journal of a training: what it spends, on disk before the update that it paid for is visible anywhere."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.files import lock_file, sync_folder, write_whole
from noiseproof.privacy.events import DpEvent, EventLog, event_from_json, event_to_json


class Journal:
    """A file of spends, one line each with a checksum, only ever added to; a line is on disk when `spend` returns.

    With `ahead` above 1 that many steps are noted at once, which saves the disk's time and costs, at a crash, up to so
    many steps that did not happen.

    The first line says how many lines there are at least: it is written over after each of them, so that lines which are
    cut off later are missed, also those after the newest checkpoint.

    Formal guarantee
    ----------------
    None by itself. If every spend is noted before its result is visible, then what `spends` returns after a crash at any
    moment holds every event whose result ever was; it may hold more, never less. A last line that was not written to
    its end was not yet on disk, so that its result was not visible; any other damage, and lines that are missing, are
    refused (all but the very last, if the machine lost its power right after it). Assumes that the disk keeps what
    `fsync` said it has, and that nobody puts an older copy of the file in its place.
    """

    def __init__(self, path: Path, *, ahead: int = 1) -> None:
        if ahead < 1:
            raise SettingError(f"a journal notes 1 step or more at once, not {ahead}.")
        self._path, self._ahead = path, ahead
        self.found = path.exists()
        """Whether the file was there."""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
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
        """Note that `event` is about to happen `count` times.

        Raises:
            NoiseproofError: If it cannot be noted, say on a full disk, or the file was removed: the step must not happen.
        """
        noted, left = self._reserved
        if noted != event or left < count:
            block = max(count, self._ahead)
            self._append(_noted(event, block))
            self._lines.append((event, block))
            left = block
        self._reserved = event, left - count

    def _append(self, line: bytes) -> None:
        """Bring a line to the disk, whole, or leave the file as it was and refuse."""
        try:
            written = 0
            while written < len(line):  # a full disk may take a part only
                written += os.pwrite(self._file, line[written:], self._size + written)
            os.fsync(self._file)
            if os.fstat(self._file).st_nlink == 0:
                raise OSError(errno.ENOENT, "it was removed")
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise NoiseproofError(
                f"{self._path} cannot take what this step spends ({error.strerror}); the step was not taken, resume when "
                "there is room."
            ) from error
        self._size += len(line)
        self._write_header(len(self._lines) + 1)

    def _write_header(self, lines: int) -> None:
        # Not brought to the disk at once: the next line's fsync does it, and the count is never above the lines.
        os.pwrite(self._file, _header(lines), 0)

    def checkpointed(self) -> int:
        """Forget what was noted ahead, and return the place up to which a checkpoint of now has it all."""
        self._reserved = None, 0
        return len(self._lines)

    def spends(self, start: int = 0) -> Sequence[tuple[DpEvent, int]]:
        """What was noted from that place on."""
        return self._lines[start:]

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)

    def _lock(self) -> None:
        """Keep others out: two trainings from one checkpoint would each forget what the other spent."""
        try:
            lock_file(self._file)
        except OSError:
            raise NoiseproofError(f"another process is training in {self._path.parent}; wait for it to end.") from None

    def _read(self) -> list[tuple[DpEvent, int]]:
        content = self._path.read_bytes()
        if not content:
            os.pwrite(self._file, _header(0), 0)
            os.fsync(self._file)
            self._size = len(_header(0))
            return []
        body, least = content, 0
        headed = content.startswith(_HEADER)
        if headed:
            least = self._read_header(content[: len(_header(0))])
            body = content[len(_header(0)) :]
        whole, newline, rest = body.rpartition(b"\n")
        lines: list[tuple[DpEvent, int]] = []
        for number, line in enumerate(whole.split(b"\n") if newline else []):
            try:
                noted = json.loads(_unsealed(line))
                lines.append((event_from_json(noted["event"]), _whole_number(noted["count"])))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SettingError):
                raise self._unknown(f"line {number + 1} is damaged") from None
        if len(lines) < least:
            raise self._unknown(f"{least - len(lines)} of its lines were cut off")
        if not headed:
            # Of a version that wrote no header: written anew with one, into this very file, which is locked.
            kept = b"".join(_noted(event, count) for event, count in lines)
            body, rest = kept, b""
            whole, newline = kept[:-1], kept[-1:]
            self._replace(_header(len(lines)) + kept)
        self._size = len(_header(0)) + len(body) - len(rest)
        if rest:
            os.ftruncate(self._file, self._size)
        self._write_header(len(lines))
        return lines

    def _read_header(self, header: bytes) -> int:
        try:
            if not header.endswith(b"\n"):
                raise ValueError
            return int(_unsealed(header[len(_HEADER) : -1]))
        except ValueError:
            raise self._unknown("its first line is damaged") from None

    def _replace(self, content: bytes) -> None:
        """Write the whole file anew, and hold the new one as the old."""
        write_whole(self._path, content, mode=0o600)
        new = os.open(self._path, os.O_RDWR)
        os.dup2(new, self._file)
        os.close(new)
        self._lock()

    def _unknown(self, what: str) -> NoiseproofError:
        return NoiseproofError(
            f"{self._path} does not say any more what was spent: {what}. An older copy of it would say too little. Train "
            "anew in another folder, and count this training as spent in full."
        )


_HEADER = b"lines "


def _header(lines: int) -> bytes:
    return _HEADER + _line(f"{lines:012d}")


def _line(text: str) -> bytes:
    return f"{zlib.crc32(text.encode()):08x} {text}\n".encode()


def _noted(event: DpEvent, count: int) -> bytes:
    return _line(json.dumps({"event": event_to_json(event), "count": count}, sort_keys=True))


def _unsealed(line: bytes) -> bytes:
    """The text of a line whose checksum holds."""
    checksum, _, text = line.partition(b" ")
    if not re.fullmatch(rb"[0-9a-f]{8}", checksum) or int(checksum, 16) != zlib.crc32(text):
        raise ValueError
    return text


def _whole_number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError
    return value


class JournaledLog(EventLog):
    """An event log that notes each event in a journal before it takes it in."""

    def __init__(self, journal: Journal, past: Sequence[tuple[DpEvent, int]] = ()) -> None:
        super().__init__(past)
        self._journal = journal

    def append(self, event: DpEvent, count: int = 1) -> None:
        """Note that `event` happened `count` times, on disk first."""
        if count > 0:
            self._journal.spend(event, count)
        super().append(event, count)

    def close(self) -> None:
        """Let go of the journal's file."""
        self._journal.close()
