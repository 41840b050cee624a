"""Options that several commands share, so that they are named and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli import completion

if TYPE_CHECKING:
    from noiseproof.privacy.card import Card
    from noiseproof.releases.release import Release

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
ReleaseSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="For research: reproducible randomness; the result is a rehearsal. Without it: secure randomness.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the bundle; without it nothing is saved.")]
ChosenBy = Annotated[
    Path | None,
    typer.Option(
        "--chosen-by", metavar="DIR", help="The comparison that the method was chosen by; the card then notes it."
    ),
]
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


CARD_COLUMNS = ("claimed ε", "proven ε", "δ", "verdict")


def card_cells(card: Card, delta: float) -> tuple[Any, ...]:
    """What a release's table says of its card, under `CARD_COLUMNS`."""
    from noiseproof.cli.output import guarantee

    return guarantee(card.claimed), guarantee(card.proven), delta, card.verdict


def caution(release: Release, out: Path | None) -> None:
    """Say on stderr what must not be done with a release: a rehearsal, or a bundle that stays inside."""
    from noiseproof.cli import output

    if release.card.randomness == "reproducible":
        output.note(
            "this is a rehearsal: whoever knows the seed can take the noise off again, so nothing of it may leave; run "
            "the command without --seed for a release."
        )
    if out is not None:
        note_inside(release, out)


def note_inside(release: Release, bundle: Path) -> None:
    """Say on stderr that a bundle must stay on the trusted side, if it must."""
    from noiseproof.cli import output

    if release.stays_inside:
        output.note(
            f"{bundle} stays inside: it holds private records or networks that were trained on them without noise; only "
            "answers that `noiseproof serve` or `predict` gives may leave."
        )


def read_choice(folder: Path | None) -> str | None:
    """The note for a card on the comparison that its method was chosen by; refuses a folder that holds none."""
    from noiseproof.run.results import Comparison

    return None if folder is None else Comparison.read(folder).choice


def with_choice(card: Card, chosen: str | None) -> Card:
    """The card with a note on how the method was chosen."""
    return card if chosen is None else card.model_copy(update={"notes": (*card.notes, chosen)})
