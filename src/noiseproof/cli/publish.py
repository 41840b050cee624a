"""`noiseproof publish`: publish a generated network from networks that were trained elsewhere."""

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
from noiseproof.files import check_out


@command(
    "publish",
    "Example: noiseproof publish a.safetensors b.safetensors c.safetensors --method dp-pg --epsilon 1 --out net",
)
@o.reads_data
def run(
    models: Annotated[list[Path], typer.Argument(help="Files of trained networks: safetensors, or torch state dicts.")],
    method: Annotated[str, typer.Option(help="dp-pg or dp-pgp.")] = "dp-pg",
    epsilon: o.Epsilon = 1.0,
    delta: o.Delta = 1e-5,
    out: o.Out = None,
    force: o.Force = False,
    data: Annotated[
        str | None, typer.Option("--data", help="Measure accuracy on the test part of this set or file.")
    ] = None,
    *,
    about: Mapping[str, Any],
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
    from noiseproof.data import load
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
        check_out(out, force=force, inputs=(data, about["schema"]))
        bundles.check_writable(out)
    progress = output.RichProgress()
    test = None if data is None else load(data, **about, seed=seed or 0, progress=progress).test
    started = time.perf_counter()
    found = publish_files(chosen, models, budget, network=network, test=test, seed=seed, progress=progress)
    seconds = time.perf_counter() - started
    output.note(*found.warnings)
    if out is not None:
        found.release.save(out)
    o.caution(found.release, out)
    ran = found.release.card.ran
    told = ("accuracy", "baseline_accuracy", "disagreement", "warnings")
    named = {"method": method, "models": len(models), "parameters": ran["parameters"]}
    o.answer_release(
        json,
        found.release,
        named | {name: getattr(found, name) for name in told},
        f"{method} from {len(models)} networks of {ran['parameters']:,} parameters",
        {
            "accuracy": found.accuracy,
            "networks' mean": found.baseline_accuracy,
            "true ε (model)": ran["true epsilon of a model"],
        },
        delta=delta,
        seconds=seconds,
        out=out,
    )
