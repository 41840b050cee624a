"""One run of the study: one data set, one draw of training and test records, everything the paper measures on it."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from noiseproof.attacks import Attack, GapAttack, ShadowAttack, ShadowModels, split_for_attack
from noiseproof.attacks.shadow import ATTACK_TRAINING
from noiseproof.data.features import Chain, GroupNormMap, ScatteringMap, apply
from noiseproof.methods.predictions import (
    Convexified,
    Logits,
    NeuronGaussian,
    NeuronLaplace,
    Sensitivity,
    Teachers,
    Votes,
)
from noiseproof.methods.predictions.logits import BoundedMap
from noiseproof.methods.predictions.lu import Form
from noiseproof.networks import Network, StackedNetwork, Training, fit_stack
from noiseproof.privacy import Budget, Reproducible
from papers.lu import published
from papers.lu.accountings import accounting, limit_accuracy
from papers.lu.plans import FEW_SHADOWS, Plan, everyone
from papers.lu.stacked_dp_sgd import fit_noise_levels

if TYPE_CHECKING:
    from noiseproof.attacks import AttackSplit
    from noiseproof.data import Dataset
    from noiseproof.methods.predictions.scores import ScoreRelease
    from noiseproof.methods.predictions.teachers import TeachersRelease


BASELINE: Form = "code"
"""The form of the convexified loss that the paper's numbers come from."""

_ANSWERS = 100_000
"""Answers to test records that Algorithm 1's accuracy is the mean over."""

SIBLINGS = ("logits", "teachers", "votes")


class Repeat(NamedTuple):
    """One row of the paper's tables, on the data set that stands for it, with its own draws."""

    row: str
    data: str
    repeat: int

    @property
    def key(self) -> str:
        """Its name in file names."""
        return f"{self.data}-{self.repeat}"


@dataclass(frozen=True)
class Point:
    """A curve's value at one epsilon: test accuracy, and how much the paper's attack gains (TPR - FPR)."""

    curve: str
    epsilon: float
    accuracy: float
    leak: float | None
    ran: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunResult:
    """What was measured on one data set in one repeat."""

    row: str
    data: str
    repeat: int
    records: int
    features: int
    classes: int
    alpha: float
    accuracies: dict[str, tuple[float, float]]
    """Training and test accuracy by loss: `original`, `paper` and `code`."""
    leak: float
    """Of the baseline, under the paper's attack: shadow models, and one attack network for all classes."""
    leak_by_class: float
    """The same with an attack network for each class, as Shokri et al. have it."""
    shadows: int
    """Shadow models of both."""
    leak_by_few: float
    """The leak by the attack of the first two of them."""
    limit: float
    """The accuracy that Algorithm 1 goes to as epsilon goes to 0."""
    points: tuple[Point, ...]
    seconds: float
    notes: tuple[str, ...] = ()


def run(row: str, data: str, repeat: int, plan: Plan, seed: int) -> RunResult:
    """Train the baselines and shadow models of one repeat, and measure every curve of its figure.

    Formal guarantee
    ----------------
    None: a study measures on public data, again and again. What is proven of a single answer of the siblings is on the
    cards that their methods give.
    """
    started = time.process_time()
    dataset = everyone(data)
    size = plan.records(row, len(dataset))
    own = seed * 10_007 + repeat
    split = split_for_attack(dataset, own, size=size)
    alpha = published.number(row, "alpha")
    network = Network("lu-mlp", dataset.public.shape, dataset.classes)
    losses = {"original": None, "paper": Convexified(alpha, "paper"), "code": Convexified(alpha, "code")}
    networks = {name: _train(network, split.members, plan, loss, own) for name, loss in losses.items()}
    baseline = networks[BASELINE]
    shadows = _shadows(network, split, plan, row, losses[BASELINE], own)
    attack, by_class = (_attack(shadows, plan, own, by_class=by_class) for by_class in (False, True))
    few = attack
    if plan.shadow_count(row) > FEW_SHADOWS:
        few = _attack(_first(shadows, FEW_SHADOWS), plan, own, by_class=False)
    logits = baseline.logits(split.records.features)[0]
    tested = logits[size:]
    accuracies = {name: tuple(_accuracies(trained, split)) for name, trained in networks.items()}
    best = tested.topk(2, dim=1).indices == split.nonmembers.labels[:, None]
    top, second = best.double().mean(0).tolist()
    curves = [_neuron_points(logits, split, attack, plan, own)]
    curves.append(_dp_sgd_points(network, split, attack, plan, alpha, own))
    if plan.siblings:
        curves.append(_sibling_points(network, split, attack, plan, own))
    return RunResult(
        row=row,
        data=data,
        repeat=repeat,
        records=size,
        features=split.members.features[0].numel(),
        classes=dataset.classes,
        alpha=alpha,
        accuracies=accuracies,  # type: ignore[arg-type]
        leak=_leak(attack, logits.softmax(1), split),
        leak_by_class=_leak(by_class, logits.softmax(1), split),
        shadows=plan.shadow_count(row),
        leak_by_few=_leak(few, logits.softmax(1), split),
        limit=limit_accuracy(top, second, dataset.classes),
        points=tuple(point for curve in curves for point in curve),
        seconds=time.process_time() - started,
        notes=dataset.public.notes,
    )


