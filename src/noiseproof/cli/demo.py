"""`noiseproof demo`: every method on the digits, with claimed, proven and audited epsilon."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from noiseproof.cli.options import Delta, Epsilon, Json, Seed

EXAMPLES = "Example: noiseproof demo --epsilon 1"


def run(
    epsilon: Epsilon = 3.0,
    delta: Delta = 1e-5,
    trials: Annotated[int, typer.Option(help="How often each method's game is played in each world.")] = 500,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Train every method on scikit-learn's digits at one budget, attack each, and show what each promise is worth."""
    from noiseproof import methods, releases
    from noiseproof.audits import audit
    from noiseproof.cli import output
    from noiseproof.data import load
    from noiseproof.guarantees.budget import Budget
    from noiseproof.training import train

    split = load("digits", seed=seed)
    progress = output.RichProgress()
    rows: list[dict[str, Any]] = []
    for name in methods.registry():
        started = time.perf_counter()
        budget = Budget(epsilon, delta, queries=len(split.test))
        release = train(
            name, split.train, epsilon=epsilon, delta=delta, queries=budget.queries, seed=seed, progress=progress
        )
        if not isinstance(release, releases.ModelRelease | releases.PredictionRelease):
            continue
        result = audit(methods.build(name).game(budget), trials=trials, seed=seed, progress=progress)
        card = release.card.with_audit(result.audited)
        rows.append(
            {
                "method": name,
                "accuracy": releases.accuracy(release, split.test),
                "card": card,
                "seconds": time.perf_counter() - started,
            }
        )
    if json:
        output.emit({"data": "digits", "epsilon": epsilon, "delta": delta, "rows": rows})
        return
    output.show(
        f"Every method on digits at epsilon {epsilon:g}, delta {delta:g}",
        ("method", "accuracy", "claimed ε", "proven ε", "audited ε ≥", "verdict", "seconds"),
        [
            (
                row["method"],
                f"{row['accuracy']:.1%}",
                output.guarantee(row["card"].claimed),
                output.guarantee(row["card"].proven),
                output.guarantee(row["card"].audited),
                row["card"].verdict,
                f"{row['seconds']:.1f}",
            )
            for row in rows
        ],
        caption="claimed: by the method's authors; proven: for what really ran; audited: what an attack showed, "
        f"at 95% confidence with {trials} trials a world.",
    )
