"""The user's own DataLoader of an iterable data set: its batches as they come, for noise that is correlated over the steps."""

from __future__ import annotations

import hashlib
import math
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Sampler

from noiseproof.engine import CorrelatedGradients
from noiseproof.engine.collating import SeparateCollate
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.integrations.loader import Drawn

STATED = (
    "the loader's stream gives each of its records once a pass, at a place that depends on no record, as was stated"
)
"""What nobody can see of a stream."""
Ids = Callable[[Any], torch.Tensor]
"""From a batch to the ids of its records."""


class Plan(NamedTuple):
    """How many steps a pass over a stream has."""

    steps: int
    """At least so many: visits of a record in two passes are so far apart."""
    most: int
    """At most so many, since each worker's last batch may be short."""


def plan(loader: DataLoader[Any], records: int | None, ids: Ids | None, batches: int) -> Plan:
    """The steps of a pass over a loader's stream, of so many batches each.

    Raises:
        SettingError: If nobody has said how many records there are.
        UnsupportedError: If several workers have a copy of the stream each, and nobody can say whose records they give.
    """
    if records is None or records < 1:
        raise SettingError("nobody can see how many records an iterable data set has; state it: records=...")
    if ids is None and loader.num_workers > 1:
        raise UnsupportedError(
            f"each of the loader's {loader.num_workers} workers has a copy of the stream, and nobody can see whether two give "
            "the same record; give the ids of a batch's records, ids=lambda batch: batch['id'], or take num_workers=1."
        )
    if loader.drop_last:
        raise UnsupportedError(
            "a stream's last batch, which may be short, is a step like any other; leave drop_last at False."
        )
    full = math.ceil(records / (loader.batch_size or 1))
    return Plan(math.ceil(full / batches), math.ceil((full + max(loader.num_workers - 1, 0)) / batches))


class StreamSampler(Sampler[list[int]]):
    """Asks a stream for batches of a loader's size, in pieces; `drawn` has in order what came of them.

    A record is known by its id, or by its place in the stream: then a stream that gives another record at a place of a
    later pass than in the first is stopped, and a loop that left a pass goes on in the next with the batch that comes next.

    Args:
        loader: The loader.
        gradients: What is told whose records come.
        planned: The steps of a pass.
        records: How many records the stream has, as was stated.
        ids: From a batch to its records' ids.
        pieces: How many batches make a step.
        most: The most records that come at once.
        passes: How often the stream will be run through.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        gradients: CorrelatedGradients,
        planned: Plan,
        *,
        records: int,
        ids: Ids | None,
        pieces: int,
        most: int | None,
        passes: int,
    ) -> None:
        size = loader.batch_size or 1
        sizes = [min(size - start, most or size) for start in range(0, size, most or size)]
        self._sizes, self._pieces = sizes, len(sizes) * pieces
        self._gradients, self._plan, self._records, self._ids = gradients, planned, records, ids
        self.steps = planned.steps
        self.drawn: deque[Drawn] = deque()
        # Places say whose a record is only if it is there in every pass.
        self._marks = None if ids is not None or passes == 1 else torch.zeros(records, dtype=torch.int64)
        self._known = 0
        """Of how many records the mark is known."""
        self._ended: int | None = None
        """After how many records a pass was over too early."""
        loader.collate_fn = Marked(SeparateCollate(loader.collate_fn), marking=self._marks is not None)
        gradients.follow_visits(records)

    def __iter__(self) -> Iterator[list[int]]:
        while self.steps:  # until the stream ends, or the training was closed
            for size in self._sizes:
                yield [0] * size

    def __len__(self) -> int:
        """Batches of a pass, as far as can be known."""
        return math.ceil(self._records / sum(self._sizes)) * len(self._sizes)

    def given(self, batches: Iterator[tuple[int, torch.Tensor | None, Any]]) -> Iterator[Any]:
        """The loader's batches as its own collate_fn gives them, each noted in `drawn` and its records in the gradients.

        Raises:
            NoiseproofError: If the stream is not what was stated.
        """
        if self._ended is not None and self._ids is None:
            raise NoiseproofError(
                f"the stream has ended after {self._ended} of the {self._records} records that were stated, so that another pass "
                "would have each come too early for the noise."
            )
        self.drawn.clear()
        left = 0 if self._ids is not None else self._gradients.position % self._plan.steps * self._pieces
        place, number = 0, 0
        coming = next(batches, None)
        while coming is not None:
            count, marks, batch = coming
            if self._ids is None and place + count > self._records:
                raise NoiseproofError(f"the stream has more than the {self._records} records that were stated.")
            self._compare(place, marks)
            place, number = place + count, number + 1
            # Looked ahead only where a step has several pieces, of which the stream's end may be the last.
            last = number % self._pieces == 0
            coming = None if last else next(batches, None)
            if number > left:
                whose = torch.arange(place - count, place) if self._ids is None else self._ids(batch)
                self._gradients.expect_visits(whose)
                self.drawn.append(Drawn(len(whose), last or coming is None))
                yield batch
            if last:
                coming = next(batches, None)
        if math.ceil(number / self._pieces) < self._plan.steps and self.steps:
            self._ended = place

    def _compare(self, place: int, marks: torch.Tensor | None) -> None:
        if self._marks is None or marks is None:
            return
        there = self._marks[place : place + len(marks)]
        known = min(max(self._known - place, 0), len(marks))
        if not torch.equal(there[:known], marks[:known]):
            raise NoiseproofError(
                "the stream gives other records, or others in their places, than in its first pass, so that one may come too "
                "early, which the noise does not cover; let it shuffle and change nothing by chance (do that in the loop), or "
                "give the ids of a batch's records (ids=lambda batch: batch['id'])."
            )
        there[known:] = marks[known:]
        self._known = max(self._known, place + len(marks))

    def state(self) -> dict[str, Any]:
        """What tells records of a later pass apart, for a checkpoint: as private as the records."""
        return {} if self._marks is None else {"marks": self._marks[: self._known].clone()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on with what `state` gave."""
        if "marks" in state:
            self._compare(0, state["marks"])


class Marked:
    """A collate function that also says how many records it was given and, if asked to, what tells them from others."""

    def __init__(self, own: Callable[[list[Any]], Any], *, marking: bool) -> None:
        self.own, self.marking = own, marking

    def __call__(self, records: list[Any]) -> tuple[int, torch.Tensor | None, Any]:
        """The number, the marks, and the batch."""
        marks = torch.tensor([_mark(record) for record in records]) if self.marking else None
        return len(records), marks, self.own(records)


def _mark(record: Any) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for leaf in tree_leaves(record):
        if isinstance(leaf, torch.Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            leaf = leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            digest.update(leaf.tobytes())
        else:
            digest.update(pickle.dumps(leaf))
    return int.from_bytes(digest.digest(), "little", signed=True)
