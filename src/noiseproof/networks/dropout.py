"""Random numbers of each record and step, from one secret key: dropout masks, and whatever else a record's loss draws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from noiseproof.privacy.randomness import Bits
from noiseproof.tensors import STATE_WORDS, generator_state

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness

_OWN_KEY = 0xD20
"""The child of a run's randomness that the key comes from: whatever else the run draws, it stays the same."""


class RecordRandomness:
    """Numbers that depend on a key, a step and a record's index alone, and not on who else is in the batch.

    ChaCha20 under a 256-bit key, with the record, the step and the draw's number as its nonce. While it is `installed` the
    module's dropout layers draw their masks here. What else draws from torch's own generator (functional dropout, attention) does
    so from a state that is filled from the same key, all 19,937 bits of it, afresh for every part of a step.

    Formal guarantee
    ----------------
    None by itself. To whoever does not know the key the numbers are independent for every record and step, so that
    neighbouring data sets can be compared with everyone else's numbers alike: a record more shifts the indices behind it,
    which changes nothing in law. And the key cannot be found by trying seeds.
    """

    def __init__(self, rng: Randomness, module: nn.Module, rank: int = 0) -> None:
        words = (rng.spawn(_OWN_KEY).uniform((8,)) * 2**32).numpy().astype(np.uint32)
        self._key, self._rank = words.tobytes(), rank
        self._device = next(module.parameters()).device
        self._layers = [layer for layer in module.modules() if isinstance(layer, _LAYERS)]
        self._step = self._draws = 0
        self._records = torch.empty(0, dtype=torch.int64)
        self._seed = np.empty(STATE_WORDS, dtype=np.uint32)
        self._state, self._state_words = generator_state()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While it lasts the module's dropout layers draw their masks here, and torch's own generator is set by `begin`."""
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            for layer in self._layers:
                layer.forward = partial(self._dropout, layer)  # type: ignore[method-assign]
            try:
                yield
            finally:
                for layer in self._layers:
                    del layer.forward

    def begin(self, step: int, records: torch.Tensor) -> None:
        """What is drawn next is for these records, given by their indices, at this step."""
        self._step, self._draws, self._records = step, 0, records
        # The first of the records stands for the part of the step, so that no two parts draw the same.
        Bits(self._key, self._nonce(int(records[0]), 0)).fill(self._seed)
        self._state_words[:] = self._seed
        torch.default_generator.set_state(self._state)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(int(self._seed[:2].view(np.int64)[0]))

    def words(self, count: int) -> torch.Tensor:
        """`count` numbers from 0 to 2^32 - 1 for each of the step's records, (records, count) in int64."""
        self._draws += 1
        rows = np.empty((len(self._records), count), dtype=np.uint32)
        for record, row in zip(self._records.tolist(), rows, strict=True):
            Bits(self._key, self._nonce(record, self._draws)).fill(row)
        return torch.from_numpy(rows.astype(np.int64))

    def _nonce(self, record: int, draw: int) -> int:
        """96 bits: 40 for the record, 8 for the rank, 16 for the draw and 32 for the step."""
        return record << 56 | (self._rank & 0xFF) << 48 | (draw & 0xFFFF) << 32 | self._step

    def _dropout(self, layer: nn.modules.dropout._DropoutNd, values: torch.Tensor) -> torch.Tensor:
        if not layer.training or layer.p == 0:
            return values
        # Within vmap, or where records and something else are one dimension, torch's own generator draws.
        if torch._C._functorch.is_batchedtensor(values) or len(values) != len(self._records):
            return type(layer).forward(layer, values)
        shape = values.shape[1:] if type(layer) is nn.Dropout else values.shape[1:2]
        kept = self.words(shape.numel()) >= layer.p * 2**32
        mask = kept.view(len(values), *shape, *[1] * (values.ndim - 1 - len(shape))).to(values)
        return values * mask / (1 - layer.p) if layer.p < 1 else values * mask


_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers with masks of their own here; all but the first drop whole channels."""
