"""`noiseproof report`: join several comparisons into one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Force, Json
from noiseproof.cli.registry import command


@command("report", "Example: noiseproof report runs/compare-digits runs/compare-people --out both.html")
def run(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders that `noiseproof compare` wrote.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    force: Force = False,
    json: Json = False,
) -> None:
    """Join the results of several comparisons into one page that works offline."""
    from noiseproof.files import check_out, write_whole
    from noiseproof.report import render
    from noiseproof.run.results import Comparison

    comparisons = [Comparison.read(folder) for folder in folders]
    check_out(out, force=force)
    write_whole(out, render(comparisons))
    runs = [{"data": one.data, "sentence": one.sentence} for one in comparisons]
    output.tell(json, {"report": str(out), "runs": runs}, f"The page: {out}")
