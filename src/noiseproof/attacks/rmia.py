"""RMIA, which needs few reference models, and the strongest of several attacks that share one set of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Self

import torch

from noiseproof.attacks.attack import Attack, AttackSetup, Predicts, confidence, logit_confidence, register_attack
from noiseproof.attacks.result import Roc
from noiseproof.attacks.shadow import ENOUGH, ShadowModels, likelihood_ratios
from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError

_HELD_OUT = 8
"""Reference models, at most, on which `strongest` tries the attacks."""
_RATE = 0.01
"""The false positive rate at which it compares them."""


@register_attack
class RmiaAttack(Attack):
    """Zarifzadeh, Liu and Shokri (2024): is the target surer of a record, against what others think of it, than of most?

    p(x | target) / p(x) is how much the target prefers a record's label to what reference models give it on average. The
    score is the share of the other records whose ratio is smaller by the factor `gamma`. All records are compared with the
    same others, so that records are ranked by that ratio; where two have the same share, it decides between them.

    *Online*, p(x) is the mean over reference models with the record and without it, half each. *Offline*, no reference model
    has it, and p(x) is (1 + a) / 2 of their mean plus (1 - a) / 2: models that had seen it would be surer.

    Args:
        references: Shadow models: online on halves of the attacked records, offline on a pool apart.
        online: Which of the two they are.
        gamma: By which factor another record's ratio must be smaller to count; 1 at least.
        a: For the offline attack, in [0, 1]: 1 takes the reference models' mean as it is.

    Raises:
        SettingError: If an option is out of range, or online models are not on halves.

    Examples:
        >>> from noiseproof.networks import Network, Training
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> network = Network("mlp", (1, 8, 8), 10)
        >>> shadows = ShadowModels.halves(network, split.records, count=8, training=Training(epochs=20))
        >>> release = npf.train("none", split.members, seed=0)
        >>> RmiaAttack(shadows).against(release, split).auc > 0.5
        True
    """

    name: ClassVar[str] = "rmia"
    probabilities: ClassVar[bool] = True

    def __init__(self, references: ShadowModels, *, online: bool = True, gamma: float = 2.0, a: float = 0.3) -> None:
        if gamma < 1 or not 0 <= a <= 1:
            raise SettingError(f"gamma must be at least 1 and a in [0, 1], not {gamma} and {a}.")
        if online:
            references.check_halves("RMIA")
        self._references, self._online, self._gamma, self._a = references, online, gamma, a

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """Online: with reference models on halves of the attacked records."""
        return cls(setup.references)

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The share of records that the target prefers less."""
        if self._online and not self._references.attacks_records(records):
            raise SettingError("online RMIA can only attack the records that its reference models were trained on.")
        seen = confidence(target.predict(records.features).cpu(), records.labels.cpu())
        shadow = self._references.confidences(records)
        if self._online:
            return relative(seen, marginal(shadow, self._references.inside, self._references.outside), self._gamma)
        outside = shadow.exp().mean(0)
        return relative(seen, ((1 + self._a) / 2 * outside + (1 - self._a) / 2).log(), self._gamma)


@register_attack
class OfflineRmiaAttack(RmiaAttack):
    """RMIA with reference models on a pool apart from the attacked records."""

    name: ClassVar[str] = "rmia-offline"

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """With reference models on the split's pool."""
        if setup.split.pool is None:
            raise SettingError("rmia-offline needs a pool of records that are neither members nor non-members.")
        return cls(setup.drawn, online=False)


def marginal(shadow: torch.Tensor, inside: torch.Tensor, outside: torch.Tensor) -> torch.Tensor:
    """log p(x): the mean of the reference models' probabilities, from models with and without the record in equal parts."""
    means = [(shadow.exp() * side).sum(0) / side.sum(0).clamp(min=1) for side in (inside, outside)]
    return ((means[0] + means[1]) / 2).log()


