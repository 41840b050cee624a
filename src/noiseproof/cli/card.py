"""`noiseproof card`: what may be said of a bundle, for people and for the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.files import check_out, write_whole


@command("card", "Example: noiseproof card model --hugging-face README.md")
def run(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    hugging_face: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as a model card for the Hugging Face hub.")
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Show a bundle's card: what is claimed, proven and audited, on what assumptions."""
    from noiseproof.releases import bundles, signing
    from noiseproof.report import model_card

    release = bundles.load(bundle)
    card = release.card
    if hugging_face is not None:
        check_out(hugging_face, force=force)
        write_whole(hugging_face, model_card(release))
    output.answer(json, card, str(release), ("", "ε", "δ", ""), card.promises, caption=card.why)
    if not json:
        assumed = card.proven.assumptions if card.proven else ()
        for sentence in (*(f"assumed: {one}" for one in assumed), *card.notes):
            output.say(f"- {sentence}")
    signature = signing.verify_bundle(bundle, None).sentence
    (output.note if json else output.say)(signature)
    o.note_inside(release, bundle)
