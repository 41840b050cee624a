"""Shadow models, trained like the target on known parts of the attacker's records, and the attacks that learn from them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch

from noiseproof.attacks.attack import Attack, AttackSetup, Predicts, confidence, logit_confidence, register_attack
from noiseproof.attacks.retraining import Retrained, Retraining
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError
from noiseproof.networks import Network, StackedNetwork, Training, fit_stack
from noiseproof.networks.fitting import fit_stacks
from noiseproof.progress import SILENT, Progress

_ANSWERS = 1 << 24
"""How many probabilities are held at a time."""


@dataclass(frozen=True, eq=False)
class ShadowModels:
    """k networks, and for each of the pool's records whether a network was trained on it or is known not to have been.

    `drawn`, `halves` and `trained` make them. All are trained at once, as one network, unless a `Retraining` repeats what a
    method did.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> network = Network("mlp", (1, 8, 8), 10)
        >>> shadows = ShadowModels.drawn(network, split.pool, count=4, size=100, training=Training(epochs=5))
        >>> shadows.inside.sum(1)
        tensor([100, 100, 100, 100])

    Formal guarantee
    ----------------
    None: they are made from the attacker's records, and stay with the attacker.
    """

    networks: StackedNetwork | Retrained = field(repr=False)
    """The k models."""
    pool: Dataset
    """The attacker's records, on parts of which they are trained."""
    inside: torch.Tensor = field(repr=False)
    """(k, records): whether a model was trained on a record."""
    outside: torch.Tensor = field(repr=False)
    """(k, records): whether it is known not to have been. Both together need not cover the pool."""

    @classmethod
    def drawn(
        cls, network: Network, pool: Dataset, *, count: int = 20, size: int | None = None, seed: int = 0, **options: Any
    ) -> ShadowModels:
        """Shokri et al.'s: each is trained on `size` random records of the pool and compared with `size` others.

        Where the records' persons are known, on so many persons with all their records. The models' records overlap.
        Without a size each takes half of the pool; it should be the target's number of records (or persons), where the
        pool has twice as many. `options` are those of `trained`.
        """
        size = pool.persons // 2 if size is None else min(size, pool.persons // 2)
        if count < 1 or size < 1:
            raise SettingError(f"{count} shadow models cannot be trained on a pool of {len(pool)} records.")
        inside, outside = _drawn(count, pool, (slice(0, size), slice(size, 2 * size)), seed)
        return cls.trained(network, pool, inside, outside, seed=seed, **options)

    @classmethod
    def halves(cls, network: Network, pool: Dataset, *, count: int = 20, seed: int = 0, **options: Any) -> ShadowModels:
        """LiRA's: in pairs, one on a random half of the pool and one on the rest, so that every record is in half.

        Where the records' persons are known, a person's are all in the same half.
        """
        if count < 2 or count % 2 or pool.persons < 2:
            raise SettingError(f"shadow models on halves come in pairs and need 2 records, not {count} models.")
        (first,) = _drawn(count // 2, pool, (slice(0, pool.persons // 2),), seed)
        inside = torch.stack([first, ~first], dim=1).flatten(0, 1)
        return cls.trained(network, pool, inside, ~inside, seed=seed, **options)

    @classmethod
    def trained(
        cls,
        network: Network,
        pool: Dataset,
        inside: torch.Tensor,
        outside: torch.Tensor,
        *,
        training: Training | Retraining | None = None,
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> ShadowModels:
        """Models that are each trained on the records of a row of `inside`.

        Args:
            network: What they are built like; a `Retraining` has its own.
            pool: The attacker's records.
            inside: (models, records): whether a model is trained on a record.
            outside: Whether it is known not to be.
            training: How; without it, as Lu et al. train.
            seed: Of weights, batches and noise.
            progress: Hears how far it is.

        Returns:
            The models.
        """
        members = [row.nonzero().flatten() for row in inside]
        seeds = torch.randint(2**62, (len(members),), generator=torch.Generator().manual_seed(seed)).tolist()
        if isinstance(training, Retraining):
            return cls(training.fit_many(pool, members, seeds, progress), pool, inside, outside)
        networks = fit_stacks(network, pool.features, pool.labels, members, training, seeds=seeds, progress=progress)
        return cls(networks, pool, inside, outside)

    def __len__(self) -> int:
        return len(self.networks)

    def attacks_records(self, records: Dataset) -> bool:
        """Whether the pool is these very records, as the online attacks need it."""
        return len(records) == len(self.pool) and torch.equal(records.features, self.pool.features)

    def check_halves(self, attack: str) -> None:
        """Refuse models that were not each trained on some of the records and not on others."""
        if not (self.inside.any(0) & self.outside.any(0)).all():
            raise SettingError(
                f"online {attack} needs shadow models on halves: each record in some of them and out of some."
            )

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


def _drawn(rows: int, pool: Dataset, parts: Sequence[slice], seed: int) -> list[torch.Tensor]:
    """For each part of each row's own shuffle of the persons, or records, which records are in it: (rows, records)."""
    order = torch.rand(rows, pool.persons, generator=torch.Generator().manual_seed(seed)).argsort(1)
    drawn = [torch.zeros(order.shape, dtype=torch.bool).scatter_(1, order[:, part], True) for part in parts]
    return drawn if pool.groups is None else [part[:, pool.groups.cpu()] for part in drawn]


ATTACK_TRAINING = Training(epochs=100, batch_size=100, lr=0.01, l2=1e-6)
"""How attack networks are trained: Lu et al., Table 4."""


@register_attack
class ShadowAttack(Attack):
    """Shokri et al. (2017): networks (64 tanh) from probability vectors to membership, one for each class.

    They are trained on the shadow models' answers to what these were and were not trained on, and decide at one half.
    Records of a class that no shadow model has seen are taken for non-members. With `by_class=False` there is one network
    for all classes, as Lu et al. have it (section 3.3): it does not know a record's class, and so tells less.

    Args:
        networks: The attack networks, as `fit` trains them.
        classes: For each class the place of its network; -1 for a class without one.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> network = Network("mlp", (1, 8, 8), 10)
        >>> shadows = ShadowModels.drawn(network, split.pool, count=4, size=100, training=Training(epochs=20))
        >>> attack = ShadowAttack.fit(shadows, training=Training(epochs=5))
        >>> release = npf.train("none", split.members, seed=0)
        >>> attack.against(release, split).queries
        200
    """

    name: ClassVar[str] = "shadow"
    probabilities: ClassVar[bool] = True
    threshold: float | None = 0.5
    threshold_from: str = "the attack network's own decision"

    def __init__(self, networks: StackedNetwork, classes: torch.Tensor) -> None:
        # As modules, once: building one takes longer than what it then has to do.
        self._networks = [networks.module(index) for index in range(len(networks))]
        self._place = classes

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """Attack networks that learned from shadow models on random parts of the attacker's records."""
        return cls.fit(setup.drawn, seed=setup.seed, progress=setup.progress)

    @classmethod
    def fit(
        cls,
        shadows: ShadowModels,
        *,
        hidden: int = 64,
        by_class: bool = True,
        training: Training = ATTACK_TRAINING,
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> Self:
        """Train the attack networks, all classes at once."""
        vectors, inside, labels = _examples(shadows)
        classes = shadows.pool.classes
        if by_class:
            members = [(labels == index).nonzero().flatten() for index in range(classes)]
            known = [index for index in range(classes) if len(members[index])]
            # Where each class's network is in the stack; -1 for classes that the pool does not have.
            place = torch.full((classes,), -1)
            place[known] = torch.arange(len(known))
        else:
            members, known, place = [torch.arange(len(vectors))], [0], torch.zeros(classes, dtype=torch.long)
        network = Network("mlp", (classes,), 2, {"hidden": hidden, "activation": "tanh"})
        networks = fit_stack(
            network,
            vectors,
            inside.long(),
            [members[index] for index in known],
            training,
            seeds=[seed * classes + index for index in known],
            progress=progress,
        )
        return cls(networks, place)

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The attack network's probability of membership."""
        answers = target.predict(records.features).float().cpu()
        place = self._place[records.labels.cpu()]
        scores = torch.full((len(records),), 0.5)
        for index, network in enumerate(self._networks):
            chosen = (place == index).nonzero().flatten()
            if len(chosen):
                with torch.no_grad():
                    logits = network(answers[chosen])
                scores[chosen] = logits.softmax(1)[:, 1]
        return scores


def _examples(shadows: ShadowModels) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every known (model, record) pair: the model's answer, whether the record was in its training, its class."""
    vectors, inside, labels, start = [], [], [], 0
    for answers in shadows.answers(shadows.pool):
        part = slice(start, start + answers.shape[1])
        known = shadows.inside[:, part] | shadows.outside[:, part]
        vectors.append(answers[known])
        inside.append(shadows.inside[:, part][known])
        labels.append(shadows.pool.labels[part].cpu().expand(len(shadows), -1)[known])
        start += answers.shape[1]
    return torch.cat(vectors), torch.cat(inside), torch.cat(labels)


ENOUGH = 64
"""With fewer shadow models a record's own variance is estimated worse than the one that all records share."""
_SMALLEST = 1e-6


@register_attack
class LiraAttack(Attack):
    """Carlini et al. (2022): how much likelier is the target's confidence in a record's label if it was trained on it?

    Confidences on the logit scale are taken to be normal over trainings, with the record (in) and without (out), and
    shadow models give each record's means and variances.

    *Online*, the shadow models' pool is the attacked records themselves, each in half of the models: the score is the
    log likelihood ratio, and 0 its threshold. *Offline*, the pool is apart, only what happens without the record is
    known, and the score is how many standard deviations the target's confidence lies above it.

    Args:
        shadows: Shadow models: online on halves of the attacked records, offline on a pool apart.
        online: Which of the two they are.
        fixed_variance: Whether all records share one variance; by default so below 64 shadow models.

    Raises:
        SettingError: If online models are not on halves.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> network = Network("mlp", (1, 8, 8), 10)
        >>> shadows = ShadowModels.halves(network, split.records, count=8, training=Training(epochs=20))
        >>> release = npf.train("none", split.members, seed=0)
        >>> LiraAttack(shadows, online=True).against(release, split).auc > 0.5
        True
    """

    name: ClassVar[str] = "lira"
    probabilities: ClassVar[bool] = True
    of_person: ClassVar[Literal["mean", "sum"]] = "sum"  # of logarithms of likelihood ratios

    def __init__(self, shadows: ShadowModels, *, online: bool, fixed_variance: bool | None = None) -> None:
        if online:
            shadows.check_halves("LiRA")
        self._shadows = shadows
        self._fixed = len(shadows) < ENOUGH if fixed_variance is None else fixed_variance
        self.online = online
        if online:
            self.threshold, self.threshold_from = 0.0, "a likelihood ratio of 1"

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """Online: shadow models on halves of the attacked records."""
        return cls(setup.references, online=True)

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The log likelihood ratio (online), or the standardised confidence (offline)."""
        if self.online and not self._shadows.attacks_records(records):
            raise SettingError("online LiRA can only attack the records that its shadow models were trained on.")
        shadow = self._shadows.confidences(records, logit=True)
        seen = logit_confidence(target.predict(records.features).cpu(), records.labels.cpu())
        if self.online:
            return likelihood_ratios(seen, shadow, self._shadows.inside, self._shadows.outside, fixed=self._fixed)
        mean, variance = _normal(shadow, torch.ones_like(shadow, dtype=torch.bool), self._fixed)
        return (seen - mean) / variance.sqrt()


def likelihood_ratios(
    seen: torch.Tensor, shadow: torch.Tensor, inside: torch.Tensor, outside: torch.Tensor, *, fixed: bool
) -> torch.Tensor:
    """LiRA's scores from confidences on the logit scale: the target's (records,) and the shadow models' (k, records)."""
    likelihoods = []
    for side in (inside, outside):
        mean, variance = _normal(shadow, side, fixed)
        likelihoods.append(-((seen - mean) ** 2) / (2 * variance) - variance.log() / 2 - math.log(2 * math.pi) / 2)
    return likelihoods[0] - likelihoods[1]


def _normal(shadow: torch.Tensor, side: torch.Tensor, fixed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Each record's mean and variance over the models of one side."""
    count = side.sum(0)
    mean = (shadow * side).sum(0) / count
    squares = ((shadow - mean) ** 2 * side).sum(0)
    # Means were estimated from the same models, which costs each record one degree of freedom.
    if fixed:
        variance = (squares.sum() / (count - 1).clamp(min=0).sum().clamp(min=1)).expand_as(mean)
    else:
        variance = squares / (count - 1).clamp(min=1)
    return mean, variance.clamp(min=_SMALLEST)


@register_attack
class OfflineLiraAttack(LiraAttack):
    """The likelihood ratio attack with shadow models on a pool apart from the attacked records."""

    name: ClassVar[str] = "lira-offline"

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """Shadow models on the split's pool."""
        if setup.split.pool is None:
            raise SettingError("lira-offline needs a pool of records that are neither members nor non-members.")
        return cls(setup.drawn, online=False)