def relative(seen: torch.Tensor, expected: torch.Tensor, gamma: float) -> torch.Tensor:
    """For each record the share of records whose log ratio is smaller by log gamma, and within a share its own."""
    ratios = seen - expected
    below = torch.searchsorted(ratios.sort().values, ratios - math.log(gamma), right=True)
    return (below + ratios.sigmoid() / 2) / len(ratios)


@register_attack
class StrongestAttack(Attack):
    """The strongest attack for the setting: the one that does best on reference models, whose members are known.

    LiRA, RMIA and the loss attack share one set of reference models. Each model in turn is taken for the target and the others
    for its references, and the attack that names most members at one false accusation in a hundred is turned on the real
    target. The target plays no part in the choice, so that the result is as honest as a single attack's. `note` says what
    was chosen and what it named on the reference models: the power that the attack has on a model of this kind.

    Args:
        references: Shadow models on halves of the attacked records.

    Raises:
        SettingError: If they are not on halves.

    Examples:
        >>> from noiseproof.networks import Network, Training
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> network = Network("mlp", (1, 8, 8), 10)
        >>> shadows = ShadowModels.halves(network, split.records, count=8, training=Training(epochs=20))
        >>> attack = StrongestAttack(shadows)
        >>> attack.chosen in ("lira", "rmia", "loss")
        True
    """

    name: ClassVar[str] = "strongest"
    probabilities: ClassVar[bool] = True

    def __init__(self, references: ShadowModels) -> None:
        references.check_halves("attacks")
        self._references = references
        plain, logit = (references.confidences(references.pool, logit=on) for on in (False, True))
        found: dict[str, list[float]] = {name: [] for name in _CANDIDATES}
        for held_out in range(min(_HELD_OUT, len(references))):
            rest = torch.arange(len(references)) != held_out
            inside, outside = references.inside[rest], references.outside[rest]
            known = inside.any(0) & outside.any(0)
            member = references.inside[held_out][known]
            if not member.any() or member.all():
                continue
            for name, score in _CANDIDATES.items():
                scores = score(plain[held_out], logit[held_out], plain[rest], logit[rest], inside, outside)[known]
                curve = Roc.of(scores.double(), member, torch.ones(1, len(member), dtype=torch.float64))
                # The area decides where none names anybody.
                found[name].append(float(curve.tpr_at(_RATE)[0]) + 1e-6 * float(curve.auc[0]))
        named = {name: sum(values) / max(1, len(values)) for name, values in found.items()}
        self.chosen = max(named, key=lambda name: named[name])
        order = sorted(named, key=lambda name: -named[name])
        self.note = f"{self.chosen} was chosen: at one false accusation in 100 attacks named, of the members of " + (
            f"{len(found['loss'])} reference models, {', '.join(f'{named[name]:.1%} ({name})' for name in order)}."
        )

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """With reference models on halves of the attacked records."""
        return cls(setup.references)

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """Those of the chosen attack."""
        references = self._references
        if not references.attacks_records(records):
            raise SettingError("the strongest attack is for the records that its reference models were trained on.")
        answers, labels = target.predict(records.features).cpu(), records.labels.cpu()
        plain, logit = (references.confidences(records, logit=on) for on in (False, True))
        seen = confidence(answers, labels), logit_confidence(answers, labels)
        return _CANDIDATES[self.chosen](*seen, plain, logit, references.inside, references.outside)


_CANDIDATES: dict[str, Callable[..., torch.Tensor]] = {
    "rmia": lambda seen, seen_logit, plain, logit, *sides: relative(seen, marginal(plain, *sides), 2.0),
    "lira": lambda seen, seen_logit, plain, logit, *sides: likelihood_ratios(
        seen_logit, logit, *sides, fixed=len(logit) < ENOUGH
    ),
    "loss": lambda seen, *_: seen,
}
"""Scores by what the target and the reference models say of each record, and which of these were trained with it."""
