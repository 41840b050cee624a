"""The user's own DataLoader, changed in place so that it hands over what is accounted for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler, default_collate
from torch.utils.data.distributed import DistributedSampler

from noiseproof.engine import CorrelatedGradients, PoissonSampler
from noiseproof.engine.collating import SeparateCollate
from noiseproof.engine.persons import Owners, PersonSampler
from noiseproof.engine.ranks import Ranks
from noiseproof.errors import UnsupportedError
from noiseproof.privacy import Randomness


class Drawn(NamedTuple):
    """A piece of a step's sample: its records, whether it is the last, and whose they are if persons were drawn."""

    records: int
    last: bool
    owners: Owners | None = None


Piece = tuple[torch.Tensor, Owners | None]
"""The indices of some records, and whose they are if persons were drawn."""


class LoopSampler(PoissonSampler):
    """Batches of indices for one epoch, each a piece of a step's Poisson sample; `drawn` has them in order.

    A piece without records is given the index 0, so that networks need not take batches of none; whoever hands it over
    knows from `drawn` that it counts for nothing.

    Formal guarantee
    ----------------
    That of `PoissonSampler`; how a sample is cut into pieces depends on its size alone, and all pieces are one step.
    """

    def __init__(
        self,
        records: int,
        sample_rate: float,
        steps: int,
        rng: Randomness,
        ranks: Ranks,
        *,
        pieces: int = 1,
        most: int | None = None,
        persons: PersonSampler | None = None,
    ) -> None:
        super().__init__(records, sample_rate, steps, rng, ranks)
        self.pieces, self.most, self.persons = pieces, most, persons
        self.drawn: deque[Drawn] = deque()

    def __len__(self) -> int:
        return self.steps * self.pieces

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        for _ in range(self.steps):
            pieces = list(self._of_records() if self.persons is None else self._of_persons(self.persons))
            for number, (piece, owners) in enumerate(pieces, 1):
                self.drawn.append(Drawn(len(piece), number == len(pieces), owners))
                yield piece.tolist() or [0]

    def _of_records(self) -> Iterator[Piece]:
        for piece in self.draw().tensor_split(self.pieces):
            for part in piece.split(self.most or max(1, len(piece))):
                yield part, None

    def _of_persons(self, persons: PersonSampler) -> Iterator[Piece]:
        for piece in persons.sample(self.sample_rate).tensor_split(self.pieces):
            records, owners = persons.records_of(piece)
            owned = owners.split(self.most or max(1, len(records)))
            yield from zip(records.split([len(each.owners) for each in owned]), owned, strict=True)


class OrderSampler(Sampler[list[int]]):
    """A loader's own batches, the same in every epoch; an epoch that was left goes on with the step that comes next."""

    def __init__(
        self, loader: DataLoader[Any], gradients: CorrelatedGradients, *, pieces: int, most: int | None
    ) -> None:
        batches = [torch.tensor(batch) for batch in loader.batch_sampler or ()]
        groups = [batches[start : start + pieces] for start in range(0, len(batches), pieces)]
        gradients.declare([torch.cat(group).tolist() for group in groups], len(loader.dataset))  # type: ignore[arg-type]
        self._groups = [[part for batch in group for part in batch.split(most or len(batch))] for group in groups]
        self._gradients, self.steps = gradients, len(groups)
        self.drawn: deque[Drawn] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._groups))

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        for group in self._groups[self._gradients.position % len(self._groups) : self.steps]:
            for number, piece in enumerate(group, 1):
                self.drawn.append(Drawn(len(piece), number == len(group)))
                yield piece.tolist()


def inner_loader(loader: DataLoader[Any], *, as_they_come: bool = False) -> DataLoader[Any]:
    """The DataLoader that draws, if it is one whose batches can be drawn as is accounted for, or taken `as_they_come`.

    Raises:
        UnsupportedError: If it is not; the message says what can be done.
    """
    inner = getattr(loader, "base_dataloader", loader)  # accelerate keeps it there
    if not isinstance(inner, DataLoader):
        raise UnsupportedError(f"a {type(loader).__name__} cannot be made private; give a torch DataLoader.")
    stream = isinstance(inner.dataset, IterableDataset)
    if stream and not as_they_come:
        raise UnsupportedError(
            "the loader's data set is iterable, so that no record can be drawn by chance, as the accounted sampling needs; make "
            "it a map-style data set with __len__ and __getitem__ (datasets: without streaming), or take its batches as they "
            "come, with correlated noise: mechanism='mf', neighbours='replace-one', records=..."
        )
    if not getattr(inner, "in_order", True):
        raise UnsupportedError(
            "the loader hands over batches as its workers finish them, so that nobody knows which sample they are of; leave "
            "in_order at True."
        )
    if inner.batch_sampler is None:
        raise UnsupportedError("the loader has no batch size, from which the sampling rate follows; give it one.")
    if stream:
        return inner
    sampler = getattr(inner.batch_sampler, "sampler", inner.batch_sampler)
    known = (RandomSampler, SequentialSampler, DistributedSampler)
    if not isinstance(sampler, known) and type(sampler).__name__ != "SeedableRandomSampler":
        raise UnsupportedError(
            f"the loader draws its records by a {type(sampler).__name__}, in place of which private training would draw all "
            "alike; use shuffle=True, and weights on the records' losses where you need them."
        )
    if inner.batch_size is None:
        # A loader that was given its batch sampler; accelerate's are.
        inner.__dict__["batch_size"] = getattr(inner.batch_sampler, "batch_size", None) or 1
    return inner


def convert_loader(loader: DataLoader[Any], sampler: Any, training: Any) -> None:
    """Let a loader draw by `sampler` and tell `training` what it hands over."""
    own = type(loader)

    class Private(own):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Iterator[Any]:
            return training.hand_over(super().__iter__())

    class Streaming(own):  # type: ignore[misc, valid-type]
        def __iter__(self) -> Iterator[Any]:
            return training.hand_over(sampler.given(super().__iter__()))

        def __len__(self) -> int:
            return len(sampler)

    stream = isinstance(loader.dataset, IterableDataset)
    Private.__name__ = Streaming.__name__ = f"Private{own.__name__}"
    # DataLoader forbids to change these once it is made; its batches have not begun.
    loader.__dict__["batch_sampler"] = sampler
    if loader.collate_fn is not default_collate and not stream:  # whose sampler has put its own there
        loader.collate_fn = SeparateCollate(loader.collate_fn, ordered=getattr(sampler, "persons", None) is not None)
    loader.__class__ = Streaming if stream else Private
