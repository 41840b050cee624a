"""What methods at all five places share."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le, Lt
from pydantic import AllowInfNan

from noiseproof.privacy.reproducible import Reproducible

# Settings are checked by their annotations, when a method is made (`Method.__post_init__`).
Finite = Annotated[float, AllowInfNan(False)]
Positive = Annotated[Finite, Gt(0)]
NonNegative = Annotated[Finite, Ge(0)]
Count = Annotated[int, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
BelowOne = Annotated[float, Ge(0), Lt(1)]


def seeded_by(generator: torch.Generator) -> Reproducible:
    """Randomness for one trial of a game, from the generator of all trials.

    Args:
        generator: The generator that a game's `play` was given.

    Returns:
        Reproducible randomness with a seed drawn from `generator`.
    """
    return Reproducible(int(torch.randint(2**62, (1,), generator=generator)))
