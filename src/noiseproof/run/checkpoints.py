"""Checkpoints: a training that can be killed at any moment, goes on, and forgets nothing that it spent.

`Checkpoints` is the folder of one training, `Journal` the file of what it has spent, on disk before the update that it
paid for is visible anywhere. A checkpoint is one safetensors file with a digest of everything in it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import signal
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.files import lock_file, sync_folder, write_whole
from noiseproof.privacy.events import DpEvent, EventLog
from noiseproof.releases.bundles import event_from_json, event_to_json

if TYPE_CHECKING:
    from noiseproof.methods.gradients.descent import TrainingState

FORMAT = "1"
_JOURNAL = "spent.jsonl"


class StoppedError(NoiseproofError):
    """A training was asked to stop (SIGTERM) and left a checkpoint."""


class DamagedError(NoiseproofError):
    """A checkpoint is truncated or was changed; it is not used."""


class Checkpoints:
    """A folder that holds the last checkpoints of one training and the journal of what it spent.

    A checkpoint is written every `every` steps, after the last one and when SIGTERM arrives; the newest `keep` are kept.
    `resume` takes up the training that the folder holds, if it holds one; without it a folder that holds one is refused,
    so that no spend is forgotten. `ahead` is for `Journal`. The folder is as private as the records.

    Formal guarantee
    ----------------
    The events of a resumed training hold every step whose update was ever visible: each is in the journal, on disk,
    before its gradient exists. With secure randomness steps after the checkpoint were drawn anew, so that both draws are
    charged and as many fewer steps are left to take: the planned number of steps is never exceeded (with a noise
    schedule that rises, the card's epsilon may be). Reproducible randomness draws the very same numbers again, so that
    steps that are repeated are the same release and are charged once; that holds for the same machine and versions, and
    such a release must not leave anyway. Unit, neighbours and assumptions: those of the gradients.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        every: int = 100,
        keep: int = 2,
        ahead: int = 1,
        resume: bool = False,
    ) -> None:
        if every < 1 or keep < 1:
            raise SettingError(f"checkpoints come every 1 step or more and 1 or more is kept, not {every} and {keep}.")
        self.folder, self.every, self.keep, self.ahead = Path(folder), every, keep, ahead
        self.damaged: tuple[str, ...] = ()
        """What was wrong with checkpoints that were not used, for people."""
        self._identity: dict[str, Any] = {}
        self._resume = resume
        self._state: TrainingState | None = None
        self._journal: Journal | None = None
        self._saved = -1
        self._stop = threading.Event()
        if not resume and self.folder.is_dir() and any(self.folder.iterdir()):
            raise SettingError(
                f"{self.folder} is not empty; resume the training that it holds, or choose another folder for this one."
            )

    def belongs_to(self, **facts: Any) -> None:
        """Say which training this is (data, settings, seed): the checkpoints of another one are then refused."""
        self._identity.update({name: repr(fact) for name, fact in facts.items()})

    def begin(self, state: TrainingState) -> None:
        """Take up the training where the folder leaves it, or begin a new one there; call it before the first batch.

        Afterwards `len(state.gradients.events)` steps have been charged. Only rank 0 reads and writes files.
        """
        ranks, rng = state.gradients.ranks, state.gradients.randomness[0]
        self._state = state
        self.belongs_to(randomness=rng.kind)
        if rng.kind == "reproducible":
            # Each rank's noise comes from its own stream: with other ranks the same steps would be drawn differently.
            self.belongs_to(ranks=ranks.size)
        content = b""
        past: list[Any] = []
        if ranks.rank == 0:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._journal = Journal(self.folder / _JOURNAL, ahead=self.ahead)
            for unfinished in self.folder.glob(".step-*"):
                unfinished.unlink()
            content, position, past = self._newest()
            if rng.kind == "secure" or not content:
                past += [[event_to_json(event), count] for event, count in self._journal.spends(position)]
        content = ranks.share(content)
        past = json.loads(ranks.share(json.dumps(past).encode()))
        if content:
            tensors, values = unpack(content, "that rank 0 read")
            state.restore(tensors, values["state"])
            self._saved = state.gradients.steps
        spends = [(event_from_json(event), count) for event, count in past]
        if self._journal is not None:
            state.gradients.events = JournaledLog(self._journal, spends)
        else:
            for event, count in spends:
                state.gradients.events.append(event, count)
        # Also of the start: from the first step on the folder says which training it holds.
        self.save()

    def after_step(self) -> None:
        """Write a checkpoint if it is time to, or if SIGTERM came; then raise `StoppedError`."""
        assert self._state is not None
        if self._stop.is_set():
            self.save()
            raise StoppedError(
                f"stopped by SIGTERM after {self._state.gradients.steps} steps; a checkpoint is in {self.folder}, use "
                "--resume to go on."
            )
        if self._state.gradients.steps % self.every == 0:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of now, unless there is one, and drop those that are too old."""
        state, journal = self._state, self._journal
        if state is None or journal is None or state.gradients.steps == self._saved:
            return
        tensors, values = state.capture()
        document = {
            "identity": self._identity,
            "state": values,
            "spent": [[event_to_json(event), count] for event, count in state.gradients.events.runs],
            "journal": journal.checkpointed(),
        }
        path = self.folder / f"step-{state.gradients.steps:09d}.safetensors"
        write_whole(path, pack(tensors, document), mode=0o600)
        self._saved = state.gradients.steps
        for old in self._files()[self.keep :]:
            old.unlink()

    @contextmanager
    def watching(self, rank: int = 0) -> Iterator[None]:
        """While it lasts, SIGTERM asks for a checkpoint and an end, instead of ending the process at once.

        Rank 0 writes the checkpoint; the others must take part in its last step, and end when it is gone.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # Python delivers signals to the main thread only
            return

        def stop(_: int, __: FrameType | None) -> None:
            self._stop.set()

        before = signal.signal(signal.SIGTERM, signal.SIG_IGN if rank else stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.safetensors"), reverse=True)

    def _newest(self) -> tuple[bytes, int, list[Any]]:
        """The newest whole checkpoint, where the journal was then, and what had been spent; nothing if there is none."""
        assert self._journal is not None
        files = self._files()
        damaged = []
        for path in files:
            content = path.read_bytes()
            try:
                _, values = unpack(content, path.name)
            except DamagedError as error:
                damaged.append(str(error))
                continue
            if values["identity"] != self._identity:
                differ = sorted(
                    key
                    for key in {*values["identity"], *self._identity}
                    if values["identity"].get(key) != self._identity.get(key)
                )
                raise SettingError(
                    f"{self.folder} holds the checkpoints of another training (its {', '.join(differ)} differ); resume with "
                    "the settings and data that it was begun with."
                )
            if values["journal"] > len(self._journal) or not self._journal.found:
                raise NoiseproofError(
                    f"{self.folder / _JOURNAL} is shorter than its checkpoint says, or is gone, so that what was spent is "
                    "not known; train anew in another folder, and count this training as spent in full."
                )
            self.damaged = tuple(damaged)
            for bad in files[: len(damaged)]:
                # Kept for whoever wants to know why, but not among the checkpoints any more.
                bad.rename(bad.with_suffix(".damaged"))
            return content, values["journal"], list(values["spent"])
        if files:
            raise DamagedError(f"every checkpoint in {self.folder} is damaged; {damaged[0]}")
        return b"", 0, []


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
            text = json.dumps({"event": event_to_json(event), "count": block}, sort_keys=True)
            self._append(_line(text))
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
            kept = b"".join(
                _line(json.dumps({"event": event_to_json(e), "count": n}, sort_keys=True)) for e, n in lines
            )
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
        super().__init__()
        for event, count in past:
            super().append(event, count)
        self._journal = journal

    def append(self, event: DpEvent, count: int = 1) -> None:
        """Note that `event` happened `count` times, on disk first."""
        if count > 0:
            self._journal.spend(event, count)
        super().append(event, count)

    def close(self) -> None:
        """Let go of the journal's file."""
        self._journal.close()


def pack(tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> bytes:
    """Tensors and JSON values as the bytes of a safetensors file, the values and a digest in its header."""
    text = json.dumps(values, sort_keys=True)
    metadata = {"format": FORMAT, "values": text, "digest": _digest(tensors, text)}
    return bytes(save_tensors(dict(tensors), metadata=metadata))


def unpack(content: bytes, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and values of a file's bytes; anything that is not whole is refused."""
    try:
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size])["__metadata__"]
        tensors = load_tensors(content)
        text, digest, version = metadata["values"], metadata["digest"], metadata["format"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError, SafetensorError):
        raise DamagedError(f"the checkpoint {name} is truncated or is none.") from None
    if version != FORMAT:
        raise DamagedError(f"the checkpoint {name} has format {version}; this version reads format {FORMAT}.")
    if digest != _digest(tensors, text):
        raise DamagedError(f"the checkpoint {name} was changed or is damaged.")
    return tensors, json.loads(text)


def _digest(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
