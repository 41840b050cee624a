"""`noiseproof data`: the named sets, where each was found, how to get the missing; a draft schema for a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Force, Json, Target
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError


@command("data", "Examples: noiseproof data; noiseproof data people.csv --target income --draft-schema people.json")
def run(
    file: Annotated[Path | None, typer.Argument(help="A CSV or Parquet table, to draft a schema for.")] = None,
    target: Target = None,
    draft_schema: Annotated[
        Path | None, typer.Option(help="Write a schema for FILE here, read off its records: check it before use.")
    ] = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """List the named data sets; or draft the schema of a table, for you to check and make public.

    A drafted schema holds bounds and categories read off private records, and says so (`"drafted": true`): whatever is
    trained with it proves nothing, until somebody who knows what is public has replaced them and removed that mark.
    """
    from noiseproof.data import catalogue

    if file is not None:
        _draft(file, target, draft_schema, force, json)
        return
    rows = catalogue()
    columns = ("data", "records", "features", "classes", "here", "where, or how to get it")
    cells = [
        (row["name"], row["records"], row["features"], row["classes"], row["available"], row["path"] or row["how"])
        for row in rows
    ]
    output.answer(json, rows, None, columns, cells)


def _draft(file: Path, target: str | None, out: Path | None, force: bool, json: bool) -> None:
    from noiseproof.data.formats import read_table
    from noiseproof.data.tables import draft
    from noiseproof.files import check_out, write_whole

    if target is None or out is None:
        raise SettingError("to draft a schema give the table, --target COLUMN and --draft-schema FILE.")
    check_out(out, force=force, inputs=(file,))
    schema = draft(read_table(file), target, name=file.name)
    write_whole(out, schema.to_json() + "\n")
    output.note(
        f"{out} was read off the records: replace its bounds and categories by public ones, then remove its mark "
        '`"drafted": true`; until then nothing is proven with it.'
    )
    if json:
        output.emit({"schema": str(out), "columns": len(schema.columns), "target": target})
