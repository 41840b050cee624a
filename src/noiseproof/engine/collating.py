"""How a loader puts records together: each must come out by itself, and a batch may have none of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import SystemRandom
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate

from noiseproof.engine.checks import is_due
from noiseproof.engine.masks import random_states, set_random_states, told
from noiseproof.errors import UnsupportedError

_SECRET = SystemRandom()
_TRIES = 4
"""Choices of records that are tried, since what is padded to the longest of them may not be as long as before."""


class SeparateCollate:
    """A loader's own way of putting records together, which is refused if what comes out of one depends on the others.

    At the first batches, and at later ones that nobody knows, it is done again with some of the records in place of all others
    and the same random numbers: these must come out the same, in whatever order. Mixup and the like, which torch's own examples
    put there, happen before the network could be watched.

    Args:
        own: The loader's `collate_fn`.
        ordered: Whether records must stay in their order, since it tells whose they are.
    """

    def __init__(self, own: Callable[[list[Any]], Any], *, ordered: bool = False) -> None:
        self.own, self.ordered, self._checked = own, ordered, 0

    def __call__(self, records: list[Any]) -> Any:
        """The batch.

        Raises:
            UnsupportedError: If records are mixed.
        """
        if self.own is default_collate or len(records) < 2 or not is_due(self._checked):
            return self.own(records)
        # It may change the records that it is given, or remember that it was asked.
        (own, given), start = _copied((self.own, records)), random_states()
        batch = self.own(records)
        end = random_states()
        try:
            if _mixes(own, given, batch, start, end, self.ordered):
                raise UnsupportedError(
                    "the loader's collate_fn mixes the records of a batch (mixup, cutmix, statistics over the batch), so that "
                    "one record is in several losses and clipping bounds nothing; let it put each of them in by itself."
                    + (" It must not sort them either: their order tells whose they are." if self.ordered else "")
                )
        finally:
            set_random_states(end)
        self._checked += 1
        return batch


def _mixes(
    own: Any, records: list[Any], batch: Any, start: tuple[Any, ...], end: tuple[Any, ...], ordered: bool
) -> bool:
    """Whether records are known to come out otherwise among others."""
    count = len(records)
    found, drawn = record_tensors(batch, count), told(start) != told(end)
    for turn in range(_TRIES):
        # First the first half: where records draw random numbers one after another, theirs stay the same, and only theirs.
        places = list(range(count))
        kept = places[: count // 2] if turn == 0 else sorted(_SECRET.sample(places, count // 2))
        stays = set(kept)
        asked, given = _copied(own), [_copied(records[place if place in stays else kept[0]]) for place in places]
        set_random_states(start)
        try:
            twin = asked(given)
        except Exception:  # it is the twin's own trouble
            continue
        same = _same(found, record_tensors(twin, count), kept, ordered)
        if same is False and (turn == 0 or not drawn):
            return True
        if same and turn:
            return False
    return False


def _same(
    tensors: Sequence[torch.Tensor], twins: Sequence[torch.Tensor], kept: list[int], ordered: bool
) -> bool | None:
    """Whether kept records are the same in both, at their places or (sorted) at others; None if it cannot be told."""
    if [tensor.shape for tensor in tensors] != [twin.shape for twin in twins]:
        return None
    pairs = [(one[kept].nan_to_num(), other[kept].nan_to_num()) for one, other in zip(tensors, twins, strict=True)]
    if all(torch.equal(one, other) for one, other in pairs):
        return True
    if ordered:
        return False

    def rows(all_of_them: Sequence[torch.Tensor]) -> set[tuple[bytes, ...]]:
        parts = [[row.numpy().tobytes() for row in one.detach().cpu().float()] for one in all_of_them]
        return set(zip(*parts, strict=True))

    return rows(twins) <= rows(tensors)


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied is asked again as it is
        return value


class _WithEmpty:
    """A loader's own way of putting records together, which also makes a batch of none."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._own, self._dataset = SeparateCollate(loader.collate_fn), loader.dataset

    def __call__(self, records: list[Any]) -> Any:
        if records:
            return self._own(records)
        # Of the record that lends its shapes nothing else is left.
        return tree_map(
            lambda leaf: leaf[:0] if isinstance(leaf, torch.Tensor) else leaf, self._own([self._dataset[0]])
        )


def with_empty_batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """The loader's batches, where one without records has the shapes of the others; see `SeparateCollate`."""
    own, loader.collate_fn = loader.collate_fn, _WithEmpty(loader)
    try:
        batches = iter(loader)
    finally:
        loader.collate_fn = own
    return batches


def record_tensors(batch: Any, records: int) -> list[torch.Tensor]:
    """The tensors at any depth of a batch whose first dimension counts its records."""
    if isinstance(batch, Mapping):  # tokenizers' batches are mappings, and no dictionaries
        return [tensor for value in batch.values() for tensor in record_tensors(value, records)]
    if isinstance(batch, list | tuple):
        return [tensor for value in batch for tensor in record_tensors(value, records)]
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return [leaf for leaf in leaves if len(leaf) == records]
