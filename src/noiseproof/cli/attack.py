"""`noiseproof attack`: membership inference against a bundle, or against a stranger's model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import DataError, SettingError
from noiseproof.files import check_out, write_whole
from noiseproof.plugins import need

if TYPE_CHECKING:
    from noiseproof.attacks import AttackResult

TOKEN = "NOISEPROOF_ENDPOINT_TOKEN"
"""The environment variable whose value is sent to an address: on the command line everybody could read it."""
_UNTRAINED = ("loss", "confidence", "entropy", "modified-entropy", "gap", "label-only")


@command(
    "attack",
    "Examples: noiseproof attack model --data people.csv --target income --attack strongest --roc roc.png; "
    "noiseproof attack vendor.onnx --members in.csv --nonmembers out.csv --schema people.json",
)
@o.reads_data
def run(
    target_model: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE|MODEL|URL",
            help="The folder of a bundle; or a stranger's model: an .onnx, TorchScript (.pt) or .safetensors file, or an "
            "http:// or https:// address.",
        ),
    ],
    data: o.Data = "digits",
    *,
    about: Mapping[str, Any],
    attack: Annotated[
        str | None,
        typer.Option(
            help="strongest, rmia, lira, shadow, loss, gap and so on, several with commas between them; shadow without it, "
            "and of a stranger's model all that need no training.",
            autocompletion=o.completes("noiseproof.attacks:attack_names"),
        ),
    ] = None,
    shadows: Annotated[int, typer.Option(help="How many shadow networks are trained.")] = 20,
    members: Annotated[
        Path | None, typer.Option(help="A stranger's model: a table or npz file of records that it was trained on.")
    ] = None,
    nonmembers: Annotated[
        Path | None, typer.Option(help="A stranger's model: a file of records of the same kind that it has not seen.")
    ] = None,
    inputs: Annotated[
        Literal["raw", "coded"],
        typer.Option(
            help="A stranger's model: whether it takes numbers as they are in the file, or as this package codes them."
        ),
    ] = "raw",
    outputs: Annotated[
        Literal["probabilities", "logits", "labels"] | None,
        typer.Option(help="A stranger's model: what it answers; told by its first answer without it."),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="A stranger's weights: the network that they are for, by name.",
            autocompletion=o.completes("noiseproof.networks:names"),
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="An address: requests a second, at most.")] = 5.0,
    batch_size: Annotated[int, typer.Option(help="An address: records in a request.")] = 100,
    field: Annotated[str, typer.Option(help="An address: what the records are called in a request.")] = "instances",
    timeout: Annotated[float, typer.Option(help="A stranger's model: seconds that one answer may take.")] = 120.0,
    jobs: o.Jobs = None,
    ray: o.RayOption = None,
    roc: Annotated[Path | None, typer.Option(help="Draw the ROC curve with log axes to this PNG, PDF or SVG.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the result to this JSON file, for `noiseproof sign` and `report`.")
    ] = None,
    force: o.Force = False,
    seed: o.Seed = 0,
    json: o.Json = False,
) -> None:
    """Measure how well an attacker can tell the records that a model was trained on from others.

    Of a bundle, give the same --data, --target and --seed as in training: the members are the training part, the others the
    test part. Of a stranger's model, give two files. Its file is opened in a process that can reach no other file; an address
    gets to see the records, and a token for it is read from NOISEPROOF_ENDPOINT_TOKEN.
    """
    from noiseproof.attacks import attack_names

    for path in (roc, out):
        if path is not None:
            check_out(path, force=force, inputs=(data, about["schema"], members, nonmembers))
    names = _UNTRAINED if attack is None else tuple(name.strip() for name in attack.split(","))
    for name in names:
        if name not in attack_names():
            raise SettingError(f"there is no attack {name!r}; there are {', '.join(attack_names())}.")
    if roc is not None:
        need("a drawn ROC curve needs", "plots", "matplotlib")
    if Path(target_model).is_dir():
        if members or nonmembers:
            raise SettingError("--members and --nonmembers are for a stranger's model; of a bundle, give --data.")
        chosen = ("shadow",) if attack is None else names
        document, results = _attack_bundle(Path(target_model), data, about, chosen, shadows, jobs, ray, seed)
    else:
        if members is None or nonmembers is None:
            raise SettingError(
                f"{target_model} is no bundle; of a stranger's model, give --members and --nonmembers, a file each."
            )
        options = {"network": network, "outputs": outputs, "timeout": timeout}
        over = {"rate": rate, "batch_size": batch_size, "field": field, "token": os.environ.get(TOKEN)}
        about = {**about, "members": members, "nonmembers": nonmembers, "coded": inputs == "coded"}
        document, results = _attack_stranger(target_model, about, names if attack else None, {**options, **over}, seed)
    if roc is not None:
        from noiseproof.attacks import plot_roc

        plot_roc(results, roc)
    document = {"kind": "attack", **document, "roc": None if roc is None else str(roc)}
    if out is not None:
        write_whole(out, output.as_json(document))
    _show(json, document, results)
    if roc is not None and not json:
        output.say(f"The ROC curve is in {roc}.")


def _attack_bundle(
    bundle: Path,
    data: str,
    about: Mapping[str, Any],
    names: Sequence[str],
    shadows: int,
    jobs: int | None,
    ray: str | None,
    seed: int,
) -> tuple[dict[str, Any], list[AttackResult]]:
    """The document and the results of attacks on a bundle, whose shadow models are trained once for all of them."""
    from noiseproof.attacks import AttackSplit, infer_by_all
    from noiseproof.data import load
    from noiseproof.parallel.tasks import asked
    from noiseproof.releases import DataRelease, ModelRelease, PredictionRelease, bundles
    from noiseproof.run.cautions import trained_on

    release = bundles.load(bundle)
    o.note_inside(release, bundle)
    progress = output.RichProgress()
    split = load(data, **about, seed=seed, neighbours=release.card.neighbours, progress=progress)
    if split.train.public.shape != release.public.shape or split.train.public.classes != release.public.classes:
        raise DataError(f"the bundle was made from other records than {split.train.name}: shapes or classes differ.")
    matches = trained_on(bundle, split.train)
    if matches is False:
        output.note(
            f"the training part of {split.train.name} is not what {bundle} was trained on: members cannot be told from others, "
            "and what follows says nothing; give the --data, --target, --schema and --seed of the training."
        )
    size = min(len(split.train), len(split.test))
    if release.card.unit == "person" and split.train.groups is None:
        output.note(
            "the card speaks of persons; give --person, so that persons are attacked, not their single records."
        )
    records = AttackSplit(split.train, split.test)
    if isinstance(release, PredictionRelease):
        records = records.limited(release.queries_left, seed)
    elif len(split.train) > size:
        records = records.limited(2 * size, seed)
    assert isinstance(release, ModelRelease | PredictionRelease | DataRelease)
    with asked(jobs, ray):
        results = infer_by_all(release, records, names, shadows=shadows, seed=seed, progress=progress)
    for name, result in zip(names, results, strict=True):
        if result.attack != name:
            output.note(
                f"{release.method} answers labels alone, so it was attacked by {result.attack} instead of {name}."
            )
    document: dict[str, Any] = {"method": release.method, "trained_on": matches}
    if len(results) == 1:
        return document | results[0].to_json(), results
    return document | {"attacks": [result.to_json() for result in results]}, results


def _attack_stranger(
    target: str, about: Mapping[str, Any], names: Sequence[str] | None, options: dict[str, Any], seed: int
) -> tuple[dict[str, Any], list[AttackResult]]:
    """The document and the results of attacks on a stranger's model, each with intervals that hold for all together."""
    from noiseproof.attacks import infer_by_all, open_model, read_members

    if ignored := [name for name in ("target", "task", "target_bounds", "person") if about[name]] or about["skip"]:
        raise SettingError(f"--{ignored[0]} is not for a stranger's model; its --schema says it all.")
    split = read_members(
        about["members"], about["nonmembers"], schema=about["schema"], coded=about["coded"], encoding=about["encoding"]
    )
    if split.members.public.task != "classification" and names is None:
        names = ("loss",)
    model = open_model(target, split.members.public, **options)
    at_address = target.startswith(("http://", "https://"))
    model.predict(split.records.features)  # tells what the answers are, and costs nothing more
    if names is None:
        # The copies of records that label-only asks about are ten times the requests.
        names = tuple(name for name in _UNTRAINED if not (at_address and name == "label-only"))
        names = tuple(name for name in names if name in ("gap", "label-only")) if model.labels_only else names
    results = infer_by_all(model, split, names, seed=seed)
    results = [replace(result, level=1 - 0.05 / (2 * len(results))) for result in results]
    document = {
        "target": target.partition("?")[0],
        "answers": model.outputs,
        "queries": model.asked,
        "members": len(split.members),
        "nonmembers": len(split.nonmembers),
        "level": 0.95,
        "power": power(results[0]),
        "attacks": [result.to_json() for result in results],
    }
    return document, results


