"""`noiseproof attack`: membership inference against a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import DataError, SettingError
from noiseproof.files import check_out
from noiseproof.plugins import need


@command("attack", "Example: noiseproof attack model --data people.csv --target income --attack lira --roc roc.png")
@o.reads_data
def run(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    data: o.Data = "digits",
    *,
    about: Mapping[str, Any],
    attack: Annotated[
        str,
        typer.Option(
            help="shadow, loss, lira, lira-offline, gap, label-only; synthetic records: nearest, density-ratio.",
            autocompletion=o.completes("noiseproof.attacks:attack_names"),
        ),
    ] = "shadow",
    shadows: Annotated[int, typer.Option(help="How many shadow networks are trained.")] = 20,
    jobs: o.Jobs = None,
    ray: o.RayOption = None,
    roc: Annotated[Path | None, typer.Option(help="Draw the ROC curve with log axes to this PNG, PDF or SVG.")] = None,
    force: o.Force = False,
    seed: o.Seed = 0,
    json: o.Json = False,
) -> None:
    """Say how well an attacker tells the records that a release was trained on from others.

    Give the same --data, --target and --seed as in training: the members are the training part, the others the test part.
    """
    from noiseproof.attacks import AttackSplit, attack_names, infer_membership
    from noiseproof.data import load
    from noiseproof.parallel.tasks import asked
    from noiseproof.releases import bundles
    from noiseproof.releases.release import DataRelease, ModelRelease, PredictionRelease
    from noiseproof.run.cautions import trained_on

    if roc is not None:
        check_out(roc, force=force, inputs=(data, about["schema"]))
    if attack not in attack_names():
        raise SettingError(f"there is no attack {attack!r}; there are {', '.join(attack_names())}.")
    if roc is not None:
        need("a drawn ROC curve needs", "plots", "matplotlib")
    release = bundles.load(bundle)
    o.note_inside(release, bundle)
    progress = output.RichProgress()
    near = release.card.neighbours
    split = load(
        data,
        **about,
        seed=seed,
        neighbours=near,
        progress=progress,
    )
    if split.train.public.shape != release.public.shape or split.train.public.classes != release.public.classes:
        raise DataError(f"the bundle was made from other records than {split.train.name}: shapes or classes differ.")
    matches = trained_on(bundle, split.train)
    if matches is False:
        output.note(
            f"the training part of {split.train.name} is not what {bundle} was trained on: members cannot be told from others, "
            "and what follows says nothing; give the --data, --target, --schema and --seed of the training."
        )
    size = min(len(split.train), len(split.test))
    records = AttackSplit(split.train, split.test)
    if isinstance(release, PredictionRelease):
        records = records.limited(release.queries_left, seed)
    elif len(split.train) > size:
        records = records.limited(2 * size, seed)
    assert isinstance(release, ModelRelease | PredictionRelease | DataRelease)
    with asked(jobs, ray):
        result = infer_membership(release, records, attack, shadows=shadows, seed=seed, progress=progress)
    if result.attack != attack:
        output.note(
            f"{release.method} answers labels alone, so it was attacked by {result.attack} instead of {attack}."
        )
    if roc is not None:
        result.plot_roc(roc)
    output.answer(
        json,
        {
            "method": release.method,
            "trained_on": matches,
            **result.to_json(),
            "roc": None if roc is None else str(roc),
        },
        f"{result.attack} against {release.method} ({len(records.members)} members, {len(records.nonmembers)} others)",
        ("measure", "value", "95% interval"),
        [(name, found.value, f"{found.low:.4f} to {found.high:.4f}") for name, found in result.measures.items()],
        caption=f"advantage is TPR - FPR; its threshold comes from {result.threshold_from}.",
    )
    if roc is not None and not json:
        output.say(f"The ROC curve is in {roc}.")
