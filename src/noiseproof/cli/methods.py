"""`noiseproof methods`: every method, its place, what it claims and proves."""

from __future__ import annotations

from noiseproof.cli import output
from noiseproof.cli.options import Json
from noiseproof.cli.registry import command


@command("methods", "Example: noiseproof methods --json")
def run(json: Json = False) -> None:
    """List every method: where its noise goes, what its authors claim, and whether it proves anything."""
    from noiseproof.methods import registry

    rows = [
        {
            "name": method.name,
            "place": method.place,
            "published": method.paper is not None,
            "proven": method.proves,
            "summary": method.summary(),
            "claims": method.claims,
            "paper": method.paper,
        }
        for method in registry().values()
    ]
    output.answer(
        json,
        rows,
        None,
        ("method", "place", "as published", "proven", "what it does"),
        [(row["name"], row["place"], row["published"], row["proven"], row["summary"]) for row in rows],
    )
