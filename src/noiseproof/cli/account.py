"""`noiseproof account` and `calibrate`: the epsilon of Poisson-sampled Gaussian noise, and the noise that meets an epsilon."""

from __future__ import annotations

from typing import Annotated

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError


@command(
    "account",
    "Examples: noiseproof account --rate 0.01 --sigma 4 --steps 10000 --delta 1e-5; "
    "noiseproof account --records 60000 --batch-size 600 --epochs 15 --sigma 1.1",
)
def account(
    sigma: Annotated[float, typer.Option(help="Noise multiplier: standard deviation over clipping norm.")],
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
    """Compute the epsilon of a DP-SGD training, by the accountant asked for and, beside it, by all others."""
    from noiseproof.privacy import accountants
    from noiseproof.privacy.budget import check_neighbours
    from noiseproof.privacy.events import sampled_gaussian

    relation = check_neighbours(neighbours)
    if sigma == 0:
        raise SettingError("sigma must be greater than 0: without noise no epsilon is finite.")
    rate, steps = o.read_sampling(rate, steps, records, batch_size, epochs)
    event = sampled_gaussian(rate, sigma, steps, group_size=o.check_unit(unit, records_per_person))
    names = dict.fromkeys((accountant, *accountants.ACCOUNTANTS))
    found = {name: accountants.epsilon(event, delta, accountant=name, neighbours=relation) for name in names}
    asked = found[accountant]
    rows = {name: found[name] for name in accountants.ACCOUNTANTS}
    output.answer(
        json,
        {
            "epsilon": asked.epsilon,
            "delta": delta,
            "accountant": asked.accountant,
            "neighbours": relation,
            "unit": unit,
            "records_per_person": records_per_person,
            "rate": rate,
            "steps": steps,
            "bound": asked.bound,
            "note": asked.note,
            "accountants": {name: spent.epsilon for name, spent in rows.items()},
            "no_bounds": [name for name, spent in rows.items() if not spent.bound],
        },
        f"epsilon of one {unit} at delta {delta:g}, {relation}",
        ("accountant", "epsilon", "a bound", ""),
        [
            (f"{name} *" if name == accountant else name, spent.epsilon, spent.bound, spent.note or "")
            for name, spent in rows.items()
        ],
        caption="* asked for",
    )


@command("calibrate", "Example: noiseproof calibrate --rate 0.01 --epsilon 3 --steps 10000 --delta 1e-5")
def calibrate(
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
