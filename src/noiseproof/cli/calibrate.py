"""`noiseproof calibrate`: the noise that meets a budget."""

from __future__ import annotations

from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Accountant, Delta, Epsilon, Json, NeighboursOption
from noiseproof.cli.registry import command


@command("calibrate", "Example: noiseproof calibrate --rate 0.01 --epsilon 3 --steps 10000 --delta 1e-5")
def run(
    epsilon: Epsilon,
    rate: Annotated[float, typer.Option(help="Sampling rate: the probability that a record is in a batch.")],
    steps: Annotated[int, typer.Option(help="Number of steps to be taken.")],
    delta: Delta = 1e-5,
    accountant: Accountant = "pld",
    neighbours: NeighboursOption = "add-or-remove",
    json: Json = False,
) -> None:
    """Find the smallest noise multiplier whose epsilon stays within the budget."""
    from noiseproof.privacy import calibration
    from noiseproof.privacy.budget import check_neighbours

    found = calibration.sigma(
        epsilon, delta, rate, steps, accountant=accountant, neighbours=check_neighbours(neighbours)
    )
    output.answer(
        json,
        {"sigma": found.sigma, "epsilon": found.epsilon, "delta": delta, "accountant": found.accountant},
        None,
        ("sigma", "epsilon reached", "delta", "accountant"),
        [(found.sigma, found.epsilon, delta, found.accountant)],
    )
