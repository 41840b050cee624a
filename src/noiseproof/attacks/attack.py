"""Attack: what tells members from non-members by a release; the registry of attacks, and the verb that runs one.

An attack of your own is a subclass of `Attack`, decorated with `register_attack`. It is found if its module was
imported, or if its package names the module among its entry points of the group `noiseproof.attacks`.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

import torch

from noiseproof.attacks.result import AttackResult
from noiseproof.data.dataset import Dataset
from noiseproof.errors import DataError, SettingError
from noiseproof.networks import Network, Training, suggest
from noiseproof.plugins import load_plugins
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import DataRelease

if TYPE_CHECKING:
    from noiseproof.attacks.retraining import Retraining
    from noiseproof.attacks.shadow import ShadowModels
from noiseproof.attacks.records import AttackSplit, records_of

_REGISTRY: dict[str, type[Attack]] = {}

_OF_NUMBERS = ("loss", "nearest")
"""Attacks that need no classes."""

TINY = 1e-30
"""Probabilities are taken to be at least this, so that an answer of exactly 0 or 1 has a finite score."""


class Predicts(Protocol):
    """Anything that answers records with class probabilities: a `ModelRelease`, a `PredictionRelease`.

    Examples:
        >>> class Constant:  # a model of your own needs no more to be attacked
        ...     def predict(self, features):
        ...         return torch.full((len(features), 10), 0.1)
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> infer_membership(Constant(), split, "loss").auc
        0.5
    """

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """Class probabilities, (records, classes)."""


class Counted:
    """A target that counts the answers it gave: one a record."""

    def __init__(self, target: Predicts) -> None:
        self._target = target
        self.queries = 0

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """The target's answer."""
        answers = self._target.predict(features)
        self.queries += len(features)
        if not torch.isfinite(answers).all():
            raise DataError(
                "the release answered NaN or infinity; its training diverged, so there is nothing to attack."
            )
        return answers


