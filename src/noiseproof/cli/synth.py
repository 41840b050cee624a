"""`noiseproof synth`: synthetic records in the place of private ones, with their card beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError
from noiseproof.files import check_out, write_whole


@command(
    "synth",
    "Example: noiseproof synth --data adult-train.csv --schema adult.json --epsilon 1 --rows 5000 --out synthetic.csv",
)
@o.reads_data
def run(
    method: Annotated[
        str | None,
        typer.Argument(
            help="A method's name; without it, marginals for tables and moments for pictures.", autocompletion=o.METHODS
        ),
    ] = None,
    data: o.Data = "digits",
    *,
    about: Mapping[str, Any],
    epsilon: o.Epsilon = 3.0,
    delta: o.Delta = 1e-5,
    neighbours: o.NeighboursOption = "add-or-remove",
    rows: Annotated[
        int | None, typer.Option(help="Records to generate; by default, as many as were trained on.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="CSV or Parquet for a table, npz for the rest; without it nothing is saved.")
    ] = None,
    force: o.Force = False,
    settings: o.Settings = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--quality/--no-quality",
            help="Also measure how close they are to real records, a quarter of which is held out for it; "
            "with --no-quality all are learned from.",
        ),
    ] = True,
    page: Annotated[Path | None, typer.Option(help="Also write the quality report as an HTML page.")] = None,
    chosen_by: o.ChosenBy = None,
    store: o.Store = None,
    seed: o.ReleaseSeed = None,
    json: o.Json = False,
) -> None:
    """Train a generator within a budget, write synthetic records and their card, and measure their quality.

    A table keeps its columns, types, categories and public bounds. Quality is measured on the private records for the
    eyes of their owner; it is not part of the release.
    """
    from noiseproof import methods
    from noiseproof.data import load
    from noiseproof.methods.losses import coding
    from noiseproof.methods.losses.gan import Synthesizer, usual
    from noiseproof.methods.losses.quality import quality
    from noiseproof.privacy.budget import Budget, check_neighbours
    from noiseproof.releases.release import DataRelease
    from noiseproof.report.quality import quality_tables, render_quality
    from noiseproof.run import cautions, train

    # Everything that can be refused is refused before records are read or budget is spent.
    budget = Budget(epsilon, delta, check_neighbours(neighbours))
    given = o.read_settings(settings)
    if rows is not None:
        given["rows"] = str(rows)
    if method is not None:
        if not issubclass(methods.get(method), Synthesizer):
            makers = [name for name, each in methods.registry().items() if issubclass(each, Synthesizer)]
            raise SettingError(f"{method} makes no synthetic records; {', '.join(makers)} do.")
        methods.build(method, given)
    chosen = o.read_choice(chosen_by)
    if page is not None:
        if not measure:
            raise SettingError("--page shows the quality, which --no-quality leaves out; give one of the two.")
        check_out(page, force=force, inputs=(data, about["schema"], out))
    progress = output.RichProgress()
    reading: Any = {"seed": seed or 0, "neighbours": budget.neighbours, "store": store, "compact": True}
    if not measure:
        reading["test_fraction"] = 0.0
    split = load(data, **about, **reading, progress=progress)
    if method is None:
        method = usual(split.train.public)
        methods.build(method, given)
    if out is not None:
        coding.check_target(out, split.train, force=force, inputs=(data, about["schema"]))
    output.note(*split.train.public.notes, *split.remarks)
    output.note(*cautions.about_budget(split.train.persons, budget), *cautions.about_split(split))
    started = time.perf_counter()
    terms: Any = {"epsilon": epsilon, "delta": delta, "neighbours": budget.neighbours, **given}
    release = train(method, split.train, **terms, seed=seed, progress=progress)
    seconds = time.perf_counter() - started
    assert isinstance(release, DataRelease)
    release.card = o.with_choice(release.card, chosen)
    written = coding.write(release, out, force=force) if out is not None else []
    o.caution(release, out)
    found = quality(release.dataset, split.train, split.test, seed=seed or 0) if measure else None
    output.note(*(found.warnings if found else ()))
    made = {"rows": len(release.dataset)}
    document = {"method": method, "data": split.train.name, **made, "quality": found.to_json() if found else None}
    o.answer_release(
        json,
        release,
        {**document, "files": [str(path) for path in written], "page": None if page is None else str(page)},
        f"{method} on {split.train.name} ({o.size_of(split.train)})",
        made,
        delta=delta,
        seconds=seconds,
        out=out,
        files=written,
    )
    if found is not None and page is not None:
        write_whole(page, render_quality(release, found), mode=0o600)
    for table in quality_tables(found) if found is not None and not json else ():
        output.show(*table)
