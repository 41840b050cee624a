"""Averaging: when is a network drawn from many better than one of them, as the paper has it for large epsilons?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from noiseproof.data import load
from noiseproof.methods.parameters import DpPg
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible
from papers.mao.plans import AveragingPlan
from papers.mao.quality import accuracy, some
from papers.mao.training import train_stages

EPSILON = 5.0


@dataclass(frozen=True)
class Averaged:
    """Test accuracies of one collection's networks and of what is made of them."""

    lr: float
    epochs: int
    none: float
    """The mean over the networks."""
    mean: float
    """The averaged network."""
    drawn: float
    """DP-PG at epsilon 5."""
    spread: float
    """Root mean square of the networks' distances from their mean, over the mean's distance from the start."""


@dataclass(frozen=True)
class Averaging:
    """Collections that differ in learning rate and epochs alone."""

    data: str
    network: str
    models: int
    rows: tuple[Averaged, ...]


def measure(plan: AveragingPlan, folder: Path, *, seed: int) -> Averaging:
    """Train each collection (kept in `folder`), and publish from it."""
    found = load(plan.data)
    train, test = some(found.train, plan.records, seed), some(found.test, plan.tested, seed)
    network = Network(plan.network, test.public.shape, test.classes)
    rows = []
    for lr, epochs in plan.runs:
        # Networks of all records are those of `QualityPlan`.
        path = folder / "-".join([plan.data, plan.network, *([f"{plan.records}"] if plan.records else []), f"{lr:g}"])
        training = plan.training(lr, epochs)
        options = {"seed": seed, "path": path, "precision": plan.precision}
        (collection,) = train_stages(network, train, plan.models, training, **options).values()
        layout, module, mean = collection.layout, network.build(seed), collection.mean()
        moved = float((mean - layout.flatten(module)).norm())
        apart = float((collection.rows - mean).square().sum(1).mean().sqrt())
        drawn = DpPg().draw(collection, Budget(EPSILON), Reproducible(seed)).values
        *own, averaged, published = (
            accuracy(layout.load(module, vector), test) for vector in (*collection.rows, mean, drawn)
        )
        rows.append(Averaged(lr, epochs, sum(own) / len(own), averaged, published, apart / moved))
    return Averaging(plan.data, plan.network, plan.models, tuple(rows))