def confidence(answers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The logarithm of the probability that each answer gives to the true label: minus its loss; of a number minus its
    squared error."""
    if labels.is_floating_point():
        return -(answers[..., 0].double() - labels.double()).square()
    chosen = answers.double().gather(-1, labels[..., None]).squeeze(-1)
    return chosen.clamp(min=TINY).log()


def logit_confidence(answers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """log(p / (1 - p)) of the probability p given to the true label, near normal over trainings (Carlini et al. 2022).

    1 - p is summed from the other classes: in float32 a confident p is exactly 1 while they are still positive.
    """
    others = answers.double().scatter(-1, labels[..., None], 0.0).sum(-1)
    return confidence(answers, labels) - others.clamp(min=TINY).log()


class Attack(ABC):
    """An attack that has learned all it will learn; it can be turned on any number of targets.

    It sees a target through `predict` only, so that a `PredictionRelease` is attacked through its noisy answers, each
    of which costs its budget; or, where it is `on` records, through the records of a `DataRelease`.

    Examples:
        >>> @register_attack
        ... class CertaintyAttack(Attack):
        ...     name = "certainty"
        ...
        ...     def scores(self, target, records):
        ...         answers = target.predict(records.features)
        ...         return (answers * answers.clamp(min=1e-30).log()).sum(1)
    """

    name: ClassVar[str]
    on: ClassVar[str] = "answers"
    """What it attacks: a release's `answers`, or synthetic `records`."""
    probabilities: ClassVar[bool] = False
    """Whether it needs probabilities, so that a release that answers labels alone is attacked by `gap` instead."""
    of_person: ClassVar[Literal["mean", "sum"]] = "mean"
    """What a person's score is of their records' scores."""
    threshold: float | None = None
    """Scores above it are taken for members; None where the attack has no threshold of its own."""
    threshold_from: str = "the other half of the scores"
    note: str = ""
    """What a reader of its result must know."""

    @classmethod
    def prepare(cls, setup: AttackSetup) -> Self:
        """The attack, ready for a target: where it learns from shadow models, these are trained here."""
        return cls()

    @abstractmethod
    def scores(self, target: Any, records: Dataset) -> torch.Tensor:
        """One score for each record: the larger, the more the record looks like a member."""

    def against(
        self, target: Predicts | DataRelease, split: AttackSplit, *, seed: int = 0, resamples: int = 1000
    ) -> AttackResult:
        """Attack the target's members and non-members; `seed` is for the result's halves and bootstrap.

        Where it is known of both whose their records are, *persons* are attacked, each by all their records together.
        """
        counted = None if isinstance(target, DataRelease) else Counted(target)
        records, member = split.records, split.membership
        scores = self.scores(counted or target, records)
        labels, classes = records.labels, records.public.classes
        if records.groups is not None:
            groups, persons = records.groups.cpu(), records.persons
            scores = torch.zeros(persons, dtype=torch.float64).index_add_(0, groups, scores.detach().double().cpu())
            if self.of_person == "mean":
                scores /= records_of(records)
            member, classes = torch.arange(persons) < split.members.persons, ()
        if not classes:
            labels, classes = torch.zeros(len(scores), dtype=torch.int64), (f"every {records.unit}",)
        return AttackResult(
            attack=self.name,
            scores=scores,
            member=member,
            labels=labels,
            classes=classes,
            unit=records.unit,
            threshold=self.threshold,
            threshold_from=self.threshold_from,
            queries=counted.queries if counted else 0,
            seed=seed,
            resamples=resamples,
            note=self.note,
        )


@dataclass(frozen=True)
class AttackSetup:
    """What an attack may learn from before it is turned on a release: what `Attack.prepare` is given.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("none", split.members, seed=0)
        >>> setup = AttackSetup(release, split, release.network, Training(epochs=20), shadows=8)
        >>> from noiseproof.attacks import LiraAttack
        >>> attack = LiraAttack.prepare(setup)  # trains 8 networks
        >>> attack.against(release, split).auc > 0.5
        True
    """

    release: Predicts | DataRelease
    """What will be attacked."""
    split: AttackSplit
    """Its members, others, and perhaps the attacker's own records."""
    network: Network
    """What shadow models are built like."""
    training: Training | Retraining
    """How shadow models are trained."""
    shadows: int = 20
    """How many shadow models are trained; `references` need an even number."""
    seed: int = 0
    """Of everything random in the attack."""
    progress: Progress = SILENT
    """Hears how far it is."""

    @cached_property
    def references(self) -> ShadowModels:
        """Shadow models on halves of the attacked records: trained once, for every attack that this setup prepares."""
        from noiseproof.attacks.shadow import ShadowModels

        return ShadowModels.halves(self.network, self.split.records, **self._options)

    @cached_property
    def drawn(self) -> ShadowModels:
        """Shadow models on random parts of the attacker's records, each as large as the target's: trained once as well."""
        from noiseproof.attacks.shadow import ShadowModels

        size = self.split.members.persons
        return ShadowModels.drawn(self.network, self.split.attackers, size=size, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"count": self.shadows, "training": self.training, "seed": self.seed, "progress": self.progress}


A = TypeVar("A", bound=type[Attack])


def register_attack(attack: A) -> A:
    """Class decorator: make an attack available by its name.

    Args:
        attack: A subclass of `Attack` with a `name`.

    Returns:
        The class, as it is.

    Raises:
        ValueError: If the name is taken.

    Examples:
        >>> @register_attack
        ... class BrightnessAttack(Attack):
        ...     name = "brightness"
        ...
        ...     def scores(self, target, records):
        ...         return records.features.flatten(1).mean(1)
        >>> "brightness" in attack_names()
        True
    """
    if attack.name in _REGISTRY:
        raise ValueError(f"two attacks are named {attack.name!r}")
    _REGISTRY[attack.name] = attack
    return attack


def attacks() -> Mapping[str, type[Attack]]:
    """Every attack by its name."""
    for module in ("shadow", "simple", "rmia"):
        importlib.import_module(f"noiseproof.attacks.{module}")
    load_plugins("noiseproof.attacks")
    return _REGISTRY


def attack_names(on: str | None = None) -> tuple[str, ...]:
    """Every attack that can be asked for by name.

    Args:
        on: `answers` for attacks on a release's answers, `records` for those on synthetic records; None for all.

    Returns:
        The names, in the order in which attacks were registered.

    Examples:
        >>> attack_names("records")
        ('nearest', 'density-ratio')
    """
    return tuple(name for name, attack in attacks().items() if on in (None, attack.on))


def infer_membership(
    release: Predicts | DataRelease,
    split: AttackSplit,
    attack: str = "shadow",
    *,
    network: Network | None = None,
    training: Training | Retraining | None = None,
    shadows: int = 20,
    seed: int = 0,
    progress: Progress = SILENT,
) -> AttackResult:
    """Attack a release and measure how well members are told from non-members.

    `shadow` (Shokri), `lira` and `rmia` (online: shadow models on halves of the attacked records), `lira-offline` and
    `rmia-offline` (shadow models on the split's pool) train shadow networks; `strongest` trains those of the online attacks,
    tries which attack does best on them, and takes that. `loss` (Yeom), `confidence`, `entropy`, `modified-entropy`, `gap`
    (is the label right?) and `label-only` (and does it survive noise?) train none. A release that answers labels alone is
    attacked by `gap` where an attack needs probabilities; the result says so. Synthetic records are attacked by `nearest` and
    `density-ratio`. A `PredictionRelease` pays for every answer; see `AttackSplit.limited`.

    Args:
        release: What is attacked.
        split: Its members, others, and perhaps the attacker's own records.
        attack: The attack's name.
        network: What shadow networks are built like; by default the release's own network.
        training: How they are trained; by default as the release's own network was (`Release.training`), with its method,
            clipping and noise if it is a model of a method that has these (`Retraining`).
        shadows: How many of them.
        seed: For everything random in the attack.
        progress: Hears how far it is.

    Returns:
        Scores and measures, with intervals.

    Raises:
        SettingError: If there is no such attack, or it does not fit the release.
        DataError: If the release or its shadow models answer NaN or infinity.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("none", split.members, seed=0)
        >>> result = infer_membership(release, split, "loss")
        >>> result.auc > 0.5  # trained without noise on 100 records
        True

    Formal guarantee
    ----------------
    None: an attack measures, on the trusted side, how much a release gives away about real records.
    """
    options: Any = {"network": network, "training": training, "shadows": shadows, "seed": seed, "progress": progress}
    return infer_by_all(release, split, [attack], **options)[0]


def infer_by_all(
    release: Predicts | DataRelease,
    split: AttackSplit,
    names: Sequence[str],
    *,
    network: Network | None = None,
    training: Training | Retraining | None = None,
    shadows: int = 20,
    seed: int = 0,
    progress: Progress = SILENT,
) -> list[AttackResult]:
    """Attack a release in several ways that share what they learn: shadow models are trained once for all of them.

    Args:
        release: What is attacked.
        split: Its members, others, and perhaps the attacker's own records.
        names: The attacks.
        network: As for `infer_membership`.
        training: As for `infer_membership`.
        shadows: As for `infer_membership`.
        seed: As for `infer_membership`.
        progress: As for `infer_membership`.

    Returns:
        One result for each name.

    Raises:
        SettingError: If there is no such attack, or it does not fit the release.
        DataError: If the release or its shadow models answer NaN or infinity.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.attacks import split_for_attack
        >>> split = split_for_attack(npf.load("digits").train, size=100)
        >>> release = npf.train("none", split.members, seed=0)
        >>> results = infer_by_all(release, split, ["loss", "entropy", "gap"])
        >>> [result.attack for result in results]
        ['loss', 'entropy', 'gap']

    Formal guarantee
    ----------------
    None, as for `infer_membership`.
    """
    public = split.members.public
    fitting = [_fitting(release, name, public.task) for name in names]
    own = getattr(release, "network", None)
    if network is None:
        network = own if isinstance(own, Network) else suggest(public.shape, split.members.outputs, public.kind)
    if training is None:
        from noiseproof.attacks.retraining import Retraining

        known = getattr(release, "training", None)
        training = (known() if callable(known) else None) or Retraining.of(release) or Training()
    setup = AttackSetup(release, split, network, training, shadows, seed, progress)
    return [attacks()[name].prepare(setup).against(release, split, seed=seed) for name in fitting]


def _fitting(release: Predicts | DataRelease, attack: str, task: str) -> str:
    """The attack, or what stands in for it where a release answers labels alone; refuses one that does not fit."""
    if attack not in attack_names():
        raise SettingError(f"there is no attack {attack!r}; there are {', '.join(attack_names())}.")
    on = "records" if isinstance(release, DataRelease) else "answers"
    if attacks()[attack].on != on:
        other, what = ("predictions", "synthetic records") if on == "records" else ("synthetic records", "predictions")
        raise SettingError(f"{attack} attacks {other}; {what} can be attacked by {' or '.join(attack_names(on))}.")
    if getattr(release, "labels_only", False) and attacks()[attack].probabilities:
        # A threshold on probabilities that are all 0 or 1 finds nothing, whatever the labels give away.
        attack = "gap"
    if task != "classification" and attack not in _OF_NUMBERS:
        raise SettingError(f"{attack} attacks answers that name classes; a {task} can be attacked by loss.")
    return attack
