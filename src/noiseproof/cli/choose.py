"""`noiseproof choose`: the best of several methods or settings, the choice paid for from the budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError
from noiseproof.files import check_out


@command(
    "choose",
    "Example: noiseproof choose dp-sgd dp-sgd:lr=1 functional --data people.csv --schema people.json --epsilon 3 --out model",
)
@o.reads_data
def run(
    candidates: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD[:SETTING=VALUE]...",
            help="Methods to choose from, each perhaps with settings: dp-sgd dp-sgd:lr=1:epochs=10 functional.",
            autocompletion=o.METHODS,
        ),
    ],
    data: o.Data = "digits",
    *,
    about: Mapping[str, Any],
    epsilon: o.Epsilon = 3.0,
    delta: o.Delta = 1e-5,
    neighbours: o.NeighboursOption = "add-or-remove",
    runs: Annotated[
        float | None, typer.Option(help="Expected number of trainings, which is random; by default 3 per candidate.")
    ] = None,
    out: o.Out = None,
    force: o.Force = False,
    seed: o.ReleaseSeed = None,
    json: o.Json = False,
) -> None:
    """Train methods or settings a random number of times, keep the best by a noisy score, and prove all of it.

    The score (ROC AUC, or the squared error of a number) is computed with noise from the records that were held out, which
    are covered by the guarantee, too; with --person each person counts once in it. The number of trainings, the time they
    took and every other candidate's result must stay secret, so none of it is shown.
    """
    from noiseproof import methods
    from noiseproof.data import load
    from noiseproof.privacy import Reproducible
    from noiseproof.privacy.budget import Budget, check_neighbours
    from noiseproof.releases import bundles
    from noiseproof.run import cautions
    from noiseproof.run.choice import choose

    budget = Budget(epsilon, delta, check_neighbours(neighbours))
    asked = [(name, o.read_settings(given.split(":") if given else [])) for name, _, given in _parts(candidates)]
    if len(asked) < 2:
        raise SettingError("a choice needs at least two candidates; for one, use `noiseproof train`.")
    for name, given in asked:
        methods.build(name, given)
    if out is not None:
        check_out(out, force=force, inputs=(data, about["schema"]))
        bundles.check_writable(out)
    split = load(data, **about, seed=seed or 0, neighbours=budget.neighbours)
    output.note(*split.train.public.notes, *split.remarks)
    output.note(*cautions.about_budget(split.train.persons, budget), *cautions.about_split(split))
    found = choose(asked, split, budget, runs=runs, rng=None if seed is None else Reproducible(seed))
    if out is not None:
        found.release.save(out)
        output.note(cautions.keep_fingerprint(out, split.train))
    o.caution(found.release, out)
    card, chosen = found.release.card, candidates[found.candidate]
    shown = {"chosen": chosen, f"noisy {found.measure}": found.score, **o.promised(card, delta)}
    document = {"chosen": chosen, "candidates": candidates, "measure": found.measure, "score": found.score}
    output.answer(
        json,
        {**document, "data": split.train.name, "card": card, "out": None if out is None else str(out)},
        f"the best of {len(candidates)} candidates on {split.train.name} ({o.size_of(split.train)})",
        tuple(shown),
        [tuple(shown.values())],
        caption=card.why,
    )


def _parts(candidates: list[str]) -> list[tuple[str, str, str]]:
    return [candidate.partition(":") for candidate in candidates]
