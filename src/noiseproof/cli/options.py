"""Options that several commands share, so that they are named and explained the same everywhere."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer

from noiseproof.cli import output
from noiseproof.errors import SettingError

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.privacy.card import Card
    from noiseproof.releases.release import Release
    from noiseproof.releases.signing_keys import Signer


def signed_by(key: Path | None, command: str | None, public: Path | None) -> Signer:
    """Whoever signs: the holder of a private key, or a command with its public key."""
    from noiseproof.releases.signing_keys import CommandSigner, read_private_key, read_public_key

    if key is not None and command is None and public is None:
        return read_private_key(key)
    if key is None and command is not None and public is not None:
        return CommandSigner(command, read_public_key(public))
    raise SettingError("give --key, or --signer together with --public.")


def completes(names: str | Iterable[str]) -> Callable[[str], list[str]]:
    """What a shell offers after the tab key: these names, or those that `module:attribute` holds or returns by then."""

    def complete(incomplete: str) -> list[str]:
        known = names
        if isinstance(known, str):
            module, _, attribute = known.partition(":")
            found = getattr(importlib.import_module(module), attribute)
            known = found() if callable(found) else found
        return [name for name in known if name.startswith(incomplete)]

    return complete


METHODS = completes("noiseproof.methods:registry")
_ACCOUNTANTS = completes("noiseproof.privacy.budget:ACCOUNTANTS")
F = TypeVar("F", bound=Callable[..., Any])
Task = Literal["classification", "regression", "count"]

SigningKey = Annotated[
    Path | None, typer.Option(help="The private key, as `noiseproof keys signing` makes it; or see --signer.")
]
SigningCommand = Annotated[
    str | None,
    typer.Option(
        metavar="COMMAND",
        help="Instead of a key: a command that prints a signature of the file {payload}, for a key in a hardware "
        "module or a key service.",
    ),
]
SigningPublic = Annotated[
    Path | None, typer.Option(help="The public key of --signer, in PEM form: Ed25519, or P-256 with SHA-256.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]
Epsilon = Annotated[
    float,
    typer.Option(
        "--epsilon",
        "-e",
        help="Privacy budget: epsilon, greater than 0. Of a method as published: what its authors claim.",
    ),
]
Delta = Annotated[float, typer.Option("--delta", "-d", help="Privacy budget: delta, well below 1 / records.")]
NeighboursOption = Annotated[
    str,
    typer.Option(
        "--neighbours",
        help="When data sets are neighbours: add-or-remove or replace-one.",
        autocompletion=completes(("add-or-remove", "replace-one")),
    ),
]
Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="A named set (see `noiseproof data`) or a CSV, Parquet or npz file.",
        autocompletion=completes("noiseproof.data.named:named_sets"),
    ),
]
Target = Annotated[str | None, typer.Option("--target", help="The column to predict, for a table.")]
SchemaOption = Annotated[
    Path | None, typer.Option("--schema", help="JSON file with the public bounds and categories of a table's columns.")
]
TaskOption = Annotated[
    Task | None, typer.Option("--task", help="What the target is; by default, what the schema or the data say.")
]
TargetBounds = Annotated[
    tuple[float, float] | None,
    typer.Option(
        "--target-bounds", metavar="LOW HIGH", help="Public bounds of a numeric target; values beyond them are clipped."
    ),
]
Person = Annotated[
    str | None,
    typer.Option(
        "--person",
        metavar="COLUMN",
        help="The column that says which person a row belongs to; never used as a feature.",
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="COLUMN", help="A column to ignore (an id, free text); may be repeated."),
]
Encoding = Annotated[
    str | None, typer.Option("--encoding", help="Encoding of a text file, such as latin-1; UTF-8 by default.")
]


def reads_data(function: F) -> F:
    """Decorator: in the place of the parameter `about`, give a command all options that say how data are read.

    The function gets their values as one mapping, to be handed to `data.load` as they are.
    """
    names = ("target", "schema", "task", "target_bounds", "person", "skip", "encoding")
    kinds = (Target, SchemaOption, TaskOption, TargetBounds, Person, Skip, Encoding)
    signature = inspect.signature(function, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        if one.name != "about":
            parameters.append(one)
            continue
        for name, kind in zip(names, kinds, strict=True):
            parameters.append(inspect.Parameter(name, one.kind, default=None, annotation=kind))

    @functools.wraps(function)
    def wrapped(**given: Any) -> Any:
        about = {name: given.pop(name) for name in names}
        return function(about={**about, "skip": tuple(about["skip"] or ())}, **given)

    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in parameters}
    return cast("F", wrapped)


Seed = Annotated[int, typer.Option("--seed", help="Seed of splits and of reproducible randomness.")]
ReleaseSeed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="For research: reproducible randomness; the result is a rehearsal. Without it: secure randomness.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the bundle; without it nothing is saved.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing output; input files are never overwritten.")]
ChosenBy = Annotated[
    Path | None,
    typer.Option(
        "--chosen-by", metavar="DIR", help="The comparison that the method was chosen by; the card then notes it."
    ),
]
Accountant = Annotated[
    str, typer.Option("--accountant", help="pld, rdp, zcdp, gdp, advanced or naive.", autocompletion=_ACCOUNTANTS)
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method; may be repeated.")
]
NetworkOption = Annotated[
    str | None,
    typer.Option(
        "--network",
        help="A network by name; by default, one that suits the data.",
        autocompletion=completes("noiseproof.networks:names"),
    ),
]
MethodArgument = Annotated[
    str, typer.Argument(help="A method's name; see `noiseproof methods`.", autocompletion=METHODS)
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store", metavar="DIR", help="Code a table into this folder, part by part, and train from disk: for big data."
    ),
]
RecipeOption = Annotated[
    str,
    typer.Option(
        "--recipe",
        help="For dp-sgd and dp-mf: auto (by the data's kind and size), none, scattering, scattering-mirror, scattering-upright, "
        "bins or unit.",
    ),
]

Jobs = Annotated[
    int | None, typer.Option("--jobs", help="Local processes to spread the work over; by default one per core.")
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", metavar="auto|ADDRESS", help="Spread the work over a Ray cluster instead (extra `cluster`)."),
]

UnitOption = Annotated[
    str,
    typer.Option(
        "--unit",
        help="Whose epsilon it is: record or person. For a person, rates and numbers are of persons, unless "
        "--records-per-person is given.",
        autocompletion=completes(("record", "person")),
    ),
]
RecordsPerPerson = Annotated[
    int,
    typer.Option(
        "--records-per-person",
        help="With --unit person, where records are sampled: how many of them may be one person's.",
    ),
]
RateOption = Annotated[
    float | None, typer.Option("--rate", help="Sampling rate: the probability that a record is in a batch.")
]
StepsOption = Annotated[int | None, typer.Option("--steps", help="Number of steps.")]
RecordsOption = Annotated[
    int | None,
    typer.Option("--records", help="Training records: with --batch-size and --epochs instead of rate and steps."),
]
BatchSizeOption = Annotated[int | None, typer.Option("--batch-size", help="Records in a batch on average.")]
EpochsOption = Annotated[float | None, typer.Option("--epochs", help="How often a record is seen on average.")]

LedgerOption = Annotated[
    str, typer.Option("--ledger", envvar="NOISEPROOF_LEDGER", help="A SQLite file, or postgresql://USER@HOST/NAME.")
]


def read_sampling(
    rate: float | None, steps: int | None, records: int | None, batch_size: int | None, epochs: float | None
) -> tuple[float, int]:
    """Sampling rate and steps, given as they are or as records, batch size and epochs.

    Args:
        rate: The sampling rate.
        steps: The number of steps.
        records: Training records.
        batch_size: The expected batch.
        epochs: How often a record is seen.

    Returns:
        The rate and the number of steps that `dp-sgd` takes with such settings.

    Raises:
        SettingError: If neither is given whole, or both are.
    """
    direct, derived = (rate, steps), (records, batch_size, epochs)
    if None not in direct and derived == (None, None, None):
        return rate, steps  # type: ignore[return-value]
    if None in derived or direct != (None, None):
        raise SettingError("give --rate and --steps, or --records, --batch-size and --epochs; not some of both.")
    assert records is not None
    assert batch_size is not None
    assert epochs is not None
    if not (0 < batch_size <= records and epochs > 0):
        raise SettingError("a batch has 1 record or more and at most all of them, and epochs are more than 0.")
    return batch_size / records, math.ceil(epochs * records / batch_size)


def check_unit(unit: str, records_per_person: int) -> int:
    """How many records, each sampled by itself, the unit has; refuses a unit that no training here is for."""
    if unit not in ("record", "person"):
        raise SettingError(f"the unit must be record or person, not {unit!r}.")
    if records_per_person < 1 or (unit == "record" and records_per_person != 1):
        raise SettingError("--records-per-person is 1 or more, and goes with --unit person.")
    return records_per_person


def read_settings(given: list[str] | None) -> dict[str, str]:
    """`["epochs=5"]` as `{"epochs": "5"}`."""
    settings = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingError(f"a setting is given as NAME=VALUE, not {text!r}.")
        settings[name.strip()] = value.strip()
    return settings


def answer_release(
    as_json: bool,
    release: Release,
    document: dict[str, Any],
    title: str,
    cells: Mapping[str, Any],
    *,
    delta: float,
    seconds: float,
    out: Path | None,
    files: Sequence[Path] = (),
) -> None:
    """Print what a release came to: its card, what else the command found out, and where it was saved.

    Args:
        as_json: Whether one JSON document is asked for.
        release: What was made.
        document: What the JSON document says beside the card.
        title: Stands above the table.
        cells: The table's columns before those of the card.
        delta: The budget's.
        seconds: What it took.
        out: Where it was saved, if it was.
        files: The files that were written; without them, a bundle's.
    """
    card = release.card
    document |= {"card": card, "seconds": seconds, "out": None if out is None else str(out)}
    shown = {**cells, **promised(card, delta), "seconds": f"{seconds:.1f}"}
    output.answer(as_json, document, title, tuple(shown), [tuple(shown.values())], caption=card.why)
    if out is not None and not as_json:
        bundle = (
            f"Saved to {out}: weights.safetensors, card.json, settings.json. Not signed yet: `noiseproof sign` does."
        )
        output.say(f"Written: {', '.join(map(str, files))}." if files else bundle)


def promised(card: Card, delta: float) -> dict[str, object]:
    """What a table says of a card: an epsilon is of a record unless its column says otherwise."""
    of = "" if card.unit == "record" else f" of a {card.unit}"
    both = {f"claimed ε{of}": output.guarantee(card.claimed), f"proven ε{of}": output.guarantee(card.proven)}
    return {**both, "δ": delta, "verdict": card.verdict}


def size_of(dataset: Dataset) -> str:
    """How many records there are, and persons, for a title."""
    records = f"{len(dataset)} records"
    return records if dataset.unit == "record" else f"{dataset.persons} persons, {records}"


def caution(release: Release, out: Path | None) -> None:
    """Say on stderr what must not be done with a release: a rehearsal, or a bundle that stays inside."""
    if release.card.randomness == "reproducible":
        output.note(
            "this is a rehearsal: whoever knows the seed can subtract the noise, so do not release any of it; run "
            "the command without --seed to make a release."
        )
    if out is not None:
        note_inside(release, out)


def note_inside(release: Release, bundle: Path) -> None:
    """Say on stderr that a bundle must stay on the trusted side, if it must."""
    if release.stays_inside:
        output.note(
            f"{bundle} stays inside: it holds private records, or networks trained on them without noise; release only "
            "the answers of `noiseproof serve` or `noiseproof predict`."
        )


def read_choice(folder: Path | None) -> str | None:
    """The note for a card on the comparison that its method was chosen by; refuses a folder that holds none."""
    from noiseproof.run.results import Comparison

    return None if folder is None else Comparison.read(folder).choice


def with_choice(card: Card, chosen: str | None) -> Card:
    """The card with a note on how the method was chosen."""
    return card if chosen is None else card.model_copy(update={"notes": (*card.notes, chosen)})
