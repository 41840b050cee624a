"""`noiseproof train`: fit one method on private records, save the bundle."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.files import check_out

if TYPE_CHECKING:
    from noiseproof.releases import Measures


@command(
    "train",
    "Example: noiseproof train dp-sgd --data people.csv --target income --schema people.json --epsilon 1 --out model",
)
@o.reads_data
def run(
    method: o.MethodArgument,
    data: o.Data = "digits",
    *,
    about: Mapping[str, Any],
    epsilon: o.Epsilon = 3.0,
    delta: o.Delta = 1e-5,
    neighbours: o.NeighboursOption = "add-or-remove",
    out: o.Out = None,
    force: o.Force = False,
    network: o.NetworkOption = None,
    recipe: o.RecipeOption = "auto",
    settings: o.Settings = None,
    queries: Annotated[int, typer.Option(help="Answers that a prediction method must be able to give.")] = 1,
    baseline: Annotated[bool, typer.Option(help="Also train without privacy, to compare.")] = True,
    chosen_by: o.ChosenBy = None,
    store: o.Store = None,
    jobs: o.Jobs = None,
    ray: o.RayOption = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for checkpoints and for what has been spent.")
    ] = None,
    every: Annotated[int, typer.Option(help="Steps between checkpoints; SIGTERM leaves one, too.")] = 100,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the training that --checkpoint holds, if it holds one.")
    ] = False,
    seed: o.ReleaseSeed = None,
    json: o.Json = False,
) -> None:
    """Train on private records within a budget, save the release with its card, and measure its accuracy.

    Accuracy is measured on the test part of the data, for its owner; it is not part of the release.
    Under `torchrun -m noiseproof train ...` all ranks share one training; --jobs and --ray are for methods that train many
    networks.
    """
    from noiseproof import methods, releases
    from noiseproof.data import load
    from noiseproof.methods import recipes
    from noiseproof.parallel.tasks import asked
    from noiseproof.privacy.budget import Budget, check_neighbours
    from noiseproof.progress import SILENT
    from noiseproof.releases import bundles
    from noiseproof.run import cautions, distributed
    from noiseproof.run.checkpoints import Checkpoints
    from noiseproof.run.row import BASELINE
    from noiseproof.run.training import check_network, train

    # Everything that can be refused is refused before records are read or budget is spent.
    budget = Budget(epsilon, delta, check_neighbours(neighbours), queries)
    given = o.read_settings(settings)
    asked_for = methods.build(method, given)
    if asked_for.place == "losses":
        raise SettingError(f"{method} makes synthetic records, not a model; run `noiseproof synth {method}` instead.")
    check_network(asked_for, network)
    recipes.check(recipe, method=method, network=network is not None)
    chosen = o.read_choice(chosen_by)
    if resume and checkpoint is None:
        raise SettingError("--resume needs --checkpoint, the folder that holds the training.")
    first_rank = distributed.is_first_rank()
    kept = None if checkpoint is None else Checkpoints(checkpoint, every=every, resume=resume or not first_rank)
    if out is not None:
        check_out(out, force=force, inputs=(data, about["schema"]))
        bundles.check_writable(out)
    progress = output.RichProgress() if first_rank else SILENT
    split = load(data, **about, seed=seed or 0, neighbours=budget.neighbours, progress=progress, store=store)
    found = recipes.resolve(recipe, split.train, method=method, network=network is not None)
    if first_rank:
        output.note(*split.train.public.notes, *split.remarks)
        output.note(*cautions.about_budget(split.train.persons, budget), *cautions.about_split(split))
        if found is not None:
            output.note(f"recipe {found.name}: {found.summary}")
    terms: Any = {"epsilon": epsilon, "delta": delta, "neighbours": budget.neighbours, "queries": queries}
    terms |= {"network": network, "progress": progress}

    def measure(release: releases.Release) -> releases.Measures:
        if not isinstance(release, releases.ModelRelease | releases.PredictionRelease):
            raise UnsupportedError(
                f"{release.method} gives a {release.kind} release, whose accuracy `train` cannot measure."
            )
        return releases.evaluate(release, split.test)

    started = time.perf_counter()
    with ExitStack() as stack:
        stack.enter_context(asked(jobs, ray))
        ranks = stack.enter_context(distributed.start()) if distributed.launched() else None
        own: Any = {"recipe": found or "none", "ranks": ranks, "checkpoints": kept, **given}
        release = train(method, split.train, **terms, **own, seed=seed)
    if not first_rank:
        return
    seconds = time.perf_counter() - started
    release.card = o.with_choice(release.card, chosen)
    if out is not None:
        # Before anything else, which might be interrupted: it has been paid for.
        release.save(out)
        output.note(cautions.keep_fingerprint(out, split.train))
    output.note(*(f"{sentence} The one before it was used." for sentence in (kept.damaged if kept else ())))
    o.caution(release, out)
    measures = measure(release)
    reference = measures if method == BASELINE else None
    if baseline and reference is None:
        # Not a release: it is measured here and thrown away.
        reference = measure(train(BASELINE, split.train, **terms, seed=seed or 0))
    o.answer_release(
        json,
        release,
        {
            **{"method": method, "data": split.train.name},
            **{"accuracy": measures.accuracy, "baseline_accuracy": reference and reference.accuracy},
            **{"measures": measures, "baseline_measures": reference},
        },
        f"{method} on {split.train.name} ({o.size_of(split.train)})",
        _headline(measures, reference),
        delta=delta,
        seconds=seconds,
        out=out,
    )
    if not json:
        _show_measures(method, measures, reference)


_HINT = "Its probabilities may rank them well all the same; --set threshold=0.1 predicts the second class more often."


def _headline(measures: Measures, reference: Measures | None) -> dict[str, str]:
    """The measure that ranks, with that of the baseline."""
    from noiseproof.releases.measures import NAMES, stated

    ranked_by = measures.ranked_by
    plain = None if reference is None else reference.value
    return {NAMES[ranked_by]: stated(ranked_by, measures.value), "baseline": stated(ranked_by, plain)}


def _show_measures(method: str, measures: Measures, reference: Measures | None) -> None:
    """Print all measures, those of the baseline beside them."""
    from noiseproof.releases.measures import NAMES, stated

    two = measures.positive is not None
    rows = [
        (name, stated(field, found), *([] if reference is None else [stated(field, getattr(reference, field))]))
        for field, name in NAMES.items()
        if (found := getattr(measures, field)) is not None
    ]
    output.show(
        f"on {measures.records} test records, for their owner only",
        ("measure", method, *([] if reference is None else ["baseline"])),
        rows,
        caption=None if measures.remark is None else f"{method} {measures.remark}. {_HINT if two else ''}".rstrip(),
    )
