"""`noiseproof study`: a paper's tables and figures, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Jobs, Json, RayOption, Seed, completes
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError, UnsupportedError


@command("study", "Example: noiseproof study lin --scale small --out runs/lin")
def run(
    paper: Annotated[
        str,
        typer.Argument(
            help="Whose paper: lin, lu, ma, mao or phan.", autocompletion=completes(("lin", "lu", "ma", "mao", "phan"))
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(
            help="small (two cores, minutes), effect (the paper's networks, hours) or paper (its own sizes).",
            autocompletion=completes(("small", "effect", "paper")),
        ),
    ] = "small",
    only: Annotated[
        str | None, typer.Option(help="Only these data sets: Location,MNIST (lu), mnist,svhn (lin, phan).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for tables, figures and finished cells.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the cells that are finished in --out.")] = False,
    jobs: Jobs = None,
    ray: RayOption = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a paper's experiments again and print every table with our numbers beside theirs."""
    from noiseproof.cli.checkout import load_part
    from noiseproof.parallel.tasks import asked

    if scale not in ("small", "effect", "paper"):
        raise SettingError(f"the scale is small, effect or paper, not {scale!r}.")
    study = load_part("papers").get(paper)
    if only is not None:
        study = study.only([name.strip() for name in only.split(",")])
    if ray is not None and not study.on_clusters:
        raise UnsupportedError(
            f"the study {paper} keeps files on this machine as it goes; use --jobs instead of --ray."
        )
    folder = out or Path("runs") / f"{paper}-{scale}"
    with asked(jobs, ray):
        result = study.run(scale, folder, seed=seed, progress=output.RichProgress(), resume=resume, workers=jobs)
    if json:
        output.emit(result.to_json())
        return
    for table in result.tables:
        output.stdout.print(table.render())
    output.say(f"{len(result.figures)} figures and all tables are in {result.out}.")