def _train(network: Network, members: Dataset, plan: Plan, loss: Convexified | None, seed: int) -> StackedNetwork:
    everyone_ = torch.arange(len(members))
    return fit_stack(network, members.features, members.labels, [everyone_], _training(plan, loss), seeds=[seed])


def _training(plan: Plan, loss: Convexified | None) -> Training:
    plain = Training(epochs=plan.epochs, batch_size=plan.batch_size, l2=1e-3)
    return plain if loss is None else Training(epochs=plan.epochs, batch_size=plan.batch_size, l2=1e-3, loss=loss)


def _shadows(
    network: Network, split: AttackSplit, plan: Plan, row: str, loss: Convexified | None, seed: int
) -> ShadowModels:
    return ShadowModels.drawn(
        network,
        split.attackers,
        count=plan.shadow_count(row),
        size=len(split.members),
        training=_training(plan, loss),
        seed=seed,
    )


def _first(shadows: ShadowModels, count: int) -> ShadowModels:
    assert isinstance(shadows.networks, StackedNetwork)
    parameters = {name: value[:count] for name, value in shadows.networks.parameters.items()}
    return replace(
        shadows,
        networks=StackedNetwork(shadows.networks.network, parameters),
        inside=shadows.inside[:count],
        outside=shadows.outside[:count],
    )


def _attack(shadows: ShadowModels, plan: Plan, seed: int, *, by_class: bool) -> ShadowAttack:
    training = Training(
        epochs=plan.attack_epochs, batch_size=ATTACK_TRAINING.batch_size, lr=ATTACK_TRAINING.lr, l2=ATTACK_TRAINING.l2
    )
    return ShadowAttack.fit(shadows, by_class=by_class, training=training, seed=seed)


def _accuracies(trained: StackedNetwork, split: AttackSplit) -> Iterator[float]:
    for part in (split.members, split.nonmembers):
        yield _accuracy(trained.logits(part.features)[0], part.labels)


def _accuracy(scores: torch.Tensor, labels: torch.Tensor) -> float:
    return float((scores.argmax(1) == labels).double().mean())


class _Given:
    """A target whose answers are known already."""

    def __init__(self, answers: torch.Tensor) -> None:
        self._answers = answers

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        return self._answers


def _leak(attack: Attack, answers: torch.Tensor, split: AttackSplit) -> float:
    """TPR - FPR of the attack on answers to the members, then the non-members."""
    accused = (attack.scores(_Given(answers), split.records) > 0.5).double()
    member = split.membership
    return float(accused[member].mean() - accused[~member].mean())


def _point(
    curve: str,
    epsilon: float,
    answers: torch.Tensor,
    attack: Attack | None,
    split: AttackSplit,
    *,
    accuracy: float | None = None,
    **ran: Any,
) -> Point:
    """A curve's point by one answer to each record; `accuracy` where it is known from more answers than these."""
    if accuracy is None:
        accuracy = _accuracy(answers[len(split.members) :], split.nonmembers.labels)
    leak = None if attack is None else _leak(attack, answers, split)
    return Point(curve, epsilon, accuracy, leak, ran)


