"""What methods at all five places share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan

from noiseproof.privacy import Budget, Claim, Game, Proof, Reproducible

# Settings are checked by their annotations, when a method is made (`Method.__post_init__`).
Finite = Annotated[float, AllowInfNan(False)]
Positive = Annotated[Finite, Gt(0)]
NonNegative = Annotated[Finite, Ge(0)]
Count = Annotated[int, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]
Rate = Annotated[float, Gt(0), Le(1)]

Play = Callable[[int, int, torch.Generator], torch.Tensor]
"""`Game.play`: world, trials and generator in, one score a trial out."""


def seeded_by(generator: torch.Generator) -> Reproducible:
    """Randomness for one trial of a game, from the generator of all trials.

    Args:
        generator: The generator that a game's `play` was given.

    Returns:
        Reproducible randomness with a seed drawn from `generator`.
    """
    return Reproducible(int(torch.randint(2**62, (1,), generator=generator)))


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
    name: str, play: Play, budget: Budget, proven: Proof, *, source: str = "its proof", gaussian: bool = False
) -> Game:
    """A game against a mechanism that claims what is proven of exactly what is played.

    Args:
        name: The method's name and what the game does, for reports.
        play: See `Game`.
        budget: For the neighbours and the delta.
        proven: What holds for one trial.
        source: Where the claim comes from.
        gaussian: Whether both worlds' scores are normal with one variance.

    Returns:
        The game, whose claim is the proof's epsilon.
    """
    near, delta = budget.neighbours, budget.delta
    claimed = Claim(epsilon=proven.epsilon, delta=delta, neighbours=near, source=source)
    return Game(name, play, near, delta, claimed, proven, gaussian=gaussian)
