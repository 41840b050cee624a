"""Bundles that strangers made to be loaded and served: each is refused in one sentence, quickly, and no code of theirs runs."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import socket
import stat
import struct
import sys
import time
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load, save

from noiseproof.cli import main
from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import BundleError, LedgerError, NoiseproofError
from noiseproof.methods import registry
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Secure
from noiseproof.releases import bundles, signing, signing_keys
from noiseproof.serve.ledger import Binding
from noiseproof.serve.models import ServedModel
from noiseproof.serve.service import Settings

FEATURES = torch.rand(60, 4, generator=torch.Generator().manual_seed(0))
RECORDS = Dataset("d", FEATURES, torch.arange(60) % 3, Public(shape=(4,), classes=("no", "yes", "perhaps")))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A real bundle whose answers cost, and a real one whose weights are public."""
    folder = tmp_path_factory.mktemp("made")
    votes = registry()["votes"]().fit(Network("lu-mlp", (4,), 3), RECORDS, Budget(3.0, 1e-5, queries=50), rng=Secure())
    open_one = registry()["dp-sgd"](epochs=1).fit(Network("mlp", (4,), 3), RECORDS, Budget(3.0, 1e-5), rng=Secure())
    return {"votes": bundles.pack(votes), "open": bundles.pack(open_one), "folder": folder}


