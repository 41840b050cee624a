"""`noiseproof data`: the named sets, where each was found, how to get the missing; a draft schema for a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError


@command("data", "Examples: noiseproof data; noiseproof data people.csv --target income --draft-schema people.json")
def run(
    file: Annotated[Path | None, typer.Argument(help="A table, to draft a schema for.")] = None,
    target: o.Target = None,
    task: o.TaskOption = None,
    target_bounds: o.TargetBounds = None,
    person: o.Person = None,
    skip: o.Skip = None,
    encoding: o.Encoding = None,
    draft_schema: Annotated[
        Path | None, typer.Option(help="Write a schema for FILE here, read off its records: check it before use.")
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """List the named data sets; or draft the schema of a table, for you to check and make public.

    A drafted schema holds bounds and categories read off private records, and says so (`"drafted": true`): whatever is
    trained with it proves nothing, until somebody who knows what is public has replaced them and removed that mark.
    """
    from noiseproof.data import catalogue
    from noiseproof.data.draft import draft
    from noiseproof.data.formats import check_file, read_table
    from noiseproof.files import check_out, write_whole

    if file is not None:
        if target is None or draft_schema is None:
            raise SettingError("to draft a schema give the table, --target COLUMN and --draft-schema FILE.")
        check_out(draft_schema, force=force, inputs=(file,))
        check_file(file)
        encoding = encoding or "utf-8"
        schema = draft(
            read_table(file, encoding=encoding),
            target,
            name=file.name,
            task=task,
            target_bounds=target_bounds,
            person=person,
            skip=skip or (),
            skip_unusable=True,
        ).model_copy(update={"encoding": encoding})
        write_whole(draft_schema, schema.to_json() + "\n")
        output.note(
            f"{draft_schema} was read off the records: replace its bounds and categories by public ones, then remove its "
            'mark `"drafted": true`; until then nothing is proven with it.'
        )
        if schema.skip:
            output.note(f"to be skipped, as ids, free text or empty: {', '.join(schema.skip)}.")
        if json:
            document = {"schema": str(draft_schema), "columns": len(schema.columns), "target": target}
            output.emit({**document, "skip": list(schema.skip)})
        return
    rows = catalogue()
    columns = ("data", "records", "features", "classes", "here", "where, or how to get it")
    cells = [
        (row["name"], row["records"], row["features"], row["classes"], row["available"], row["path"] or row["how"])
        for row in rows
    ]
    output.answer(json, rows, None, columns, cells)
