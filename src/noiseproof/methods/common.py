"""What methods at all five places share: annotations of settings, claims, and the parts of games."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import BeforeValidator
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.methods import Method
from noiseproof.networks.objectives import LossName, Objective
from noiseproof.privacy import Budget, Claim, Game, Proof, Reproducible, accountants, calibration
from noiseproof.privacy.events import sampled_gaussian
from noiseproof.settings import BelowOne, Count, Finite, NonNegative, Positive, Rate, Share, Within

if TYPE_CHECKING:
    from noiseproof.data import Dataset, Public
    from noiseproof.engine.batch_gradients import BatchGradients
    from noiseproof.engine.private_gradients import PrivateGradients
    from noiseproof.privacy import Randomness
    from noiseproof.privacy.card import Unit

__all__ = [
    "BelowOne",
    "Count",
    "Finite",
    "LinearLoss",
    "NonNegative",
    "Play",
    "Positive",
    "Rate",
    "Share",
    "Supervised",
    "Within",
    "claim_of",
    "clipped_sum_game",
    "crowded",
    "draw_shards",
    "each_trial",
    "first_gradient",
    "initial_seed",
    "proven_game",
    "seeded_by",
    "shuffled",
]

_WIDTH = 3
_STEPS = 20
"""Trials that one object plays before a fresh one takes over, so that an adaptive clipping norm stays near its start."""

MOST_ANSWERS = 1000
"""Answers that one trial of a game asks for, at most."""

Play = Callable[[int, int, torch.Generator], torch.Tensor]
"""`Game.play`: world, trials and generator in, one score a trial out."""


def _numbers(value: Any) -> Any:
    """The numbers that a command line gives in one text."""
    if isinstance(value, str) and value != "balanced":
        return tuple(float(part) for part in value.split(","))
    return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Supervised(Method):
    """A method that trains one network on losses of records: how those are chosen and weighted, at no cost.

    Formal guarantee
    ----------------
    None is needed: all of it is public, and a record's loss depends on that record and the network alone.
    """

    loss: LossName = "auto"
    """Of a numeric target: squared, huber, quantile or poisson; `auto` by the task. Classes have cross-entropy."""
    level: Within = 0.5
    """The quantile that `loss=quantile` predicts."""
    huber: Positive = 0.1
    """The residual from which `loss=huber` is linear, as a share of the target's range."""
    interval: BelowOne = 0.0
    """The share of targets that an interval around a predicted number is to hold; a tenth of epsilon pays for its width
    (`run.spends`). 0 for none."""
    class_weights: Annotated[Literal["balanced"] | tuple[Positive, ...], BeforeValidator(_numbers)] = ()
    """What the losses of each class are multiplied by, in the classes' order, as 1,30; `balanced` by shares that the schema
    declares. They must not be read off the private records."""
    threshold: Within | None = None
    """Of two classes: the second is named from this probability on. None names the likelier."""

    def objective(self, public: Public) -> Objective:
        """The records' losses, and what the network's outputs mean."""
        if self.threshold is not None and public.task == "classification" and len(public.classes) != 2:
            raise SettingError(f"{self.name}'s setting threshold is for two classes, not for {len(public.classes)}.")
        return Objective.of(public, self.settings())


def seeded_by(generator: torch.Generator) -> Reproducible:
    """Randomness for one trial of a game, from the generator of all trials.

    Args:
        generator: The generator that a game's `play` was given.

    Returns:
        Reproducible randomness with a seed drawn from `generator`.
    """
    return Reproducible(int(torch.randint(2**62, (1,), generator=generator)))


def each_trial(score: Callable[[int, Reproducible], float]) -> Play:
    """`Game.play` for what is done afresh in every trial.

    Args:
        score: Plays one trial in world 0 or 1, with randomness of its own.

    Returns:
        The scores of so many trials.
    """

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        return torch.tensor([score(world, seeded_by(generator)) for _ in range(trials)], dtype=torch.float64)

    return play


def shuffled(records: int, batch_size: int, steps: int) -> Iterator[torch.Tensor]:
    """Indices of so many batches, over epochs that torch's own generator shuffles; an epoch's last batch may be smaller.

    Args:
        records: How many there are.
        batch_size: How many a batch has.
        steps: How many batches to give.

    Yields:
        The indices of a batch.
    """
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if not len(order):
            order = torch.randperm(records)
        yield order[:batch_size]
        order = order[batch_size:]


class FixedShards(Reproducible):
    """Randomness for games of methods that put every record into a shard by a draw of its own: here, a stated one.

    A proof for shards holds whatever the draws are, so that a game may fix them and train on the worst records for them.
    """

    def __init__(self, shards: torch.Tensor, count: int) -> None:
        super().__init__(0)
        self._draws = (shards.double() + 0.5) / count

    def uniform(self, shape: Sequence[int]) -> torch.Tensor:
        """The records' draws."""
        assert tuple(shape) == self._draws.shape
        return self._draws


def crowded(dataset: Dataset, place: int, records: int) -> Dataset:
    """For games: every record a person's, and the person at `place` has theirs so many times; unchanged for one record.

    Args:
        dataset: Records of a game.
        place: The canary's place among them.
        records: How many records that person is to have.

    Returns:
        The records with their persons.
    """
    if records == 1:
        return dataset
    counts = torch.ones(len(dataset), dtype=torch.int64)
    counts[place] = records
    groups = torch.repeat_interleave(torch.arange(len(dataset)), counts)
    return replace(dataset.take(groups), groups=groups)


