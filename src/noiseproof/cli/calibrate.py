"""`noiseproof calibrate`: the noise that meets a budget."""

from __future__ import annotations

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command


@command("calibrate", "Example: noiseproof calibrate --rate 0.01 --epsilon 3 --steps 10000 --delta 1e-5")
def run(
    epsilon: o.Epsilon,
    rate: o.RateOption = None,
    steps: o.StepsOption = None,
    records: o.RecordsOption = None,
    batch_size: o.BatchSizeOption = None,
    epochs: o.EpochsOption = None,
    delta: o.Delta = 1e-5,
    accountant: o.Accountant = "pld",
    neighbours: o.NeighboursOption = "add-or-remove",
    unit: o.UnitOption = "record",
    records_per_person: o.RecordsPerPerson = 1,
    json: o.Json = False,
) -> None:
    """Find the smallest noise multiplier whose epsilon stays within the budget."""
    from noiseproof.privacy import calibration
    from noiseproof.privacy.budget import check_neighbours

    rate, steps = o.read_sampling(rate, steps, records, batch_size, epochs)
    terms = {"accountant": accountant, "neighbours": check_neighbours(neighbours)}
    group_size = o.check_unit(unit, records_per_person)
    found = calibration.sigma(epsilon, delta, rate, steps, **terms, group_size=group_size)
    output.answer(
        json,
        {"sigma": found.sigma, "epsilon": found.epsilon, "delta": delta, "accountant": found.accountant}
        | {"unit": unit, "records_per_person": records_per_person},
        None,
        ("sigma", "epsilon reached", "delta", "unit", "accountant"),
        [(found.sigma, found.epsilon, delta, unit, found.accountant)],
    )
