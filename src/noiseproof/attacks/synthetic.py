"""`nearest` and `density-ratio`: attacks on synthetic records, by how close they come to real ones."""

from __future__ import annotations

import torch

from noiseproof.attacks.attack import AttackSplit
from noiseproof.attacks.result import AttackResult
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError

_DISTANCES = 1 << 22
"""How many distances are held at a time."""
_SMALLEST = 1e-9


def nearest_record(
    synthetic: Dataset, split: AttackSplit, *, neighbours: int = 1, seed: int = 0, resamples: int = 1000
) -> AttackResult:
    """Attack synthetic records: a record near to one of them is taken for a member (Chen et al. 2020).

    The score is minus the distance to the k-th nearest synthetic record of the same class.

    Formal guarantee
    ----------------
    None: an attack measures, on the trusted side, how much a release gives away about real records.
    """
    records = split.records
    scores = -_distance(records, synthetic, neighbours)
    return _result("nearest", scores, split, seed, resamples)


def density_ratio(
    synthetic: Dataset, split: AttackSplit, *, neighbours: int = 1, seed: int = 0, resamples: int = 1000
) -> AttackResult:
    """Attack synthetic records: where they are denser than the attacker's own records, there were members.

    The idea of DOMIAS (van Breugel et al. 2023) without a discriminator: densities by the distance to the k-th nearest
    neighbour, the score is log(distance in the reference) - log(distance in the synthetic records). The reference is
    the split's pool. One neighbour sees a single copied record; more of them see regions that were learned too well.

    Formal guarantee
    ----------------
    None: an attack measures, on the trusted side, how much a release gives away about real records.
    """
    if split.pool is None:
        raise SettingError("density-ratio needs a reference: records of the same kind that are neither in nor out.")
    records = split.records
    reference = _distance(records, split.pool, neighbours).clamp(min=_SMALLEST).log()
    scores = reference - _distance(records, synthetic, neighbours).clamp(min=_SMALLEST).log()
    return _result("density-ratio", scores, split, seed, resamples)


def _distance(records: Dataset, others: Dataset, neighbours: int) -> torch.Tensor:
    """Euclidean distance from each record to its k-th nearest of the same class; of any class if there are too few."""
    if not 1 <= neighbours <= len(others):
        raise SettingError(f"neighbours must lie between 1 and {len(others)}, not {neighbours}.")
    points, queries = others.features.flatten(1), records.features.flatten(1)
    enough = torch.bincount(others.labels, minlength=records.classes) >= neighbours
    parts = []
    rows = max(1, _DISTANCES // len(points))
    for part, labels in zip(queries.split(rows), records.labels.split(rows), strict=True):
        distances = torch.cdist(part, points)
        foreign = (labels[:, None] != others.labels) & enough[labels][:, None]
        parts.append(distances.masked_fill(foreign, torch.inf).kthvalue(neighbours, dim=1).values)
    return torch.cat(parts).double()


def _result(name: str, scores: torch.Tensor, split: AttackSplit, seed: int, resamples: int) -> AttackResult:
    records = split.records
    return AttackResult(
        name, scores, split.membership, records.labels, records.public.classes, seed=seed, resamples=resamples
    )
