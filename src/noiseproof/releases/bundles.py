"""Bundles: a release on disk as `weights.safetensors`, `card.json`, `settings.json`. Never a pickle.

`settings.json` holds the digests of the other two and of itself, so that a truncated or changed bundle is told apart
from a whole one. (A digest guards against accidents and careless edits, not against a forger who rewrites all of it.)
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import nn

from noiseproof.data.dataset import Public
from noiseproof.errors import BundleError, NoiseproofError
from noiseproof.files import lock_file, strict_json, sync_folder, umask, write_whole
from noiseproof.networks.network import names as network_names
from noiseproof.privacy.card import Card
from noiseproof.privacy.events import DpEvent, event_from_json, event_to_json
from noiseproof.releases.release import Release, Saved, restore_network

FORMAT = 1
WEIGHTS, CARD, SETTINGS = "weights.safetensors", "card.json", "settings.json"
BINDING = "ledger.json"
"""A file that a service keeps in a bundle whose answers cost: which ledger pays for them. No part of the release."""

MOST_BYTES = {WEIGHTS: 8 << 30, SETTINGS: 16 << 20, CARD: 4 << 20}
"""Bytes of a bundle's files; of others as many as of its settings. JSON takes up to thirty times its size in memory."""
MOST_QUERIES = 10**12
"""Queries that a bundle may cover."""
MOST_HEADER_BYTES = 4 << 20
"""Bytes that may say which tensors there are."""
_HOLES_BYTES = 64 << 20
"""Bytes from which on a file is looked at for holes."""

Contents = Mapping[str, bytes]
"""A bundle's files by name."""

_RENAMED = {
    "batch": "batch_size",
    "clip": "max_grad_norm",
    "learning_rate": "lr",
    "learning_rate_schedule": "lr_schedule",
    "micro_batch": "micro_batch_size",
    "mirror": "flip",
    "optimiser": "optimizer",
    "rate": "sample_rate",
    "sigma": "noise_multiplier",
    "views": "augmentations",
}
"""Settings of bundles that version 0.1 wrote, and what they are called now."""


def pack(release: Release) -> Contents:
    """The files of a release's bundle."""
    import noiseproof

    # Copies, since safetensors takes no tensors that share their memory, as tied weights do.
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in release.tensors().items()}
    # Digests of the files go into signatures, which leave: of records they would confirm a guess, but for a salt that stays.
    salted = release.stays_inside and release.card.randomness == "secure"
    weights = save_tensors(copies, metadata={"salt": os.urandom(32).hex()} if salted else None)
    card = release.card.to_json().encode()
    settings: dict[str, Any] = {
        "format": FORMAT,
        "version": noiseproof.__version__,
        "kind": release.kind,
        "class": type(release).__name__,
        "method": release.method,
        "stays_inside": release.stays_inside,
        "settings": release.settings,
        "public": dataclasses.asdict(release.public),
        "description": release.description(),
        "events": [[event_to_json(event), count] for event, count in release.event_log],
        **({} if release.margin is None else {"margin": release.margin}),
        "digests": {WEIGHTS: _digest(weights), CARD: _digest(card)},
    }
    return {WEIGHTS: weights, CARD: card, SETTINGS: _sealed(settings)}


def write(path: str | Path, contents: Contents) -> Path:
    """Write a packed bundle to the folder `path`, whole or not at all; an older bundle there is replaced.

    A bundle that stays inside is its owner's alone to read; others have the permissions of any new file.

    Args:
        path: The folder; anything but a bundle there is left alone.
        contents: What `pack` gave.

    Returns:
        The path.

    Raises:
        BundleError: If there is something else at `path`.
    """
    path = Path(path)
    check_writable(path)
    inside = json.loads(contents[SETTINGS]).get("stays_inside", False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _staging(path, 0o700 if inside else 0o777) as staging:
        for name, content in contents.items():
            write_whole(staging / name, content, mode=0o600 if inside else None)
        _swap(staging, path)
        sync_folder(path.parent)
    return path


def save(release: Release, path: str | Path) -> Path:
    """Write a release's bundle to the folder `path` (see `write`)."""
    return write(path, pack(release))


def check_writable(path: str | Path) -> None:
    """Refuse, before any budget is spent, a folder that holds something other than a bundle."""
    path = Path(path)
    if path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / SETTINGS).is_file()):
        raise BundleError(f"{path} exists and is not a bundle; choose another folder for the release.")


