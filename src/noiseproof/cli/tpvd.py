"""`noiseproof tpvd`: how far noise moved a network's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Json
from noiseproof.cli.registry import command


@command("tpvd", "Example: noiseproof tpvd plain-model noised-model")
def run(
    reference: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The network trained without noise.")],
    noisy: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The same network trained with noise.")],
    json: Json = False,
) -> None:
    """Print the total parameters value difference of two networks (Lin et al.). It says nothing of privacy."""
    from noiseproof.errors import UnsupportedError
    from noiseproof.networks import tpvd
    from noiseproof.releases import bundles
    from noiseproof.releases.release import ModelRelease

    modules = []
    for path in (reference, noisy):
        release = bundles.load(path)
        if not isinstance(release, ModelRelease):
            raise UnsupportedError(f"{path} holds no network's weights; TPVD compares two of them.")
        modules.append(release.module)
    value = tpvd(*modules)
    output.tell(json, {"tpvd": value}, f"TPVD {value:.4f}: how far the weights moved, which promises nothing.")
