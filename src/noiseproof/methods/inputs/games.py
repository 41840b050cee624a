"""Games at the inputs: a blank record against a full one, and the sums that the functional mechanism releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.methods.common import seeded_by
from noiseproof.methods.inputs.layers import LossNoise
from noiseproof.methods.inputs.perturbation import InputNoise, PerturbedRecords, SharedNoise
from noiseproof.privacy import Budget, Claim, Game, Proof, Reproducible

if TYPE_CHECKING:
    from noiseproof.methods.inputs.adlm import InputMethod
    from noiseproof.methods.inputs.functional import Functional


_SHAPE, _CLASSES, _HIDDEN = (1, 28, 28), 10, 25
_SENSITIVITY = 2.0 * 14 * 14 * 25
_FEATURES = 28 * 28


def perturbation_game(method: InputMethod, budget: Budget) -> Game:
    """What the training sees of one record that is blank, or full and of another class, with the noise of the paper's
    MNIST network and equal parts for all features.

    All that follows is post-processing, so that the claim is about this too. With `draw="record"` the score is the
    likelihood ratio. With `draw="batch"` a second record is in the batch, which is blank in both worlds: what the first
    one differs from it by has no noise left.
    """
    _, inputs_epsilon, loss_epsilon = method.parts(budget.epsilon)
    inputs = InputNoise(_SENSITIVITY, inputs_epsilon, method.batch_size, torch.ones(_FEATURES, dtype=torch.float64))
    loss = LossNoise(_CLASSES, _HIDDEN, loss_epsilon, method.batch_size)
    public = Public(shape=_SHAPE, classes=tuple(str(label) for label in range(_CLASSES)))

    def records(world: int, count: int, others: int = 0) -> Dataset:
        features = torch.full((count + others, *_SHAPE), float(world))
        labels = torch.full((count + others,), world)
        features[count:], labels[count:] = 0.0, 0
        return Dataset("game", features, labels, public)

    def apart(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        """Every record of the set is a trial of its own: draws are independent."""
        seen = PerturbedRecords(records(world, trials), inputs, loss, method.coefficients, seeded_by(generator))
        features = seen.features.flatten(1).double()
        score = ((features.abs() - (features - 1).abs()) / inputs.scales).sum(1)
        first, change = seen.coefficients.double(), torch.zeros(2, _CLASSES, dtype=torch.float64)
        change[0, 0] = change[1, 1] = 1.0
        label = (first - 0.5 + change[0]).abs() - (first - 0.5 + change[1]).abs()
        return score + label.sum(1) / loss.scale

    def shared(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        source = SharedNoise(records(world, 1, 1), inputs, loss, method.coefficients, seeded_by(generator))
        scores = torch.empty(trials, dtype=torch.float64)
        for trial in range(trials):
            seen = source.batch(torch.arange(2)).features
            if method.limit is not None:
                seen = seen.clamp(-method.limit, method.limit)
            scores[trial] = float((seen[0] - seen[1]).abs().max())
        return scores

    rng = Reproducible(0)
    claimed = Claim(
        epsilon=inputs_epsilon + loss_epsilon,
        delta=0.0,
        neighbours="replace-one",
        source="Phan et al., lemmas 4 and 6",
    )
    if method.draw == "batch":
        return Game(f"{method.name}: two records of a batch", shared, "replace-one", budget.delta, claimed)
    proven = None
    if method.coefficients == "first-order":
        epsilon = inputs.local_epsilon(rng) + loss.local_epsilon(rng)
        proven = Proof(epsilon=epsilon, delta=0.0, accountant="local DP")
    return Game(f"{method.name}: a blank record or a full one", apart, "replace-one", budget.delta, claimed, proven)


def functional_game(method: Functional, budget: Budget) -> Game:
    """The released sums over one record more or less (or exchanged), whose features have the largest norm."""
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    public = Public(shape=(2,), classes=("0", "1"))
    indices = ([0], [0, 1]) if budget.neighbours == "add-or-remove" else ([0, 1], [0, 2])
    everyone = Dataset("game", features, torch.tensor([0, 1, 0]), public)
    worlds = [everyone.take(torch.tensor(chosen)) for chosen in indices]
    plan = method.plan(everyone, budget)
    sums = [plan.sums(world) for world in worlds]

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = seeded_by(generator)
        scale = plan.scale(rng)
        value = sums[world].expand(trials, -1).clone()
        if method.noise == "gaussian":
            return rng.add_gaussian(value, scale) @ (sums[1] - sums[0])
        seen = rng.add_laplace(value, scale)
        return (seen - sums[0]).abs().sum(1) - (seen - sums[1]).abs().sum(1)

    proven = plan.proof()
    claimed = Claim(epsilon=proven.epsilon, delta=budget.delta, neighbours=budget.neighbours, source="its proof")
    return Game(
        f"{method.name}: the sums with a record and without",
        play,
        budget.neighbours,
        budget.delta,
        claimed,
        proven,
        gaussian=method.noise == "gaussian",
    )
