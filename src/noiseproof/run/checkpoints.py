"""Checkpoints: a training that can be killed at any moment, goes on, and forgets nothing that it spent.

`Checkpoints` is the folder of one training, in which a `Journal` notes what it spends. A checkpoint is one safetensors file
with a digest of everything in it.
"""

from __future__ import annotations

import hashlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.files import write_whole
from noiseproof.privacy.events import event_from_json, event_to_json

if TYPE_CHECKING:
    from noiseproof.methods.gradients.descent import TrainingState
from noiseproof.run.journal import Journal, JournaledLog

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
        self, folder: str | Path, *, every: int = 100, keep: int = 2, ahead: int = 1, resume: bool = False
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
        values = dict(json.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SafetensorError):
        raise DamagedError(f"the checkpoint {name} is truncated or is none.") from None
    if version != FORMAT:
        raise DamagedError(f"the checkpoint {name} has format {version}; this version reads format {FORMAT}.")
    if digest != _digest(tensors, text):
        raise DamagedError(f"the checkpoint {name} was changed or is damaged.")
    return tensors, values


def _digest(tensors: Mapping[str, torch.Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
