"""Options that several commands share, so that they are named and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import completion

Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]
Epsilon = Annotated[float, typer.Option("--epsilon", "-e", help="Privacy budget: epsilon, greater than 0.")]
Delta = Annotated[float, typer.Option("--delta", "-d", help="Privacy budget: delta, well below 1 / records.")]
NeighboursOption = Annotated[
    str,
    typer.Option(
        "--neighbours",
        help="When data sets are neighbours: add-or-remove or replace-one.",
        autocompletion=completion.neighbours,
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="A named set (see `noiseproof data`) or a CSV, Parquet or npz file.",
        autocompletion=completion.data,
    ),
]
Target = Annotated[str | None, typer.Option("--target", help="The column to predict, for a table.")]
SchemaOption = Annotated[
    Path | None, typer.Option("--schema", help="JSON file with the public bounds and categories of a table's columns.")
]
Seed = Annotated[int, typer.Option("--seed", help="Seed of splits and of reproducible randomness.")]
Accountant = Annotated[
    str,
    typer.Option("--accountant", help="pld, rdp, zcdp, gdp, advanced or naive.", autocompletion=completion.accountants),
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated.")
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="A network by name; without it, one that suits the data.",
        autocompletion=completion.networks,
    ),
]
MethodArgument = Annotated[
    str, typer.Argument(help="A method's name; see `noiseproof methods`.", autocompletion=completion.methods)
]
RecipeOption = Annotated[
    str,
    typer.Option(
        "--recipe",
        help="For dp-sgd: auto (by the data's kind and size), none, scattering, scattering-mirror, bins or unit.",
    ),
]

Jobs = Annotated[
    int | None, typer.Option("--jobs", help="Local processes to spread the work over; one a core without it.")
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", metavar="auto|ADDRESS", help="Spread the work over a Ray cluster instead (extra `cluster`)."),
]

LedgerOption = Annotated[
    str,
    typer.Option("--ledger", envvar="NOISEPROOF_LEDGER", help="A SQLite file, or postgresql://USER@HOST/NAME."),
]


def read_settings(given: list[str] | None) -> dict[str, str]:
    """`["epochs=5"]` as `{"epochs": "5"}`."""
    from noiseproof.errors import SettingError

    settings = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"--set takes NAME=VALUE, not {text!r}.")
        settings[name.strip()] = value.strip()
    return settings
