"""Leakage: how often membership is guessed right, per class, of over-fitted networks published in four ways."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noiseproof.attacks import AttackSplit, LossAttack, ShadowAttack, ShadowModels, split_for_attack
from noiseproof.attacks.attack import Attack
from noiseproof.data import Dataset, load
from noiseproof.methods.gradients import DpSgd
from noiseproof.methods.parameters import Collection, DpPg, DpPgp, train_collection
from noiseproof.methods.parameters.collection import ParameterLayout
from noiseproof.networks import Network, StackedNetwork
from noiseproof.privacy import Budget, Card, Reproducible
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease
from papers.mao.plans import AttackPlan, Plan
from papers.mao.quality import accuracy, some
from papers.mao.training import numbered, train_one, train_stages

METHODS = ("none", "dp-pg", "dp-pgp", "dp-sgd")


@dataclass(frozen=True)
class Leak:
    """The attack on one published network."""

    method: str
    epsilon: float | None
    """As the authors count it: DP-PG's 1, DP-PGP's 5; DP-SGD's is proven."""
    train: float
    test: float
    attack: float
    """Balanced accuracy of the attack over all classes."""
    per_class: tuple[float | None, ...]


@dataclass(frozen=True)
class Leakage:
    """The attacks on all published networks."""

    leaks: tuple[Leak, ...]


def measure(
    plan: AttackPlan, whole: Plan, folder: Path, *, seed: int, workers: int = 1, progress: Progress = SILENT
) -> tuple[Leak, ...]:
    """Train over-fitted networks on the members, publish from them in each way, and attack what is published.

    `none` is the first network of the collection.
    """
    everyone = some(load(plan.data, progress=progress).train, plan.records, seed)
    split = split_for_attack(everyone, seed, size=plan.members)
    members = split.members
    network = Network(plan.network, members.public.shape, members.classes, dict(plan.options))
    collection = _collection(plan, whole, network, members, folder, seed, workers, progress)
    attack = _attack(plan, whole, network, split, folder, seed, progress)
    rng = Reproducible(seed)
    private = DpSgd(
        noise_multiplier=whole.sigma,
        epochs=plan.epochs,
        batch_size=plan.batch_size,
        max_grad_norm=1.0,
        lr=0.05,
        momentum=plan.momentum,
    ).fit(network, members, Budget(1.0, whole.delta), rng=rng.spawn(3), progress=progress)
    assert private.card.proven is not None
    vectors = {
        "none": collection.rows[0],
        "dp-pg": DpPg().draw(collection, Budget(1.0), rng.spawn(1)).values,
        "dp-pgp": DpPgp().draw(collection, Budget(5.0), rng.spawn(2)).values,
    }
    epsilons = {"none": None, "dp-pg": 1.0, "dp-pgp": 5.0, "dp-sgd": private.card.proven.epsilon}
    modules = {name: collection.layout.load(network.build(), vector) for name, vector in vectors.items()}
    modules["dp-sgd"] = private.module
    return tuple(
        _leak(name, epsilons[name], modules[name], network, split, attack, private.card, seed) for name in METHODS
    )


def _collection(
    plan: AttackPlan,
    whole: Plan,
    network: Network,
    members: Dataset,
    folder: Path,
    seed: int,
    workers: int,
    progress: Progress,
) -> Collection:
    path = folder / f"overfitted-{plan.data}-{plan.network}"
    if whole.apart:
        options = {"seed": seed, "path": path, "precision": plan.precision, "workers": workers}
        (found,) = train_stages(network, members, plan.models, plan.training(), **options).values()
        return found
    return train_collection(
        network,
        members,
        plan.models,
        plan.training(),
        seed=seed,
        path=path.with_suffix(".safetensors"),
        workers=workers,
        progress=progress,
    )


def _attack(
    plan: AttackPlan,
    whole: Plan,
    network: Network,
    split: AttackSplit,
    folder: Path,
    seed: int,
    progress: Progress,
) -> Attack:
    if plan.attack == "loss":
        return LossAttack()
    if whole.apart:
        shadows = _shadows(plan, network, split.attackers, folder, seed)
    else:
        shadows = ShadowModels.drawn(
            network,
            split.attackers,
            count=plan.shadows,
            size=plan.members,
            training=plan.training(),
            seed=seed,
            progress=progress,
        )
    return ShadowAttack.fit(shadows, seed=seed, progress=progress)


def _shadows(plan: AttackPlan, network: Network, pool: Dataset, folder: Path, seed: int) -> ShadowModels:
    """As `ShadowModels.drawn`: each is trained on a random half of the pool, and compared with the other half."""
    inside = torch.zeros(plan.shadows, len(pool), dtype=torch.bool)
    modules = []
    for number, row in enumerate(inside):
        modules.append(shadow(plan, network, pool, number, folder, seed))
        row[half(pool, number, seed)] = True
    return ShadowModels(StackedNetwork.from_modules(network, modules), pool, inside, ~inside)


def half(pool: Dataset, number: int, seed: int) -> torch.Tensor:
    """Which of the pool's records a shadow model is trained on."""
    generator = torch.Generator().manual_seed(seed << 16 | number)
    return torch.randperm(len(pool), generator=generator)[: len(pool) // 2]


def shadow(plan: AttackPlan, network: Network, pool: Dataset, number: int, folder: Path, seed: int) -> nn.Module:
    """One shadow model, from initial weights of its own: the attacker does not know the publisher's."""
    found = train_one(
        network,
        pool.take(half(pool, number, seed)),
        plan.training(),
        seed=seed,
        row=number,
        path=numbered(folder / f"shadow-{plan.data}-{plan.network}", number),
        precision=plan.precision,
        start=seed + 1 + number,
    )
    module = network.build()
    return ParameterLayout.of(module).load(module, found[plan.epochs])


def _leak(
    name: str,
    epsilon: float | None,
    module: nn.Module,
    network: Network,
    split: AttackSplit,
    attack: Attack,
    card: Card,
    seed: int,
) -> Leak:
    # Only what the network answers is attacked; the card is not looked at.
    nothing: dict[str, Any] = {}
    release = ModelRelease(module.eval(), network, card, split.members.public, nothing)
    result = attack.against(release, split, seed=seed, resamples=200)
    per_class = tuple(None if found.accuracy is None else found.accuracy.value for found in result.per_class)
    test = accuracy(module, split.nonmembers)
    return Leak(name, epsilon, accuracy(module, split.members), test, result.balanced_accuracy, per_class)