def load(path: str | Path, *, module: nn.Module | None = None) -> Release:
    """Read a bundle, also one that an earlier version wrote.

    Args:
        path: The bundle's folder.
        module: A network of the user's own, where the release was trained with one.

    Returns:
        The release.

    Raises:
        BundleError: If there is no bundle, or it is truncated, changed, or of a version that cannot be read.

    Examples:
        >>> import noiseproof as npf
        >>> data = npf.load("digits")
        >>> release = npf.train("dp-sgd", data.train, epsilon=3, network="linear", epochs=1)
        >>> folder = release.save("digits-model")
        >>> npf.load_bundle(folder).card == release.card
        True
    """
    path = Path(path)
    settings, contents = _read(path)
    try:
        given = settings["settings"]
        if "version" not in settings:
            given = _with_todays_names(settings["method"], given)
        if int.from_bytes(contents[WEIGHTS][:8], "little") > MOST_HEADER_BYTES:
            raise BundleError(f"{WEIGHTS} of the bundle {path} names more tensors than can be meant; make it again.")
        tensors = load_tensors(contents[WEIGHTS])
        saved = Saved(
            tensors,
            _checked(settings["description"], tensors),
            card=Card.from_json(contents[CARD]),
            public=TypeAdapter(Public).validate_python(settings["public"]),
            settings=given,
            module=module,
        )
        release = _find_class(settings["class"]).restore(saved)
        release.bundle, release.event_log = path, events_from_json(settings)
        release.bundle_digests = {name: _digest(content) for name, content in contents.items()}
        release.margin = settings.get("margin")
    except NoiseproofError:
        raise
    except _UNREADABLE as error:
        raise BundleError(f"{path} is not a bundle this version can read ({type(error).__name__}).") from error
    return release


_UNREADABLE = (
    *(KeyError, ValueError, RuntimeError, ValidationError, SafetensorError, TypeError, AttributeError, IndexError),
    *(OverflowError, MemoryError, ZeroDivisionError, AssertionError),
)
"""What goes wrong when a stranger's settings, which are JSON but nothing else that is known, are taken for a release's."""


