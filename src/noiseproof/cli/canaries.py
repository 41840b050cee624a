"""`noiseproof canaries`: audit one training by records that were put in on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import group
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    from noiseproof.data.schema import Schema

DATA, CANARIES, COINS = "data.csv", "canaries.csv", "coins.json"

app = group(
    "canaries",
    "Audit one training: put canaries into a table (insert), have it trained on, and look for them in the model (audit).",
    "Example: noiseproof canaries insert people.csv --schema people.json --count 1000 --out canaries",
)


@app.command(epilog="Example: noiseproof canaries insert people.csv --schema people.json --count 1000 --out canaries")
def insert(
    table: Annotated[Path, typer.Argument(help="The table that is to be trained on.")],
    schema: Annotated[Path, typer.Option(help="JSON file with the public bounds and categories of its columns.")],
    out: Annotated[Path, typer.Option(help="The folder to write to.")],
    count: Annotated[int, typer.Option(help="How many canaries there are; about half of them go in.")] = 1000,
    person: o.Person = None,
    encoding: o.Encoding = None,
    json: o.Json = False,
) -> None:
    """Put canaries into a table: rows of it with a wrong class, each in or out by a secret fair coin of its own.

    Where a column tells whose a row is, each canary is a person, and all persons are numbered anew.
    data.csv is what the vendor trains on, once. canaries.csv and coins.json stay with you (mode 0600) until the model is there.
    """
    import json as text

    import numpy as np

    from noiseproof.audits.canaries import insert_in_table
    from noiseproof.data.formats import check_file, read_table
    from noiseproof.data.schema import read_schema
    from noiseproof.files import check_out, write_whole

    check_out(out)
    check_file(table)
    read = read_schema(schema).with_person(person)
    if read.target.task != "classification":
        raise SettingError("a canary has a wrong class; the target of this schema is a number.")
    frame = read_table(table, read, encoding or read.encoding)
    if read.target.name not in frame.columns:
        raise DataError(f"{table} has no column {read.target.name!r}, which the schema calls the target.")
    # Seeded by the operating system: whoever knows the coins could train so that nothing is found.
    together, canaries, included = insert_in_table(
        frame, read.target.name, read.target.classes or (), count, np.random.default_rng(), read.person
    )
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o700)
    write_whole(out / DATA, together.to_csv(index=False), mode=0o600)
    write_whole(out / CANARIES, canaries.to_csv(index=False), mode=0o600)
    write_whole(out / COINS, text.dumps({"included": included.tolist()}), mode=0o600)
    document = {"canaries": count, "records": len(together), "data": str(out / DATA), "secret": [CANARIES, COINS]}
    output.tell(
        json,
        document,
        f"{out / DATA}: {len(together)} records, some of {count} canaries among them, to be trained on once. Keep "
        f"{CANARIES} and {COINS} to yourself until you have the model.",
    )


@app.command(
    epilog="Example: noiseproof canaries audit canaries model.onnx --schema people.json --epsilon 2 --out audit.json"
)
def audit(
    folder: Annotated[Path, typer.Argument(help="The folder that `insert` wrote.")],
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="What is claimed: epsilon, greater than 0.")],
    model: Annotated[
        str | None,
        typer.Argument(
            help="The trained model: an .onnx, TorchScript or .safetensors file, or an address; nothing with --scores."
        ),
    ] = None,
    delta: o.Delta = 1e-5,
    schema: Annotated[Path | None, typer.Option(help="The schema that `insert` was given.")] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="Instead of a model: a text file with a number for each canary, larger where it seems in."),
    ] = None,
    gaussian: Annotated[
        bool,
        typer.Option(
            "--gaussian", help="Take the mechanism for a Gaussian one: a sharper bound, which holds only if it is."
        ),
    ] = False,
    inputs: Annotated[
        Literal["raw", "coded"],
        typer.Option(help="Whether the model takes numbers as they are in the file, or as this package codes them."),
    ] = "raw",
    network: o.NetworkOption = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    person: o.Person = None,
    encoding: o.Encoding = None,
    out: Annotated[Path | None, typer.Option(help="Write the result to this JSON file.")] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Guess from a trained model which canaries were in its data, and say which epsilon the right guesses refute."""
    import numpy as np

    from noiseproof.audits import OneRunResult, one_run_bound, one_run_power
    from noiseproof.cli.audit import show_audit
    from noiseproof.data.schema import read_schema
    from noiseproof.files import check_out
    from noiseproof.privacy.budget import check_delta, check_epsilon
    from noiseproof.privacy.card import Claim, Unit

    if out is not None:
        check_out(out, force=force, inputs=(folder, scores))
    if (model is None) == (scores is None):
        raise SettingError("give the trained model, or --scores with a number for each canary.")
    read = None if schema is None else read_schema(schema).with_person(person)
    unit: Unit = "record" if read is None or read.person is None else "person"
    claimed = Claim(epsilon=check_epsilon(epsilon), delta=check_delta(delta), unit=unit, source="the model's vendor")
    included = _coins(folder / COINS)
    if scores is not None:
        values = _numbers(scores)
    else:
        if read is None:
            raise SettingError("give the --schema that `noiseproof canaries insert` was given.")
        values = _confidences(str(model), folder / CANARIES, read, inputs == "coded", network, encoding)
    if len(values) != len(included):
        raise DataError(f"there are {len(values)} scores and {len(included)} canaries; give one for each.")
    bound = one_run_bound(np.array(values), included, delta=delta, confidence=confidence, gaussian=gaussian)
    power = one_run_power(len(included), delta=delta, confidence=confidence, claimed=epsilon, gaussian=gaussian)
    result = OneRunResult(f"{len(included)} canaries in one training of {model or scores}", bound, claimed, power)
    show_audit(json, {"method": None, **result.to_json()}, result, out)


def _coins(path: Path) -> list[bool]:
    import json as text

    try:
        found = text.loads(path.read_text())["included"]
    except OSError:
        raise DataError(f"there is no {path}; give the folder that `noiseproof canaries insert` wrote.") from None
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(one, bool) for one in found):
        raise DataError(f"{path} does not hold the coins that `noiseproof canaries insert` wrote.")
    return found


def _numbers(path: Path) -> list[float]:
    try:
        return [float(word) for word in path.read_text().replace(",", " ").split()]
    except (OSError, ValueError):
        raise DataError(f"{path} does not hold one number for each canary.") from None


def _confidences(
    model: str, canaries: Path, schema: Schema, coded: bool, network: str | None, encoding: str | None
) -> list[float]:
    """How sure the model is of each canary's wrong class: only memory makes it so."""
    from noiseproof.attacks import open_model
    from noiseproof.attacks.attack import confidence
    from noiseproof.attacks.records import read_records

    records = read_records(canaries, schema, coded=coded, encoding=encoding)
    answers = open_model(model, records.public, network=network).predict(records.features)
    return confidence(answers, records.labels).tolist()