def claim_of(budget: Budget, source: str = "the budget that the noise was calibrated to") -> Claim:
    """The claim of a method whose noise is calibrated to a budget: all of it.

    Args:
        budget: What the run may spend.
        source: Where the number comes from, for the card.

    Returns:
        The budget's epsilon and delta, under its neighbours.
    """
    return Claim(epsilon=budget.epsilon, delta=budget.delta, neighbours=budget.neighbours, source=source)


def proven_game(
    name: str,
    play: Play,
    budget: Budget,
    proven: Proof,
    *,
    source: str = "its proof",
    gaussian: bool = False,
    unit: Unit = "record",
    canaries: int = 1,
) -> Game:
    """A game against a mechanism that claims what is proven of exactly what is played.

    Args:
        name: The method's name and what the game does, for reports.
        play: See `Game`.
        budget: For the neighbours and the delta.
        proven: What holds for one trial.
        source: Where the claim comes from.
        gaussian: Whether both worlds' scores are normal with one variance.
        unit: What the two worlds differ in.
        canaries: How many records they differ in: several are one person's, whatever `unit` says.

    Returns:
        The game, whose claim is the proof's epsilon.
    """
    near, delta = budget.neighbours, budget.delta
    unit = "person" if canaries > 1 else unit
    claimed = Claim(epsilon=proven.epsilon, delta=delta, neighbours=near, source=source, unit=unit)
    name = name if unit == "record" else f"{name} ({unit})"
    return Game(name, play, near, delta, claimed, proven, unit=unit, gaussian=gaussian)


def initial_seed(rng: Randomness) -> int:
    """A seed of initial weights, shuffles and sampled labels, for `Network.build` and `seeded_generator`.

    No proof rests on it; but what it drives need not be public either, and what else a run draws does not follow from it.

    Args:
        rng: The run's randomness.

    Returns:
        A seed of 256 bits where the randomness is secure, so that it cannot be found by trying; of 31 in a rehearsal.
    """
    if rng.kind == "secure":
        return 1 << 256 | sum(int(part) << 32 * place for place, part in enumerate(rng.uniform((8,)) * 2**32))
    return int(torch.randint(2**31, (1,), generator=rng.generator))


def draw_shards(rng: Randomness, dataset: Dataset, count: int) -> list[torch.Tensor]:
    """Disjoint shards: every record is put into one by a draw of its own, so that neighbours differ in one shard.

    Where the records have persons the draw is the person's: all their records lie in one shard.

    Args:
        rng: The run's randomness.
        dataset: The records.
        count: How many shards; some may be empty.

    Returns:
        The records of each shard, in order.
    """
    drawn = (rng.uniform((dataset.persons,)) * count).long().clamp_(max=count - 1)
    if dataset.groups is not None:
        drawn = drawn[dataset.groups]
    return list(drawn.argsort(stable=True).split(torch.bincount(drawn, minlength=count).tolist()))


class LinearLoss(nn.Module):
    """loss(record) = <w, record> for games: the gradient is the record itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(_WIDTH, 1, bias=False)

    def forward(self, records: torch.Tensor) -> torch.Tensor:
        """One loss a record."""
        return self.weights(records).squeeze(1)


def first_gradient(gradients: BatchGradients) -> torch.Tensor:
    """The gradient that a step left at the weights of a `LinearLoss`."""
    gradient = gradients.parameters[0].grad
    assert gradient is not None
    return gradient[0].double()


def clipped_sum_game(
    name: str,
    gradients: Callable[[nn.Module, float, Randomness], PrivateGradients],
    budget: Budget,
    *,
    canaries: int = 1,
    grouped: bool = True,
) -> Game:
    """A canary of ten times the clipping norm in one step that sees every record: a Gaussian shifted by the norm, or not.

    It runs the very code that trainings run. Neighbours differ in the canary (or, replace-one, in its sign); the others'
    gradients are zero, which is the worst case for the sum. Every step is a trial of its own.

    Args:
        name: The method's.
        gradients: Called with a module, a noise multiplier and randomness, gives what is attacked, at sampling rate 1.
        budget: The game's promise: the noise is the one that meets it there, whatever the noise of a training was.
        canaries: How many records the canary is: with more than one it is a person, and so is the unit.
        grouped: Whether the mechanism is told whose the records are. If not, what is proven of it is for one of them, and a
            person of several refutes it: the mistake that this game is there to catch.

    Returns:
        The game.
    """
    exchange = budget.neighbours == "replace-one"
    sigma = calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma
    module = LinearLoss()

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = seeded_by(generator)
        records = torch.zeros(1 + canaries if world or exchange else 1, _WIDTH)
        records[1:, 0] = 1e3 * (1 if world else -1)
        groups = torch.arange(len(records)).clamp(max=1) if grouped and canaries > 1 else None
        scores = []
        for start in range(0, trials, _STEPS):
            attacked = gradients(module, sigma, rng)
            # A public constant, the same in both worlds; so large that a second clipping of the mean hides nothing.
            attacked.expected_batch = 1e4
            for (batch,) in attacked.batches(
                records, steps=min(_STEPS, trials - start), groups=groups, max_records_per_person=canaries
            ):
                clip = attacked.max_grad_norm  # before `backward`: an adaptive clipping norm moves with the step
                attacked.backward(module(batch))
                scores.append(first_gradient(attacked)[0] * attacked.expected_batch / clip)
            attacked.close()
        return torch.stack(scores)

    event = sampled_gaussian(1.0, sigma)
    proven = accountants.epsilon(event, budget.delta, neighbours=budget.neighbours).proof()
    title = f"{name}: a canary at the clipping norm"
    source = "the accountant, for one step"
    return proven_game(title, play, budget, proven, source=source, gaussian=True, canaries=canaries)