def _checked(description: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """A release's description, if its counts can be meant and its network is no larger than its weights.

    A network is built before its weights are put in: one that only claims to be large would take all memory there is.
    """
    if not isinstance(description, dict):
        raise BundleError("the bundle's description is no object; make it again.")
    for name in ("queries", "asked"):
        count = description.get(name, 0)
        if type(count) is not int or not 0 <= count <= MOST_QUERIES:
            raise BundleError(f"the bundle's number of {name} is not within 0 and {MOST_QUERIES:,}; make it again.")
    if description.get("asked", 0) > description.get("queries", 0):
        raise BundleError("the bundle says that more queries were asked than it covers; make it again.")
    network = description.get("network")
    if isinstance(network, dict) and network.get("name") in network_names():
        with torch.device("meta"):  # sizes alone, no memory
            built = restore_network(network).build()
        needed, given = (sum(one.numel() for one in them) for them in (built.parameters(), tensors.values()))
        if needed > given:
            raise BundleError(
                f"the bundle's network has {needed:,} parameters and its weights {given:,}; make it again."
            )
    return description


def _with_todays_names(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a bundle of version 0.1; what the method ignored then and refuses now is left out."""
    from noiseproof import methods

    kind = methods.registry().get(method)
    fields = set(given) if kind is None else {field.name for field in dataclasses.fields(kind)}
    renamed = {name if name in fields else _RENAMED.get(name, name): value for name, value in given.items()}
    return {name: value for name, value in renamed.items() if name in fields}


def read_card(path: str | Path) -> Card:
    """A bundle's card, after checking that the bundle is whole."""
    return Card.from_json(_read(Path(path))[1][CARD])


def read_events(path: str | Path) -> tuple[Card, list[tuple[DpEvent, int]]]:
    """A bundle's card and event log, after checking that the bundle is whole; no weights are loaded.

    Raises:
        BundleError: If the bundle is not whole, or holds an event that this version does not know.
    """
    settings, contents = _read(Path(path))
    try:
        return Card.from_json(contents[CARD]), list(events_from_json(settings))
    except (KeyError, ValueError, TypeError) as error:
        raise BundleError(f"the bundle {path} holds an event that this version does not know.") from error


def write_card(path: str | Path, card: Card) -> None:
    """Replace a bundle's card (an audit's result), keeping its digests true."""
    path = Path(path)
    settings, _ = _read(path)
    text = card.to_json().encode()
    settings["digests"][CARD] = _digest(text)
    mode = 0o600 if settings.get("stays_inside", False) else None
    # Card first: a crash between the two writes is then noticed as a changed card, never taken for a whole bundle.
    write_whole(path / CARD, text, mode=mode)
    write_whole(path / SETTINGS, _sealed(settings), mode=mode)


def _read(path: Path) -> tuple[dict[str, Any], Contents]:
    """A bundle's settings, without their own digest, and its files, after checking all digests."""
    if not path.is_dir():
        raise BundleError(f"there is no bundle at {path}; `noiseproof train ... --out {path}` makes one.")
    contents = {name: read_file(path, name) for name in (SETTINGS, CARD, WEIGHTS)}
    try:
        settings = strict_json(contents[SETTINGS])
        digests = settings["digests"]
        expected = {**digests}
        del digests[SETTINGS]
        version = settings["format"]
        canonical = _canonical(settings)
        strict_json(contents[CARD])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BundleError(f"the bundle {path} has an unreadable {SETTINGS} or {CARD}; make it again.") from None
    if version != FORMAT:
        raise BundleError(f"{path} has bundle format {version!r:.20}; this version reads format {FORMAT}.")
    found = {SETTINGS: canonical, CARD: contents[CARD], WEIGHTS: contents[WEIGHTS]}
    for name, content in found.items():
        if _digest(content) != expected.get(name):
            raise BundleError(
                f"{name} of the bundle {path} is truncated or was changed; do not rely on it, make it again."
            )
    return settings, contents


@contextmanager
def _staging(path: Path, mode: int) -> Iterator[Path]:
    """A folder `PATH.partial` to write to, for one process at a time; what a killed one left there is removed.

    Raises:
        BundleError: If another process is writing to `path`.
    """
    folder = path.with_name(f"{path.name}.partial")
    folder.mkdir(mode=mode, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            lock_file(descriptor)
            mine = os.path.samestat(os.fstat(descriptor), folder.stat())
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise BundleError(f"another process is writing to {path}; wait for it to end, or choose another folder.")
        for left in folder.iterdir():
            left.unlink()
        folder.chmod(mode & ~umask())
        try:
            yield folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def read_file(path: Path, name: str) -> bytes:
    """A file of a bundle: one of its own, not too large and without holes, so that no memory is taken for nothing."""
    try:
        handle = os.open(path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BundleError(f"the bundle {path} has no {name}; it is incomplete, make it again.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BundleError(f"{name} of the bundle {path} is a link; copy the file itself there.") from None
        raise BundleError(f"{name} of the bundle {path} cannot be read ({error.strerror}).") from None
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        os.close(handle)
        raise BundleError(f"{name} of the bundle {path} is no file; make it again.")
    with open(handle, "rb") as file:
        most = MOST_BYTES.get(name, MOST_BYTES[SETTINGS])
        if found.st_size > most:
            raise BundleError(f"{name} of the bundle {path} has {found.st_size:,} bytes, of {most:,} that may be.")
        if found.st_size > _HOLES_BYTES and found.st_blocks * 512 < found.st_size // 10:
            raise BundleError(f"{name} of the bundle {path} is mostly holes; it was not copied whole, make it again.")
        content = file.read(found.st_size + 1)
        if len(content) != found.st_size:
            raise BundleError(f"{name} of the bundle {path} was changed while it was read; make it again.")
        return content


def _swap(staging: Path, path: Path) -> None:
    old = path.with_name(f"{path.name}.replaced")
    shutil.rmtree(old, ignore_errors=True)
    if path.exists():
        path.rename(old)
    try:
        staging.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _sealed(settings: dict[str, Any]) -> bytes:
    """The settings as JSON, with a digest of themselves."""
    digests = {**settings["digests"], SETTINGS: _digest(_canonical(settings))}
    return json.dumps({**settings, "digests": digests}, indent=2).encode()


def _canonical(settings: dict[str, Any]) -> bytes:
    return json.dumps(settings, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _find_class(name: str) -> type[Release]:
    # Only classes that the package itself defines: a bundle cannot name code to run.
    from noiseproof import methods

    methods.registry()
    waiting = Release.__subclasses__()
    while waiting:
        found = waiting.pop()
        if found.__name__ == name:
            return found
        waiting.extend(found.__subclasses__())
    raise BundleError(f"this version has no release of class {name!r}; it may need a newer noiseproof.")


def events_from_json(settings: Mapping[str, Any]) -> tuple[tuple[DpEvent, int], ...]:
    """The event log in a bundle's settings: each event, and how often it happened in a row."""
    log = tuple((event_from_json(event), count) for event, count in settings.get("events", ()))
    if not all(type(count) is int and count > 0 for _, count in log):
        raise ValueError("an event happens once or more often")
    return log
