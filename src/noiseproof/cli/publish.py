"""`noiseproof publish`: publish a generated network from networks that were trained elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import options as o
from noiseproof.cli.registry import command


@command(
    "publish",
    "Example: noiseproof publish a.safetensors b.safetensors c.safetensors --method dp-pg --epsilon 1 --out net",
)
def run(
    models: Annotated[list[Path], typer.Argument(help="Files of trained networks: safetensors, or torch state dicts.")],
    method: Annotated[str, typer.Option(help="dp-pg or dp-pgp.")] = "dp-pg",
    epsilon: o.Epsilon = 1.0,
    delta: o.Delta = 1e-5,
    out: o.Out = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Measure accuracy on the test part of this set or file.")
    ] = None,
    target: o.Target = None,
    schema: o.SchemaOption = None,
    network: o.NetworkOption = None,
    settings: o.Settings = None,
    seed: o.ReleaseSeed = None,
    json: o.Json = False,
) -> None:
    """Draw a network from the densities of several trained ones' parameters, and say what that protects.

    All networks must have one architecture and have been trained from one initialisation. With --data and --network
    accuracies are measured, a threshold can be set (`--set threshold=0.9`), and the bundle answers queries.
    """
    from noiseproof import methods
    from noiseproof.cli import output
    from noiseproof.data import load
    from noiseproof.errors import SettingError
    from noiseproof.methods.parameters.dp_pg import PublishingMethod
    from noiseproof.methods.parameters.publishing import publish_files
    from noiseproof.privacy import Budget
    from noiseproof.releases import bundles

    budget = Budget(epsilon, delta)
    kind = methods.get(method)
    if not issubclass(kind, PublishingMethod):
        raise SettingError(
            f"{method} cannot publish networks that were trained elsewhere; `publish` takes dp-pg or dp-pgp. (shard-mean "
            "and shard-pg train their own, so as to know which records each has seen: use `noiseproof train`.)"
        )
    chosen = methods.build(method, o.read_settings(settings))
    assert isinstance(chosen, PublishingMethod)
    if (data is None) != (network is None):
        raise SettingError("--data and --network go together: accuracy is measured on records, with an architecture.")
    if out is not None:
        bundles.check_writable(out)
    progress = output.RichProgress()
    test = None if data is None else load(data, target=target, schema=schema, seed=seed or 0, progress=progress).test
    started = time.perf_counter()
    found = publish_files(chosen, models, budget, network=network, test=test, seed=seed, progress=progress)
    seconds = time.perf_counter() - started
    for sentence in found.warnings:
        output.note(sentence)
    if out is not None:
        found.release.save(out)
    o.caution(found.release, out)
    card = found.release.card
    output.answer(
        json,
        {
            "method": method,
            "models": len(models),
            "parameters": found.parameters,
            "accuracy": found.accuracy,
            "baseline_accuracy": found.baseline_accuracy,
            "disagreement": found.disagreement,
            "warnings": list(found.warnings),
            "card": card,
            "seconds": seconds,
            "out": None if out is None else str(out),
        },
        f"{method} from {len(models)} networks of {found.parameters:,} parameters",
        ("accuracy", "networks' mean", "true ε (model)", *o.CARD_COLUMNS, "seconds"),
        [(found.accuracy, found.baseline_accuracy, found.true_epsilon, *o.card_cells(card, delta), seconds)],
        caption=card.why,
    )
    if out is not None and not json:
        output.say(f"Saved to {out}: weights.safetensors, card.json, settings.json.")