class Touch:
    """What a pickle can do: leave a file behind."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def setting(*path, to):
    """Change one place of settings.json, and seal it again as a forger would."""

    def harm(contents, _):
        settings = json.loads(contents[bundles.SETTINGS])
        settings["digests"].pop(bundles.SETTINGS)
        place = settings
        for name in path[:-1]:
            place = place[name]
        if to is None:
            del place[path[-1]]
        else:
            place[path[-1]] = to
        return {**contents, bundles.SETTINGS: bundles._sealed(settings)}

    return harm


def file(name, content):
    """Replace a file, and put its right digest into the settings."""

    def harm(contents, folder):
        given = content(contents, folder) if callable(content) else content
        if name == bundles.SETTINGS:
            return {**contents, name: given}
        settings = json.loads(contents[bundles.SETTINGS])
        settings["digests"] = {**settings["digests"], name: bundles._digest(given)}
        settings["digests"].pop(bundles.SETTINGS)
        return {**contents, name: given, bundles.SETTINGS: bundles._sealed(settings)}

    return harm


def card(*path, to):
    def changed(contents, _):
        document = json.loads(contents[bundles.CARD])
        place = document
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = to
        return json.dumps(document).encode()

    return file(bundles.CARD, changed)


def tensors(change):
    return file(bundles.WEIGHTS, lambda contents, _: save(change(load(contents[bundles.WEIGHTS]))))


def cast_to(kind):
    return tensors(lambda found: {name: one.to(kind) for name, one in found.items()})


def header(text, data=b""):
    return struct.pack("<Q", len(text)) + text + data


def pickled(_, folder):
    return pickle.dumps(Touch(folder / "ran"))


def first(tensors_):
    return next(iter(tensors_))


DEEP = b"[" * 200_000 + b"]" * 200_000
HOSTILE = {
    # Offers that the card does not cover: (the budget page would have said 13,390 where the card says 3).
    "a million queries more": ("votes", setting("description", "queries", to=10**6)),
    "less noise an answer": ("votes", setting("description", "answer", "amount", to=9.0)),
    "no noise an answer": ("votes", setting("description", "answer", "amount", to=1e300)),
    "an infinite amount": ("votes", setting("description", "answer", "amount", to=float("inf"))),
    "an amount that is no number": ("votes", setting("description", "answer", "amount", to="much")),
    "a negative amount": ("votes", setting("description", "answer", "amount", to=-1.0)),
    "a law that there is not": ("votes", setting("description", "answer", "law", to="none")),
    "a card that promises less": ("votes", card("proven", "epsilon", to=0.1)),
    # Counts.
    "negative queries": ("votes", setting("description", "queries", to=-1)),
    "queries without end": ("votes", setting("description", "queries", to=10**18)),
    "queries of thousands of digits": ("votes", setting("description", "queries", to=10**4000)),
    "half a query": ("votes", setting("description", "queries", to=49.5)),
    "queries that are true": ("votes", setting("description", "queries", to=True)),
    "queries as text": ("votes", setting("description", "queries", to="50")),
    "negative asked": ("votes", setting("description", "asked", to=-1000)),
    "more asked than there are": ("votes", setting("description", "asked", to=51)),
    "no queries at all": ("votes", setting("description", "queries", to=None)),
    # Shapes of documents.
    "a description that is a list": ("votes", setting("description", to=[1])),
    "no description": ("votes", setting("description", to=None)),
    "deep settings": ("votes", file(bundles.SETTINGS, DEEP)),
    "a deep card": ("votes", file(bundles.CARD, DEEP)),
    "NaN in the settings": ("votes", setting("description", "queries", to=float("nan"))),
    "NaN on the card": ("votes", card("proven", "epsilon", to=float("nan"))),
    "infinity on the card": ("votes", card("proven", "epsilon", to=float("inf"))),
    "a negative epsilon": ("votes", card("proven", "epsilon", to=-3.0)),
    "a card of another kind": ("votes", file(bundles.CARD, b'{"method": "votes"}')),
    "a card that is a number": ("votes", file(bundles.CARD, b"3")),
    "a card of 40 MB": ("votes", card("method", to="x" * (40 << 20))),
    "an empty card": ("votes", file(bundles.CARD, b"")),
    "settings of 60 MB of empty lists": ("votes", file(bundles.SETTINGS, b"[" + b"[]," * (20 << 20) + b"0]")),
    "settings that are no text": ("votes", file(bundles.SETTINGS, b"\xff\xfe\x00")),
    "settings with a name twice": ("votes", file(bundles.SETTINGS, b'{"format": 1, "format": 1, "digests": {}}')),
    "a card with a name twice": (
        "votes",
        file(bundles.CARD, lambda contents, _: contents[bundles.CARD].replace(b"{", b'{"method": "votes", ', 1)),
    ),
    "settings that are null": ("votes", file(bundles.SETTINGS, b"null")),
    "settings that are a list": ("votes", file(bundles.SETTINGS, b"[]")),
    "digests that are a list": ("votes", file(bundles.SETTINGS, b'{"digests": [], "format": 1}')),
    "a format of the future": ("votes", setting("format", to=99)),
    # Code.
    "a class of others": ("votes", setting("class", to="os.system")),
    "a class that is a list": ("votes", setting("class", to=["PredictionRelease"])),
    "an abstract class": ("votes", setting("class", to="PredictionRelease")),
    "another class": ("votes", setting("class", to="DataRelease")),
    "pickled weights": ("votes", file(bundles.WEIGHTS, pickled)),
    "a pickled card": ("votes", file(bundles.CARD, pickled)),
    "pickled settings": ("votes", file(bundles.SETTINGS, pickled)),
    "a network of others' code": ("open", setting("description", "network", "name", to="os.system")),
    "a custom network": ("open", setting("description", "network", "name", to="custom")),
    "options that are code": ("open", setting("description", "network", "options", to={"__class__": "x"})),
    # Size.
    "a network without end": ("open", setting("description", "network", "options", to={"hidden": [200_000] * 2})),
    "a network for other inputs": ("open", setting("description", "network", "input_shape", to=[10**9])),
    "a million classes": ("open", setting("description", "network", "classes", to=10**6)),
    "a negative shape": ("open", setting("description", "network", "input_shape", to=[-4])),
    "public classes that are no list": ("open", setting("public", "classes", to=7)),
    "a public shape of text": ("open", setting("public", "shape", to="four")),
    # Weights.
    "a header longer than the file": ("open", file(bundles.WEIGHTS, struct.pack("<Q", 2**62) + b"{}")),
    "a tensor beyond the file": (
        "open",
        file(bundles.WEIGHTS, header(b'{"a":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4000000000]}}')),
    ),
    "overlapping tensors": (
        "open",
        file(
            bundles.WEIGHTS,
            header(
                b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
                b"\0" * 4,
            ),
        ),
    ),
    "a header of half a million tensors": (
        "open",
        file(
            bundles.WEIGHTS,
            lambda *_: header(
                json.dumps(
                    {f"{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(500_000)}
                ).encode()
            ),
        ),
    ),
    "weights that are NaN": (
        "open",
        tensors(lambda found: {name: torch.full_like(one, float("nan")) for name, one in found.items()}),
    ),
    "a class of half a character": ("votes", setting("public", "classes", to=["no", "\ud800", "perhaps"])),
    "complex weights": ("open", cast_to(torch.complex64)),
    "weights of whole numbers": ("open", cast_to(torch.int64)),
    "votes of texts' bytes": ("votes", cast_to(torch.uint8)),
    "weights of other names": ("open", tensors(lambda found: {f"x{name}": one for name, one in found.items()})),
    "weights of other shapes": ("open", tensors(lambda found: {**found, first(found): torch.zeros(7, 7, 7)})),
    "no weights": ("open", tensors(lambda _: {"none": torch.zeros(1)})),
    # Events.
    "an event of others' code": ("open", setting("events", to=[[{"kind": "system", "command": "x"}, 1]])),
    "events that are a number": ("open", setting("events", to=3)),
    "deep events": ("open", setting("events", to=[[json.loads("[" * 400 + "]" * 400), 1]])),
}


def refuse(path):
    """Load and serve a bundle, and what was said; with what memory and time it took."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(NoiseproofError) as caught:
        ServedModel("m", bundles.load(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB
    assert time.monotonic() - began < 20
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith((".", ".)"))
    return sentence


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_bundle_is_refused_in_one_sentence_and_runs_no_code(made, tmp_path, name):
    kind, harm = HOSTILE[name]
    folder = tmp_path / "bundle"
    folder.mkdir()
    for file_name, content in harm(made[kind], tmp_path).items():
        (folder / file_name).write_bytes(content)
    refuse(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [bundles.SETTINGS, bundles.CARD, bundles.WEIGHTS])
@pytest.mark.parametrize(
    "kind", ["link", "dangling link", "pipe", "socket", "device", "folder", "sparse", "unreadable"]
)
def test_a_file_that_is_none_of_the_bundles_own_is_refused(made, tmp_path, name, kind):
    folder = bundles.write(tmp_path / "bundle", made["votes"])
    whole = folder / name
    if kind == "sparse":
        os.truncate(whole, 20 << 30)
    else:
        whole.rename(tmp_path / "elsewhere")
        replace(whole, kind, tmp_path / "elsewhere")
    assert name in refuse(folder)


def replace(place, kind, elsewhere):
    """Put something that is no file in the place of one."""
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "dangling link":
        place.symlink_to("nowhere")
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind == "socket":
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening, contextlib.chdir(place.parent):
            listening.bind(place.name)  # a socket's path may not be long
    elif os.getuid():
        pytest.skip("devices are made by root, who reads all files")
    elif kind == "device":
        os.mknod(place, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero, which has no end
    else:
        pytest.skip("root reads all files")


def test_a_file_that_grows_while_it_is_read_is_refused_and_not_read_to_its_end(made, tmp_path, monkeypatch):
    folder = bundles.write(tmp_path / "bundle", made["votes"])
    measure = os.fstat

    def grow_behind_its_back(handle):
        found = measure(handle)
        with (folder / bundles.WEIGHTS).open("ab") as weights:
            weights.write(b"x" * 1000)
        return found

    monkeypatch.setattr(bundles.os, "fstat", grow_behind_its_back)
    assert "changed while it was read" in refuse(folder)


def test_files_that_are_exchanged_while_they_are_read_are_refused(made, tmp_path, monkeypatch):
    folder, read = bundles.write(tmp_path / "bundle", made["votes"]), bundles.read_file

    def read_and_exchange(path, name):
        content = read(path, name)
        for other, bytes_ in made["open"].items():
            (folder / other).write_bytes(bytes_)
        return content

    monkeypatch.setattr(bundles, "read_file", read_and_exchange)
    refuse(folder)


def test_what_was_loaded_is_what_the_signature_is_checked_of(made, tmp_path):
    """Whoever puts the signed bundle back after another was loaded is found out."""
    folder = bundles.write(tmp_path / "bundle", made["votes"])
    private, public = (made["folder"] / "key.pem", made["folder"] / "key.pem.pub")
    if not private.exists():
        signing_keys.make_keys(private)
    signing.sign_bundle(folder, signing_keys.read_private_key(private))
    key = signing_keys.read_public_key(public)
    right = bundles.load(folder)
    assert signing.verify_bundle(folder, key, right).valid
    for name, content in setting("description", "queries", to=49)(made["votes"], tmp_path).items():
        (folder / name).write_bytes(content)
    other = bundles.load(folder)
    for name, content in made["votes"].items():
        (folder / name).write_bytes(content)
    assert signing.verify_bundle(folder, key).valid
    found = signing.verify_bundle(folder, key, other)
    assert found.findings == ("settings.json was changed after it was loaded.",)
    with pytest.raises(BundleError, match=r"settings\.json was changed after it was loaded"):
        Settings(ledger="unused", bundles={"m": str(folder)}, key=str(public)).signatures({"m": other})


def test_more_files_than_can_be_meant_are_not_all_read(made, tmp_path):
    """Files of holes take no room on the disk, and would take it in memory."""
    folder = bundles.write(tmp_path / "bundle", made["votes"])
    for number in range(100):
        (folder / f"{number}").touch()
        os.truncate(folder / f"{number}", 16 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match="103 files"):
        signing.verify_bundle(folder, None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.parametrize("name", [bundles.BINDING, signing.SIGNATURE])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "socket", "device", "folder"])
def test_notes_and_signatures_that_are_no_files_are_refused_and_nobody_waits_for_them(made, tmp_path, name, kind):
    folder = bundles.write(tmp_path / "bundle", made["votes"])
    (tmp_path / "elsewhere").write_text("{}")
    replace(folder / name, kind, tmp_path / "elsewhere")
    if name == signing.SIGNATURE:
        assert not signing.verify_bundle(folder, Ed25519PrivateKey.generate().public_key()).valid
    else:
        with pytest.raises(LedgerError, match="cannot be read, so that nobody knows which ledger"):
            Binding(folder, "a")


def test_hard_links_are_files_and_what_is_noted_in_one_bundle_is_not_noted_in_the_other(made, tmp_path):
    folder = bundles.write(tmp_path / "bundle", made["votes"])
    other = tmp_path / "other"
    other.mkdir()
    for name in made["votes"]:
        (other / name).hardlink_to(folder / name)
    bundles.write_card(other, bundles.load(other).card.model_copy(update={"notes": ("seen",)}))
    assert bundles.read_card(folder).notes != ("seen",)
    assert bundles.read_card(other).notes == ("seen",)


def test_texts_that_paint_over_others_are_shown_as_escapes(made, tmp_path, capsys, monkeypatch):
    painted = "\x1b[2J\x1b[1;1Hproven\u202e"
    folder = bundles.write(tmp_path / "bundle", card("notes", to=[painted])(made["votes"], tmp_path))
    monkeypatch.setattr(sys, "argv", ["noiseproof", "card", str(folder)])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().out
    assert "proven" in said
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_there_are_as_many_hostile_bundles_as_were_asked_for():
    assert len(HOSTILE) >= 55
