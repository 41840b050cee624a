"""Bundles: a release on disk as `weights.safetensors`, `card.json`, `settings.json`. Never a pickle.

`settings.json` holds the digests of the other two and of itself, so that a truncated or changed bundle is told apart
from a whole one. (A digest guards against accidents and careless edits, not against a forger who rewrites all of it.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from noiseproof.data.dataset import Public
from noiseproof.errors import BundleError, NoiseproofError
from noiseproof.privacy.card import Card
from noiseproof.releases.release import Release, Saved

FORMAT = 1
WEIGHTS, CARD, SETTINGS = "weights.safetensors", "card.json", "settings.json"


def save(release: Release, path: str | Path) -> Path:
    """Write a release's bundle to the folder `path`; an older bundle there is replaced, anything else is kept safe."""
    path = Path(path)
    check_writable(path)
    weights = save_tensors({name: tensor.contiguous() for name, tensor in release.tensors().items()})
    card = release.card.to_json().encode()
    settings: dict[str, Any] = {
        "format": FORMAT,
        "kind": release.kind,
        "class": _class_name(type(release)),
        "method": release.method,
        "settings": release.settings,
        "public": dataclasses.asdict(release.public),
        "description": release.description(),
        "digests": {WEIGHTS: _digest(weights), CARD: _digest(card)},
    }
    settings["digests"][SETTINGS] = _digest(_canonical(settings))
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        staging.chmod(0o755)
        _write(staging / WEIGHTS, weights)
        _write(staging / CARD, card)
        _write(staging / SETTINGS, json.dumps(settings, indent=2).encode())
        _swap(staging, path)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return path


def check_writable(path: str | Path) -> None:
    """Refuse, before any budget is spent, a folder that holds something other than a bundle."""
    path = Path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / SETTINGS).is_file()):
        raise BundleError(f"{path} exists and is not a bundle; choose another folder for the release.")


def load(path: str | Path, *, module: nn.Module | None = None) -> Release:
    """Read a bundle; `module` for a network of the user's own."""
    path = Path(path)
    settings, card_text, weights = _read(path)
    try:
        kind = _find_class(settings["class"])
        return kind.restore(
            Saved(
                load_tensors(weights),
                settings["description"],
                card=Card.from_json(card_text),
                public=TypeAdapter(Public).validate_python(settings["public"]),
                settings=settings["settings"],
                module=module,
            )
        )
    except NoiseproofError:
        raise
    except (KeyError, ValueError, RuntimeError, ValidationError, SafetensorError, TypeError) as error:
        raise BundleError(f"{path} is not a bundle this version can read ({type(error).__name__}).") from error


def read_card(path: str | Path) -> Card:
    """A bundle's card, after checking that the bundle is whole."""
    return Card.from_json(_read(Path(path))[1])


def write_card(path: str | Path, card: Card) -> None:
    """Replace a bundle's card (an audit's result), keeping its digests true."""
    path = Path(path)
    settings, _, _ = _read(path)
    text = card.to_json().encode()
    settings["digests"].pop(SETTINGS)
    settings["digests"][CARD] = _digest(text)
    settings["digests"][SETTINGS] = _digest(_canonical(settings))
    # Card first: a crash between the two writes is then noticed as a changed card, never taken for a whole bundle.
    for name, content in ((CARD, text), (SETTINGS, json.dumps(settings, indent=2).encode())):
        staging = path / f".{name}"
        _write(staging, content)
        staging.replace(path / name)


def _read(path: Path) -> tuple[dict[str, Any], bytes, bytes]:
    if not path.is_dir():
        raise BundleError(f"there is no bundle at {path}; `noiseproof train ... --out {path}` makes one.")
    contents = {}
    for name in (SETTINGS, CARD, WEIGHTS):
        if not (path / name).is_file():
            raise BundleError(f"the bundle {path} has no {name}; it is incomplete, make it again.")
        contents[name] = (path / name).read_bytes()
    try:
        settings = json.loads(contents[SETTINGS])
        digests = settings["digests"]
        expected = digests.pop(SETTINGS)
        if settings["format"] != FORMAT:
            raise BundleError(f"{path} has bundle format {settings['format']}; this version reads format {FORMAT}.")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BundleError(f"the bundle {path} has an unreadable {SETTINGS}; make it again.") from None
    for name, digest in (
        (SETTINGS, _digest(_canonical(settings))),
        *((n, _digest(contents[n])) for n in (CARD, WEIGHTS)),
    ):
        if digest != (expected if name == SETTINGS else digests.get(name)):
            raise BundleError(
                f"{name} of the bundle {path} is truncated or was changed; do not rely on it, make it again."
            )
    digests[SETTINGS] = expected
    return settings, contents[CARD], contents[WEIGHTS]


def _swap(staging: Path, path: Path) -> None:
    if not path.exists():
        staging.rename(path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
    path.rename(old / "bundle")
    try:
        staging.rename(path)
    except BaseException:
        (old / "bundle").rename(path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _canonical(settings: dict[str, Any]) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()


def _class_name(release: type[Release]) -> str:
    return release.__name__


def _find_class(name: str) -> type[Release]:
    # Only classes that the package itself defines: a bundle cannot name code to run.
    from noiseproof import methods

    methods.registry()
    known: dict[str, type[Release]] = {}
    waiting = Release.__subclasses__()
    while waiting:
        found = waiting.pop()
        known[found.__name__] = found
        waiting.extend(found.__subclasses__())
    if name not in known:
        raise BundleError(f"this version has no release of class {name!r}; it may need a newer noiseproof.")
    return known[name]
