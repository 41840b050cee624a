"""Shadow models: networks trained like the target on known parts of the attacker's records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from noiseproof.attacks.target import confidence, logit_confidence
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError
from noiseproof.networks import Network, StackedNetwork, Training
from noiseproof.progress import SILENT, Progress
from noiseproof.scale.stacks import fit_stacks

_ANSWERS = 1 << 24
"""How many probabilities are held at a time."""


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """k networks, and for each of the pool's records whether a network was trained on it or is known not to have been.

    `inside` and `outside` are (k, records) and need not cover the pool. All are trained at once, as one network.

    Formal guarantee
    ----------------
    None: they are trained without noise, on the attacker's records.
    """

    networks: StackedNetwork = field(repr=False)
    pool: Dataset
    inside: torch.Tensor = field(repr=False)
    outside: torch.Tensor = field(repr=False)

    @classmethod
    def drawn(
        cls,
        network: Network,
        pool: Dataset,
        *,
        count: int = 20,
        size: int | None = None,
        training: Training | None = None,
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> ShadowModels:
        """Shokri et al.'s: each is trained on `size` random records of the pool and compared with `size` others.

        The models' records overlap. Without a size each takes half of the pool; it should be the target's number of
        records, where the pool has twice as many.
        """
        size = len(pool) // 2 if size is None else min(size, len(pool) // 2)
        if count < 1 or size < 1:
            raise SettingError(f"{count} shadow models cannot be trained on a pool of {len(pool)} records.")
        generator = torch.Generator().manual_seed(seed)
        order = torch.rand(count, len(pool), generator=generator).argsort(1)
        inside = torch.zeros(count, len(pool), dtype=torch.bool).scatter_(1, order[:, :size], True)
        outside = torch.zeros(count, len(pool), dtype=torch.bool).scatter_(1, order[:, size : 2 * size], True)
        return cls._train(network, pool, inside, outside, training, seed, progress)

    @classmethod
    def halves(
        cls,
        network: Network,
        pool: Dataset,
        *,
        count: int = 20,
        training: Training | None = None,
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> ShadowModels:
        """LiRA's: in pairs, one on a random half of the pool and one on the rest, so that every record is in half."""
        if count < 2 or count % 2 or len(pool) < 2:
            raise SettingError(f"shadow models on halves come in pairs and need 2 records, not {count} models.")
        generator = torch.Generator().manual_seed(seed)
        order = torch.rand(count // 2, len(pool), generator=generator).argsort(1)
        first = torch.zeros(count // 2, len(pool), dtype=torch.bool).scatter_(1, order[:, : len(pool) // 2], True)
        inside = torch.stack([first, ~first], dim=1).flatten(0, 1)
        return cls._train(network, pool, inside, ~inside, training, seed, progress)

    @classmethod
    def _train(
        cls,
        network: Network,
        pool: Dataset,
        inside: torch.Tensor,
        outside: torch.Tensor,
        training: Training | None,
        seed: int,
        progress: Progress,
    ) -> ShadowModels:
        members = [row.nonzero().flatten() for row in inside]
        seeds = torch.randint(2**62, (len(members),), generator=torch.Generator().manual_seed(seed)).tolist()
        networks = fit_stacks(network, pool.features, pool.labels, members, training, seeds=seeds, progress=progress)
        return cls(networks, pool, inside, outside)

    def __len__(self) -> int:
        return len(self.networks)

    def answers(self, records: Dataset) -> Iterator[torch.Tensor]:
        """All the models' probabilities (k, part, classes) for the records, a part of them at a time."""
        batch = max(1, _ANSWERS // (len(self) * records.classes))
        for part in records.features.split(batch):
            yield self.networks.logits(part).softmax(-1).cpu()

    def confidences(self, records: Dataset, *, logit: bool = False) -> torch.Tensor:
        """All the models' log confidences in the true labels, (k, records); with `logit` on the logit scale."""
        scale = logit_confidence if logit else confidence
        parts, start = [], 0
        for answers in self.answers(records):
            labels = records.labels[start : start + answers.shape[1]].cpu()
            parts.append(scale(answers, labels.expand(len(self), -1)))
            start += answers.shape[1]
        return torch.cat(parts, dim=1)