def _neuron_points(
    logits: torch.Tensor, split: AttackSplit, attack: ShadowAttack, plan: Plan, seed: int
) -> Iterator[Point]:
    """Algorithm 1 on the baseline's own logits, one answer a record; accuracies over many draws of the noise.

    Where epsilon is small the accuracy changes by less than one draw's chance does.
    """
    width, classes = split.members.features[0].numel(), logits.shape[1]
    sensitivity = Sensitivity((width, 128, classes), len(split.members))
    tested = logits[len(split.members) :]
    rng = Reproducible(seed).spawn(1)
    for method in (NeuronLaplace(), NeuronGaussian()):
        for epsilon in plan.epsilons:
            noise = method.noise(sensitivity, Budget(epsilon))
            answers = noise.answers(logits.clone(), rng)
            drawn = [noise.answers(tested.clone(), rng) for _ in range(max(1, _ANSWERS // len(tested)))]
            accuracy = fmean(_accuracy(each, split.nonmembers.labels) for each in drawn)
            yield _point(method.name, epsilon, answers, attack, split, accuracy=accuracy, scale=noise.scale)


def _dp_sgd_points(
    network: Network, split: AttackSplit, attack: ShadowAttack, plan: Plan, alpha: float, seed: int
) -> Iterator[Point]:
    """DP-SGD at the noise of each of the paper's accountings, all trained at once."""
    epsilons = plan.epsilons if plan.rival_epsilons is None else plan.rival_epsilons
    sizes = {"records": len(split.members), "batch_size": plan.batch_size, "epochs": plan.epochs}
    planned = [
        (f"dp-sgd-{name}{on}", risk, accounting(name, epsilon, **sizes))
        for on, risk, those in (("", 0.0, epsilons), ("-program", alpha, plan.program_epsilons))
        for name in plan.accountings
        for epsilon in those
    ]
    stack = fit_noise_levels(
        network,
        split.members,
        [one.sigma for _, _, one in planned],
        alphas=[risk for _, risk, _ in planned] if plan.program_epsilons else None,
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        seed=seed,
        rng=Reproducible(seed).spawn(2),
    )
    logits = stack.logits(split.records.features)
    for (curve, _, one), answers in zip(planned, logits.softmax(2).nan_to_num_(1 / network.classes), strict=True):
        yield _point(
            curve,
            one.epsilon,
            answers,
            attack,
            split,
            sigma=one.sigma,
            step_sigma=one.step_sigma,
            partition_epsilon=one.partition_epsilon,
            poisson_epsilon=one.poisson_epsilon,
        )


def _sibling_points(
    network: Network, split: AttackSplit, attack: ShadowAttack | None, plan: Plan, seed: int
) -> Iterator[Point]:
    """The proven siblings, each answer proven (epsilon, delta) on its own, for add-or-remove as in the paper."""
    rng = Reproducible(seed).spawn(3)
    budgets = {epsilon: Budget(epsilon, plan.delta) for epsilon in plan.epsilons}
    plain = split.records
    mapped = _scattered(plain)
    logits = Logits(features="auto" if mapped is plain else "raw")
    for name, records, releases in (
        ("logits", mapped, _releases(logits, network, mapped, split, budgets, seed)),
        ("teachers", plain, _teachers(Teachers(epochs=plan.epochs), network, split.members, budgets, seed)),
        ("votes", plain, _releases(Votes(), network, plain, split, budgets, seed)),
    ):
        for epsilon, release in releases:
            # Each record's answer stands for a release of a single answer.
            answers = release.answer_paid(records.features, rng)
            # The attack network looks at probabilities; of labels alone it would find nothing, whatever they give away.
            against = GapAttack() if attack is not None and release.labels_only else attack
            yield _point(name, epsilon, answers, against, split, **_ran(release))


def _scattered(records: Dataset) -> Dataset:
    """Pictures as `logits` maps them, but for the last step, once for all epsilons; other records as they are."""
    if BoundedMap("auto", records.public.shape).chosen != "scattering":
        return records
    return apply(records, Chain((ScatteringMap(), GroupNormMap())), cache=False)


def _releases(
    method: Logits | Votes,
    network: Network,
    records: Dataset,
    split: AttackSplit,
    budgets: dict[float, Budget],
    seed: int,
) -> Iterator[tuple[float, ScoreRelease]]:
    members = records.take(torch.arange(len(split.members)))
    for epsilon, budget in budgets.items():
        yield epsilon, method.fit(network, members, budget, rng=Reproducible(seed))


def _teachers(
    method: Teachers, network: Network, members: Dataset, budgets: dict[float, Budget], seed: int
) -> Iterator[tuple[float, ScoreRelease]]:
    """Where two epsilons have as many teachers, the same ones serve both, with the noise of each."""
    trained: dict[int, TeachersRelease] = {}
    for epsilon, budget in budgets.items():
        count = method.count(budget, members.classes, len(members))
        if count not in trained:
            trained[count] = method.fit(network, members, budget, rng=Reproducible(seed))
        release = copy.copy(trained[count])
        release.answer = method.noise(budget, members.classes, count)
        yield epsilon, release


def _ran(release: ScoreRelease) -> dict[str, Any]:
    names = ("noise", "teachers", "regularisation", "features")
    return {name: release.card.ran[name] for name in names if name in release.card.ran}
