"""`noiseproof synth`: synthetic records in the place of private ones, with their card beside them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli.options import (
    Data,
    Delta,
    Epsilon,
    Json,
    MethodArgument,
    NeighboursOption,
    SchemaOption,
    Seed,
    Settings,
    Target,
    read_settings,
)
from noiseproof.cli.registry import command


@command(
    "synth",
    "Example: noiseproof synth dp-gan --data adult-train.csv --target income --epsilon 1 --rows 5000 --out synthetic.csv",
)
def run(
    method: MethodArgument,
    data: Data = "digits",
    target: Target = None,
    schema: SchemaOption = None,
    epsilon: Epsilon = 3.0,
    delta: Delta = 1e-5,
    neighbours: NeighboursOption = "add-or-remove",
    rows: Annotated[int | None, typer.Option(help="Records to make; without it, as many as were learned from.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV or Parquet for a table, npz for the rest; without it nothing is saved.")
    ] = None,
    settings: Settings = None,
    secure: Annotated[bool, typer.Option("--secure", help="Secure randomness, for what leaves the house.")] = False,
    measure: Annotated[bool, typer.Option("--quality/--no-quality", help="Also compare with real records.")] = True,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train a generator within a budget, write synthetic records and their card, and say how good they are.

    A table keeps its columns, types, categories and public bounds. Quality is measured on the private records for the
    eyes of their owner; it is not part of the release.
    """
    from noiseproof import methods
    from noiseproof.cli import output
    from noiseproof.data import load
    from noiseproof.errors import SettingError
    from noiseproof.methods.losses import coding
    from noiseproof.methods.losses.gan import GanMethod
    from noiseproof.methods.losses.quality import quality
    from noiseproof.privacy.budget import Budget, check_neighbours
    from noiseproof.releases.release import DataRelease
    from noiseproof.run.training import train

    # Everything that can be refused is refused before records are read or budget is spent.
    Budget(epsilon, delta, check_neighbours(neighbours))
    given = read_settings(settings)
    if rows is not None:
        given["rows"] = str(rows)
    kind = methods.get(method)
    if not issubclass(kind, GanMethod):
        makers = [name for name, each in methods.registry().items() if issubclass(each, GanMethod)]
        raise SettingError(f"{method} makes no synthetic records; {', '.join(makers)} do.")
    chosen = methods.build(method, given)
    progress = output.RichProgress()
    split = load(data, target=target, schema=schema, seed=seed, progress=progress)
    if out is not None:
        coding.check_target(out, split.train)
    for sentence in (*split.train.public.notes, *split.remarks):
        output.note(sentence)
    started = time.perf_counter()
    release = train(
        chosen,
        split.train,
        epsilon=epsilon,
        delta=delta,
        neighbours=check_neighbours(neighbours),
        seed=None if secure else seed,
        progress=progress,
    )
    seconds = time.perf_counter() - started
    assert isinstance(release, DataRelease)
    written = coding.write(release, out) if out is not None else []
    found = quality(release.dataset, split.train, split.test, seed=seed) if measure else None
    for sentence in found.warnings if found else ():
        output.note(sentence)
    card = release.card
    if json:
        output.emit(
            {
                "method": chosen.name,
                "data": split.train.name,
                "rows": len(release.dataset),
                "card": card,
                "quality": found.to_json() if found else None,
                "seconds": seconds,
                "out": None if out is None else str(out),
                "files": [str(path) for path in written],
            }
        )
        return
    output.show(
        f"{chosen.name} on {split.train.name} ({len(split.train)} records)",
        ("rows", "claimed ε", "proven ε", "δ", "verdict", "seconds"),
        [
            (
                len(release.dataset),
                output.guarantee(card.claimed),
                output.guarantee(card.proven),
                delta,
                card.verdict,
                seconds,
            )
        ],
        caption=card.why,
    )
    if found is not None:
        output.show(
            "quality, for the owner of the records only",
            ("a classifier taught by", "tested on", "accuracy"),
            [
                ("synthetic records", "real ones", found.synthetic_to_real),
                ("real records", "real ones", found.real_to_real),
                ("the commonest class", "real ones", found.majority),
                ("real records", "synthetic ones", found.real_to_synthetic),
                *(("real records", f"synthetic ones of {name}", value) for name, value in found.by_class.items()),
            ],
        )
        if found.pmf_errors:
            output.show(
                None,
                ("column", "error of its shares (eq. 22)"),
                list(found.pmf_errors.items()),
                caption=f"pairs of columns: Cramer's V is off by {found.correlation_error:.3g} on average.",
            )
    if written:
        output.stdout.print(f"Written: {', '.join(str(path) for path in written)}.", highlight=False, soft_wrap=True)
