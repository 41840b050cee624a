"""Attacks without shadow models: on losses, on labels alone, and on synthetic records."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

import torch

from noiseproof.attacks.attack import TINY, Attack, AttackSetup, Predicts, confidence, register_attack
from noiseproof.attacks.result import best_threshold
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError
from noiseproof.releases.release import DataRelease

if TYPE_CHECKING:
    from noiseproof.attacks.shadow import ShadowModels

_COPIES = 10
"""How often `label-only` asks again about a record."""

_DISTANCES = 1 << 22
"""How many distances are held at a time."""

_SMALLEST = 1e-9


@register_attack
class LossAttack(Attack):
    """Yeom et al. (2018): records with a small loss are taken for members. The score is minus the loss.

    The threshold is the best one on shadow models where there are some (`fit`); it needs no training otherwise.

    Args:
        threshold: Scores above it are taken for members; None to choose it by halves of the scores.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("none", split.members, seed=0)
        >>> LossAttack().against(release, split).auc > 0.5
        True
    """

    name: ClassVar[str] = "loss"
    probabilities: ClassVar[bool] = True

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None:
            self.threshold, self.threshold_from = threshold, "shadow models"

    @classmethod
    def fit(cls, shadows: ShadowModels) -> LossAttack:
        """Choose the threshold that tells best what shadow models were trained on."""
        scores = shadows.confidences(shadows.pool)
        known = shadows.inside | shadows.outside
        return cls(best_threshold(scores[known], shadows.inside[known]))

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The logarithm of the probability given to the true label."""
        return confidence(target.predict(records.features).cpu(), records.labels.cpu())


@register_attack
class ConfidenceAttack(Attack):
    """Salem et al. (2019): records whose largest probability is large are taken for members, whatever their label."""

    name: ClassVar[str] = "confidence"
    probabilities: ClassVar[bool] = True

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The logarithm of the odds of the largest probability, from the sum of the others, which keeps its digits."""
        answers = target.predict(records.features).cpu().double()
        largest, place = answers.max(1)
        others = answers.scatter(1, place[:, None], 0.0).sum(1)
        return largest.clamp(min=TINY).log() - others.clamp(min=TINY).log()


@register_attack
class EntropyAttack(Attack):
    """Salem et al. (2019): records that are answered with little entropy are taken for members, whatever their label."""

    name: ClassVar[str] = "entropy"
    probabilities: ClassVar[bool] = True

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """Minus the entropy of the answer."""
        answers = target.predict(records.features).cpu().double()
        return (answers * answers.clamp(min=TINY).log()).sum(1)


@register_attack
class ModifiedEntropyAttack(Attack):
    """Song and Mittal (2021): entropy that counts confidence in a wrong label against membership."""

    name: ClassVar[str] = "modified-entropy"
    probabilities: ClassVar[bool] = True

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """(1 - p) log p of the true label, and p log(1 - p) of each other."""
        answers, labels = target.predict(records.features).cpu().double(), records.labels.cpu()
        others = answers.scatter(1, labels[:, None], 0.0)
        # 1 - p, from the other classes where p is close to 1.
        rest = answers.sum(1, keepdim=True) - answers
        right = others.sum(1) * confidence(answers, labels)
        return right + (others * rest.clamp(min=TINY).log()).sum(1)


@register_attack
class LabelOnlyAttack(Attack):
    """Is the record labelled right, and does the label survive noise? (Choquette-Choo et al. 2021)

    With no `copies` it is the gap attack: records that are labelled right are taken for members, and its advantage is
    the accuracy gap. With copies each record is asked again that many times with growing numbers of features exchanged
    for those of other records of `pool`, and the score is the share of right labels: members lie deeper in their class.
    Every copy is one more query a record.

    Args:
        pool: Records to take features from; needed for copies.
        copies: How often a record is asked about again.
        largest: The share of features that the last copy exchanges, in (0, 1]; copies before it exchange less.
        seed: Of the exchanges.

    Raises:
        SettingError: If an option is out of range, or there are copies and no pool.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("none", split.members, seed=0)
        >>> result = LabelOnlyAttack(split.pool, copies=5).against(release, split)
        >>> result.queries  # 200 records, 6 times
        1200
    """

    name: ClassVar[str] = "label-only"

    def __init__(self, pool: Dataset | None = None, *, copies: int = 0, largest: float = 0.5, seed: int = 0) -> None:
        if copies < 0 or not 0 < largest <= 1:
            raise SettingError(f"copies must be at least 0 and largest in (0, 1], not {copies} and {largest}.")
        if copies and (pool is None or not len(pool)):
            raise SettingError("label-only with copies needs a pool of records to take features from.")
        self._pool, self._copies, self._largest, self._seed = pool, copies, largest, seed
        if not copies:
            self.threshold, self.threshold_from = 0.5, "right labels are taken for members"

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """With features of the attacker's records."""
        return cls(setup.split.attackers, copies=_COPIES, seed=setup.seed)

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """Share of the copies, the record itself among them, that are labelled right."""
        right = self._right(target, records.features, records)
        generator = torch.Generator().manual_seed(self._seed)
        for copy in range(self._copies):
            rate = self._largest * (copy + 1) / self._copies
            right += self._right(target, self._exchanged(records.features, rate, generator), records)
        return right / (1 + self._copies)

    def _right(self, target: Predicts, features: torch.Tensor, records: Dataset) -> torch.Tensor:
        return (target.predict(features).argmax(1).cpu() == records.labels.cpu()).double()

    def _exchanged(self, features: torch.Tensor, rate: float, generator: torch.Generator) -> torch.Tensor:
        """The records with each feature, at that rate, taken from a random record of the pool: noise of any kind."""
        assert self._pool is not None
        others = self._pool.features[torch.randint(len(self._pool), (len(features),), generator=generator)]
        exchange = torch.rand(features.shape, generator=generator) < rate
        return torch.where(exchange.to(features.device), others.to(features.device), features)


