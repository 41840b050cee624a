"""`noiseproof audit`: a lower bound on epsilon, against the claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import completion
from noiseproof.cli.options import Delta, Epsilon, Json, NeighboursOption, Seed, Settings, note_inside, read_settings
from noiseproof.cli.registry import command


@command("audit", "Example: noiseproof audit dp-sgd --epsilon 1 --trials 2000")
def run(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="METHOD|BUNDLE",
            help="A method's name, or the folder of a bundle.",
            autocompletion=completion.methods,
        ),
    ],
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-5,
    neighbours: NeighboursOption = "add-or-remove",
    trials: Annotated[int, typer.Option(help="How often the game is played in each world.")] = 2000,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    settings: Settings = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Play the game that hits a method hardest, and say which epsilon that refutes.

    A bundle's method is audited with the bundle's own settings, and the result is written into its card.
    """
    from noiseproof import methods
    from noiseproof.audits import audit
    from noiseproof.cli import output
    from noiseproof.errors import SettingError
    from noiseproof.privacy.budget import Budget, check_neighbours
    from noiseproof.releases import bundles

    bundle = Path(subject) if Path(subject).is_dir() else None
    if bundle is not None:
        if settings:
            raise SettingError("a bundle is audited with its own settings; leave --set away.")
        release = bundles.load(bundle)
        chosen = methods.build(release.method, release.settings)
        card = release.card
        promise = card.claimed or card.proven
        budget = Budget(
            promise.epsilon if promise else epsilon,
            promise.delta if promise else delta,
            card.neighbours,
            # Each of a prediction release's answers has the noise of them all.
            getattr(release, "queries", 1),
        )
        note_inside(release, bundle)
    else:
        chosen = methods.build(subject, read_settings(settings))
        budget = Budget(epsilon, delta, check_neighbours(neighbours))
    result = audit(chosen.game(budget), trials=trials, confidence=confidence, seed=seed, progress=output.RichProgress())
    if bundle is not None:
        bundles.write_card(bundle, card.with_audit(result.audited))
    if json:
        output.emit({"method": chosen.name, **result.to_json()})
        return
    output.show(
        result.audited.game,
        ("claimed ε", "proven ε", "audited ε at least", "δ", "confidence", "trials", "verdict"),
        [
            (
                output.guarantee(result.claimed),
                output.guarantee(result.proven),
                result.audited.epsilon,
                result.audited.delta,
                result.audited.confidence,
                result.audited.trials,
                result.verdict,
            )
        ],
    )
