"""`noiseproof data`: the named sets, where each was found, how to get the missing; a draft schema for a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError


@command(
    "data",
    "Examples: noiseproof data; noiseproof data people.csv --target income --draft-schema people.json; "
    "noiseproof data people.csv --schema people.json --buy-bounds bought.json --epsilon 0.3",
)
def run(
    file: Annotated[Path | None, typer.Argument(help="A table, to draft a schema for.")] = None,
    target: o.Target = None,
    task: o.TaskOption = None,
    target_bounds: o.TargetBounds = None,
    person: o.Person = None,
    skip: o.Skip = None,
    encoding: o.Encoding = None,
    draft_schema: Annotated[
        Path | None,
        typer.Option(help="Write a draft schema of FILE here. It is read off the records: check it before use."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Draft only the columns' types; mark bounds and categories to be bought.")
    ] = False,
    schema: o.SchemaOption = None,
    buy_bounds: Annotated[
        Path | None,
        typer.Option(
            help="Write --schema here, with the bounds it marks as private bought from FILE (with noise, for --epsilon)."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", "-e", help="What --buy-bounds may spend.")] = None,
    delta: Annotated[
        float, typer.Option("--delta", "-d", help="What --buy-bounds may spend; only categories need it.")
    ] = 0.0,
    neighbours: o.NeighboursOption = "add-or-remove",
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """List the named data sets, draft a schema for a table, or buy its unknown bounds with noise.

    A drafted schema holds bounds and categories read off private records, and says so (`"drafted": true`): whatever is
    trained with it proves nothing, until somebody who knows what is public has replaced them and removed that mark. Where
    nobody knows, columns marked `"private": "bounds"` or `"private": "categories"` are bought from the records; every
    training with the schema that comes of it counts the price as part of its own epsilon.
    """
    if file is None:
        _list(json)
    elif buy_bounds is not None:
        if schema is None or epsilon is None:
            raise SettingError("to buy bounds give the table, --schema FILE, --buy-bounds FILE and --epsilon.")
        if draft_schema is not None or private or target is not None:
            raise SettingError("draft a schema first, check it, then buy its bounds; --buy-bounds takes no --target.")
        _buy(file, schema, buy_bounds, (epsilon, delta, neighbours), person, skip, encoding, force, json)
    elif target is None or draft_schema is None:
        raise SettingError("to draft a schema give the table, --target COLUMN and --draft-schema FILE.")
    else:
        about = {"task": task, "target_bounds": target_bounds, "person": person, "skip": skip or ()}
        _draft(file, target, draft_schema, about, private, encoding or "utf-8", force, json)


def _draft(
    file: Path, target: str, out: Path, about: Any, private: bool, encoding: str, force: bool, json: bool
) -> None:
    from noiseproof.data.draft import draft, without_values
    from noiseproof.data.formats import check_file, read_table
    from noiseproof.files import check_out, write_whole

    check_out(out, force=force, inputs=(file,))
    check_file(file)
    schema = draft(read_table(file, encoding=encoding), target, name=file.name, **about, skip_unusable=True)
    schema = (without_values(schema) if private else schema).model_copy(update={"encoding": encoding})
    write_whole(out, schema.to_json() + "\n", mode=None if private else 0o600)
    instead = "check the type of each column" if private else "replace its bounds and categories with public ones"
    output.note(
        f'{out} is a draft read off the records: {instead}, then remove `"drafted": true`; until then, training with it '
        "proves nothing."
    )
    if schema.skip:
        output.note(
            f"columns that look like ids or free text, or are empty, will be skipped: {', '.join(schema.skip)}."
        )
    if gaps := [name for name, column in schema.columns.items() if column.categories and column.missing]:
        output.note(
            f"cells such as None, NA or null read as missing in {', '.join(gaps)}; list such a text among a column's "
            "categories where it is one."
        )
    if json:
        document = {"schema": str(out), "columns": len(schema.columns), "target": target}
        output.emit({**document, "skip": list(schema.skip)})


def _buy(
    file: Path,
    schema: Path,
    out: Path,
    terms: tuple[float, float, str],
    person: str | None,
    skip: list[str] | None,
    encoding: str | None,
    force: bool,
    json: bool,
) -> None:
    from noiseproof.data import buy_bounds, read_schema
    from noiseproof.data.formats import check_file, read_table
    from noiseproof.files import check_out, write_whole
    from noiseproof.privacy.budget import check_neighbours

    epsilon, delta, near = terms[0], terms[1], check_neighbours(terms[2])
    check_out(out, force=force, inputs=(file, schema))
    check_file(file)
    open_ends = read_schema(schema).with_person(person).without(skip or ())
    frame = read_table(file, open_ends, encoding or open_ends.encoding)
    found = buy_bounds(frame, open_ends, epsilon=epsilon, delta=delta, neighbours=near, name=file.name)
    write_whole(out, found.to_json() + "\n")
    assert found.bought is not None
    columns: dict[str, Any] = {**found.columns, found.target.name: found.target}
    rows = [
        (name, ", ".join(map(str, getattr(part, "categories", ()))) or f"{_shown(part.low)} to {_shown(part.high)}")
        for name, part in columns.items()
        if name in found.bought.columns
    ]
    title = f"bought for epsilon {epsilon:g} of a {found.bought.unit}"
    document = {"schema": str(out), "bought": dataclasses.asdict(found.bought)}
    output.answer(json, document, title, ("column", "bounds or categories"), rows)
    output.note(
        f"{out} may be public. Its price is spent, and every training with it includes that price in its epsilon; buying "
        "again costs again."
    )


def _shown(bound: Any) -> str:
    return f"{bound:.6g}" if isinstance(bound, float) else str(bound)


def _list(json: bool) -> None:
    from noiseproof.data import catalogue

    rows = catalogue()
    columns = ("data", "records", "features", "classes", "here", "where, or how to get it")
    cells = [
        (row["name"], row["records"], row["features"], row["classes"], row["available"], row["path"] or row["how"])
        for row in rows
    ]
    output.answer(json, rows, None, columns, cells)