@register_attack
class GapAttack(LabelOnlyAttack):
    """Records that are labelled right are taken for members: the advantage is the accuracy gap.

    Args:
        pool: Not needed.
        copies: 0; with copies it is `LabelOnlyAttack`.
        largest: As for `LabelOnlyAttack`.
        seed: As for `LabelOnlyAttack`.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("none", split.members, seed=0)
        >>> gap = npf.accuracy(release, split.members) - npf.accuracy(release, split.nonmembers)
        >>> abs(GapAttack().against(release, split).advantage - gap) < 1e-6
        True
    """

    name: ClassVar[str] = "gap"

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """It learns nothing."""
        return cls()


@register_attack
class NearestAttack(Attack):
    """Synthetic records: a record near to one of them is taken for a member (Chen et al. 2020).

    The score is minus the distance to the k-th nearest synthetic record of the same class.

    Args:
        neighbours: That k.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("moments", split.members, epsilon=3, seed=0)
        >>> NearestAttack(neighbours=3).against(release, split).queries  # it looks at the records alone
        0
    """

    name: ClassVar[str] = "nearest"
    on: ClassVar[str] = "records"

    def __init__(self, neighbours: int = 1) -> None:
        self._neighbours = neighbours

    def scores(self, target: DataRelease, records: Dataset) -> torch.Tensor:
        """Minus the distance to the synthetic records."""
        return -_distance(records, target.dataset, self._neighbours)


@register_attack
class DensityRatioAttack(Attack):
    """Synthetic records: where they are denser than the attacker's own records, there were members.

    The idea of DOMIAS (van Breugel et al. 2023) without a discriminator: densities by the distance to the k-th nearest
    neighbour, the score is log(distance in the reference) - log(distance in the synthetic records). The reference is
    the split's pool. One neighbour sees a single copied record; more of them see regions that were learned too well.

    Args:
        reference: Records of the same kind that are neither members nor non-members.
        neighbours: That k.

    Raises:
        SettingError: If there is no reference.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("moments", split.members, epsilon=3, seed=0)
        >>> DensityRatioAttack(split.pool, neighbours=3).scores(release, split.records).shape
        torch.Size([200])
    """

    name: ClassVar[str] = "density-ratio"
    on: ClassVar[str] = "records"

    def __init__(self, reference: Dataset | None, neighbours: int = 1) -> None:
        if reference is None:
            raise SettingError("density-ratio needs a reference: records of the same kind that are neither in nor out.")
        self._reference, self._neighbours = reference, neighbours

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """With the split's pool as the reference."""
        return cls(setup.split.pool)

    def scores(self, target: DataRelease, records: Dataset) -> torch.Tensor:
        """The logarithm of the ratio of distances."""
        reference, synthetic = (
            _distance(records, others, self._neighbours).clamp(min=_SMALLEST).log()
            for others in (self._reference, target.dataset)
        )
        return reference - synthetic


def _distance(records: Dataset, others: Dataset, neighbours: int) -> torch.Tensor:
    """Euclidean distance from each record to its k-th nearest of the same class; of any class if there are too few."""
    if not 1 <= neighbours <= len(others):
        raise SettingError(f"neighbours must lie between 1 and {len(others)}, not {neighbours}.")
    points, queries = others.features.flatten(1), records.features.flatten(1)
    numeric = others.labels.is_floating_point()
    kinds = torch.zeros_like(others.labels, dtype=torch.int64) if numeric else others.labels
    enough = torch.bincount(kinds, minlength=max(1, records.classes)) >= neighbours
    parts = []
    rows = max(1, _DISTANCES // len(points))
    for part, labels in zip(queries.split(rows), records.labels.split(rows), strict=True):
        distances = torch.cdist(part, points)
        if numeric:
            # A number is one more coordinate of a record.
            distances = torch.hypot(distances, labels[:, None] - others.labels)
            labels = torch.zeros_like(labels, dtype=torch.int64)
        foreign = (labels[:, None] != kinds) & enough[labels][:, None]
        parts.append(distances.masked_fill(foreign, torch.inf).kthvalue(neighbours, dim=1).values)
    return torch.cat(parts).double()