def power(result: AttackResult) -> dict[str, Any]:
    """What an attack with so many records could have shown: for each false positive rate, how many members must be named."""
    from scipy.special import betaincinv

    members = int(result.member.sum())
    found = []
    for one in result.at_low_fpr:
        tail = (1 - result.level) / 2
        needed = next(
            (
                named
                for named in range(1, members + 1)
                if betaincinv(named, members - named + 1, tail) > one.fpr_at_most
            ),
            None,
        )
        found.append({"fpr": one.fpr, "fpr_at_most": one.fpr_at_most, "needed": needed, "members": members})
    last = found[-1]
    sentence = (
        f"Of {members} members, {last['needed']} or more named at {last['fpr']:.0%} false accusations would have shown that the "
        "model gives members away."
        if last["needed"]
        else f"With so few records nothing could have been shown at {last['fpr']:.0%} false accusations: take more."
    )
    return {"at": found, "sentence": sentence}


def _show(json: bool, document: dict[str, Any], results: Sequence[AttackResult]) -> None:
    members, others = (int(side.sum()) for side in (results[0].member, ~results[0].member))
    told = f"{members} members, {others} others{', each a person' if results[0].unit == 'person' else ''}"
    of = document.get("method") or document.get("target")
    if len(results) == 1 and "method" in document:
        result = results[0]
        output.answer(
            json,
            document,
            f"{result.attack} against {of} ({told})",
            ("measure", "value", "95% interval"),
            [(name, found.value, f"{found.low:.4f} to {found.high:.4f}") for name, found in result.measures.items()],
            caption=f"advantage is TPR - FPR; its threshold comes from {result.threshold_from}.",
        )
    else:
        rows = []
        for result in results:
            rates = [f"{one.tpr.value:.1%} ({one.tpr.low:.1%} to {one.tpr.high:.1%})" for one in result.at_low_fpr]
            rows.append((result.attack, f"{result.auc:.3f}", f"{result.advantage:.3f}", *rates))
        caption = "Shares of members named, where so many non-members are named falsely, with exact intervals."
        if "power" in document:
            caption = f"{caption} They hold for all attacks together at 95%. {document['power']['sentence']}"
        heads = ("attack", "AUC", "advantage", *(f"TPR at {one.fpr:g} FPR" for one in results[0].at_low_fpr))
        output.answer(json, document, f"Membership attacks against {of} ({told})", heads, rows, caption)
    if not json:
        for result in results:
            if result.note:
                output.say(result.note)
