"""`noiseproof train`: fit one method on private records, save the bundle."""

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
    NeighboursOption,
    NetworkOption,
    RecipeOption,
    SchemaOption,
    Seed,
    Settings,
    Target,
    read_settings,
)

EXAMPLES = (
    "Example: noiseproof train dp-sgd --data people.csv --target income --schema people.json --epsilon 1 --out model"
)


def run(
    method: Annotated[str, typer.Argument(help="A method's name; see `noiseproof methods`.")],
    data: Data = "digits",
    target: Target = None,
    schema: SchemaOption = None,
    epsilon: Epsilon = 3.0,
    delta: Delta = 1e-5,
    neighbours: NeighboursOption = "add-or-remove",
    out: Annotated[Path | None, typer.Option(help="Folder for the bundle; without it nothing is saved.")] = None,
    network: NetworkOption = None,
    recipe: RecipeOption = "auto",
    settings: Settings = None,
    queries: Annotated[int, typer.Option(help="Answers a prediction method must be able to give.")] = 1,
    secure: Annotated[bool, typer.Option("--secure", help="Secure randomness, for what leaves the house.")] = False,
    baseline: Annotated[bool, typer.Option(help="Also train without privacy, to compare.")] = True,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train on private records within a budget, save the release with its card, and say how accurate it is.

    The accuracy is measured on the test part of the data for the eyes of its owner; it is not part of the release.
    """
    from noiseproof import bundles, methods, recipes, releases
    from noiseproof.cli import output
    from noiseproof.data import load
    from noiseproof.errors import UnsupportedError
    from noiseproof.guarantees.budget import Budget, check_neighbours
    from noiseproof.training import train

    # Everything that can be refused is refused before records are read or budget is spent.
    Budget(epsilon, delta, check_neighbours(neighbours), queries)
    given = read_settings(settings)
    chosen = methods.build(method, given)
    recipes.check(recipe, method=method, network=network is not None)
    if out is not None:
        bundles.check_writable(out)
    progress = output.RichProgress()
    split = load(data, target=target, schema=schema, seed=seed, progress=progress)
    for sentence in (*split.train.public.notes, *split.remarks):
        output.note(sentence)
    cooked = recipes.resolve(recipe, split.train, method=method, network=network is not None)
    if cooked is not None:
        output.note(f"recipe {cooked.name}: {cooked.summary}")
        chosen = cooked.method(len(split.train), epsilon, given)

    def fit(which: methods.Method, insecure: bool) -> releases.Release:
        return train(
            which,
            split.train,
            epsilon=epsilon,
            delta=delta,
            neighbours=check_neighbours(neighbours),
            queries=queries,
            network=network,
            recipe=cooked if cooked is not None and which is chosen else "none",
            seed=seed if insecure else None,
            progress=progress,
        )

    def measure(release: releases.Release) -> float:
        if not isinstance(release, releases.ModelRelease | releases.PredictionRelease):
            raise UnsupportedError(
                f"{release.method} gives a {release.kind} release, whose accuracy `train` cannot measure."
            )
        return releases.accuracy(release, split.test)

    started = time.perf_counter()
    release = fit(chosen, not secure)
    seconds = time.perf_counter() - started
    accuracy = measure(release)
    if chosen.name == "none":
        reference: float | None = accuracy
    else:
        reference = measure(fit(methods.build("none"), True)) if baseline else None
    if out is not None:
        release.save(out)
    card = release.card
    if json:
        output.emit(
            {
                "method": chosen.name,
                "data": split.train.name,
                "accuracy": accuracy,
                "baseline_accuracy": reference,
                "card": card,
                "seconds": seconds,
                "out": None if out is None else str(out),
            }
        )
        return
    output.show(
        f"{chosen.name} on {split.train.name} ({len(split.train)} records)",
        ("accuracy", "baseline", "claimed ε", "proven ε", "δ", "verdict", "seconds"),
        [
            (
                accuracy,
                reference,
                output.guarantee(card.claimed),
                output.guarantee(card.proven),
                delta,
                card.verdict,
                seconds,
            )
        ],
        caption=card.why,
    )
    if out is not None:
        output.stdout.print(f"Saved to {out}: weights.safetensors, card.json, settings.json.", highlight=False)
