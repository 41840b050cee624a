"""`noiseproof bench`: speed as ratios, measured in one run."""

from __future__ import annotations

from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Json
from noiseproof.cli.registry import command


@command("bench", "Example: noiseproof bench --against opacus")
def run(
    against: Annotated[str | None, typer.Option(help="Also measure a peer: opacus (extra `bench`).")] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="One of steps, noise, shadows, predictions, parameters, generators, inputs, scaling, growth, serve, soak, "
            "synthetic."
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="Repetitions that each median is taken over.")] = 30,
    json: Json = False,
) -> None:
    """Measure speed against plain torch and other libraries, interleaved in one run: medians and ratios."""
    from noiseproof import kernels
    from noiseproof.cli.checkout import load_part

    rows = load_part("bench").run(against=against, only=only, repeats=repeats, progress=output.RichProgress())
    with_kernels = kernels.compiled is not None
    output.answer(
        json,
        {"rows": rows, "kernels": with_kernels},
        None,
        ("what", "ours", "theirs", "ratio", "unit"),
        [(row["what"], row["ours"], row["theirs"], row["ratio"], row.get("unit", "ms")) for row in rows],
        caption="ratio: ours over theirs, both measured in this run, interleaved; medians. "
        f"{'With' if with_kernels else 'Without'} compiled kernels.",
    )
