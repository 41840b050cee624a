"""`noiseproof train`: fit one method on private records, save the bundle."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noiseproof.cli.options import (
    Data,
    Delta,
    Epsilon,
    Jobs,
    Json,
    MethodArgument,
    NeighboursOption,
    NetworkOption,
    RayOption,
    RecipeOption,
    SchemaOption,
    Seed,
    Settings,
    Target,
    read_settings,
)
from noiseproof.cli.registry import command

if TYPE_CHECKING:
    from noiseproof.run.distributed import Group


@command(
    "train",
    "Example: noiseproof train dp-sgd --data people.csv --target income --schema people.json --epsilon 1 --out model",
)
def run(
    method: MethodArgument,
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
    store: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Code a Parquet table into this folder, and train from disk: for big data."),
    ] = None,
    jobs: Jobs = None,
    ray: RayOption = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for checkpoints and for what has been spent.")
    ] = None,
    every: Annotated[int, typer.Option(help="Steps between checkpoints; SIGTERM leaves one, too.")] = 100,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the training that --checkpoint holds, if it holds one.")
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train on private records within a budget, save the release with its card, and say how accurate it is.

    The accuracy is measured on the test part of the data for the eyes of its owner; it is not part of the release.
    Under `torchrun -m noiseproof train ...` all ranks share one training; --jobs and --ray are for methods that train many
    networks.
    """
    from contextlib import ExitStack

    from noiseproof import methods, releases
    from noiseproof.cli import output
    from noiseproof.data import load
    from noiseproof.errors import SettingError, UnsupportedError
    from noiseproof.methods import recipes
    from noiseproof.methods.baseline import reference_for
    from noiseproof.parallel.tasks import asked
    from noiseproof.privacy.budget import Budget, check_neighbours
    from noiseproof.progress import SILENT
    from noiseproof.releases import bundles
    from noiseproof.run import distributed
    from noiseproof.run.checkpoints import Checkpoints
    from noiseproof.run.training import train

    # Everything that can be refused is refused before records are read or budget is spent.
    Budget(epsilon, delta, check_neighbours(neighbours), queries)
    given = read_settings(settings)
    chosen = methods.build(method, given)
    if chosen.place == "losses":
        raise SettingError(f"{method} makes synthetic records, not a model; run `noiseproof synth {method}` instead.")
    recipes.check(recipe, method=method, network=network is not None)
    if resume and checkpoint is None:
        raise SettingError("--resume needs --checkpoint, the folder that holds the training.")
    speaks = distributed.speaks()
    kept = None if checkpoint is None else Checkpoints(checkpoint, every=every, resume=resume or not speaks)
    if out is not None:
        bundles.check_writable(out)
    progress = output.RichProgress() if speaks else SILENT
    split = load(data, target=target, schema=schema, seed=seed, progress=progress, store=store)
    for sentence in (*split.train.public.notes, *split.remarks) if speaks else ():
        output.note(sentence)
    cooked = recipes.resolve(recipe, split.train, method=method, network=network is not None)
    if cooked is not None:
        if speaks:
            output.note(f"recipe {cooked.name}: {cooked.summary}")
        chosen = cooked.method(len(split.train), epsilon, given, interruptible=kept is not None)

    def fit(
        which: methods.Method, insecure: bool, ranks: Group | None = None, checkpoints: Checkpoints | None = None
    ) -> releases.Release:
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
            ranks=ranks,
            checkpoints=checkpoints,
        )

    def measure(release: releases.Release) -> float:
        if not isinstance(release, releases.ModelRelease | releases.PredictionRelease):
            raise UnsupportedError(
                f"{release.method} gives a {release.kind} release, whose accuracy `train` cannot measure."
            )
        return releases.accuracy(release, split.test)

    started = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(asked(jobs, ray))
        ranks = stack.enter_context(distributed.start()) if distributed.launched() else None
        release = fit(chosen, not secure, ranks, kept)
    if not speaks:
        return
    for sentence in kept.damaged if kept is not None else ():
        output.note(f"{sentence} The one before it was used.")
    seconds = time.perf_counter() - started
    if out is not None:
        # Before anything else, which might be interrupted: it has been paid for.
        release.save(out)
    accuracy = measure(release)
    if chosen.name == "none":
        reference: float | None = accuracy
    else:
        reference = measure(fit(reference_for(len(split.train)), True)) if baseline else None
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
