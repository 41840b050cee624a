"""Whatever bytes a stranger sends or leaves in a file, each parser reads them or refuses them in one sentence."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import time

import numpy as np
import pandas as pd
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from noiseproof import train
from noiseproof.data import load
from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.formats import read_table
from noiseproof.data.schema import Schema, read_schema
from noiseproof.errors import NoiseproofError
from noiseproof.methods import registry
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Secure
from noiseproof.privacy.events import GaussianDpEvent
from noiseproof.releases import bundles, signing
from noiseproof.run.checkpoints import pack, unpack
from noiseproof.run.journal import Journal
from noiseproof.serve.bodies import ARROW, JSON, NPY
from noiseproof.serve.ledger import Amount, Checkpoint, Database, History, Keys, Ledger, Spend
from noiseproof.serve.ledger.bindings import Noted
from noiseproof.serve.models import ServedModel

SECONDS = float(os.environ.get("NOISEPROOF_FUZZ_SECONDS", "0"))
"""How long each parser is tried; without it, forty times."""
VALUES = [
    *(
        None,
        True,
        "",
        "\x00",
        "\ud800",
        "../../etc/passwd",
        [],
        {},
        [[]],
        {"": None},
        -1,
        0,
        0.5,
        2**63,
        2**64,
        10**400,
    ),
    *(-(10**400), 1e308, float("nan"), float("inf"), "1e400", "9" * 5000, [0] * 1000, "os.system", "a\nb"),
]
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def mutated(chance, content):
    """Bytes that differ from some: cut, flipped, doubled, swapped, stuffed; or, of JSON, with another value somewhere."""
    if chance.random() < 0.5:
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(changed(chance, json.loads(content))).encode()
    content = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(content) + 1)
        end = min(len(content), at + chance.randint(1, 64))
        how = chance.randrange(6)
        if how == 0:
            del content[at:]
        elif how == 1:
            del content[at:end]
        elif how == 2:
            content[at:at] = content[at:end] * chance.randint(1, 50)
        elif how == 3:
            content[at:end] = chance.randbytes(end - at)
        elif how == 4 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        else:
            content[at:end] = chance.choice(
                [
                    b"[" * 50_000,
                    b'{"a":' * 50_000,
                    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
                    b"\x00" * 8,
                    b"1e999",
                    b"NaN",
                    b'"',
                ]
            )
    return bytes(content)


def changed(chance, document):
    """A document with one value changed, left out or added."""
    if isinstance(document, dict) and document and chance.random() < 0.9:
        name = chance.choice(list(document))
        how = chance.random()
        if how < 0.1:
            return {key: value for key, value in document.items() if key != name}
        if how < 0.15:
            return {**document, chance.choice(["", "extra", "__class__"]): chance.choice(VALUES)}
        return {**document, name: changed(chance, document[name])}
    if isinstance(document, list) and document and chance.random() < 0.9:
        at = chance.randrange(len(document))
        return [*document[:at], changed(chance, document[at]), *document[at + 1 :]]
    return chance.choice(VALUES)


def served(bundle):
    """Load a bundle as a service does, and answer once."""
    model = ServedModel("m", bundles.load(bundle))
    model.answer(torch.full((1, *model.shape), 0.5), Secure())


def verified(envelope):
    """Check an envelope; what is found wrong with it is a refusal."""
    found = signing.verify(envelope, {"a": b"content"}, "urn:x", KEY.public_key())
    if not found.valid:
        raise NoiseproofError("; ".join(found.findings))


@pytest.fixture(scope="module")
def parsers(tmp_path_factory):
    """By name: what a parser is given, and the parser."""
    folder = tmp_path_factory.mktemp("untrusted")
    chance = torch.Generator().manual_seed(0)
    records = Dataset("d", torch.rand(60, 4, generator=chance), torch.arange(60) % 3, Public((4,), ("a", "b", "c")))
    votes = registry()["votes"]().fit(Network("lu-mlp", (4,), 3), records, Budget(3.0, 1e-5, queries=50), rng=Secure())
    packed = bundles.pack(votes)

    def bundle(name, reseal, packed=packed):
        def parse(content):
            files = dict(packed)
            files[name] = content
            if reseal:
                settings = json.loads(files[bundles.SETTINGS])
                settings["digests"] = {one: bundles._digest(files[one]) for one in (bundles.WEIGHTS, bundles.CARD)}
                files[bundles.SETTINGS] = bundles._sealed(settings)
            there = folder / "bundle"
            shutil.rmtree(there, ignore_errors=True)
            there.mkdir()
            for one, bytes_ in files.items():
                (there / one).write_bytes(bytes_)
            served(there)

        return parse

    def settings(content):
        """Settings with a right digest of themselves, so that what is in them is looked at."""
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            document = json.loads(content)
            document["digests"] = {one: bundles._digest(packed[one]) for one in (bundles.WEIGHTS, bundles.CARD)}
            content = bundles._sealed(document)
        bundle(bundles.SETTINGS, False)(content)

    def in_file(name, parse):
        def write_and_parse(content):
            (folder / name).write_bytes(content)
            parse(folder / name)

        return write_and_parse

    image = ServedModel("image", votes)
    table = ServedModel("table", train("dp-sgd", table_set(folder), epsilon=3, epochs=1))
    row = {"age": 40, "sex": "f", "born": "1990-02-03"}
    frame = pd.DataFrame([row, row])
    import pyarrow as pa

    arrow = pa.BufferOutputStream()
    with pa.ipc.new_stream(arrow, pa.Schema.from_pandas(frame, preserve_index=False)) as stream:
        stream.write_table(pa.Table.from_pandas(frame, preserve_index=False))
    npy = folder / "rows.npy"
    np.save(npy, np.full((2, 4), 0.5, np.float32))

    ledger = folder / "ledger.db"
    with Database(str(ledger)) as database:
        Keys(database).create("ann", answers=30)
        each = Amount.cost("pure", 0.01)
        accounts = Ledger(database)
        accounts.open("m", release="r", capacity=each * 100)
        for _ in range(20):
            accounts.spend(Spend("m", "ann", each))
        head = History(database).checkpoint().signed(KEY).encode()
        database.into_one_file()
    envelope = signing.sign({"a": b"content"}, "urn:x", {"p": [1, {"q": "r"}]}, KEY).encode()

    def resigned(content):
        """An envelope whose payload somebody with the key signed, whatever is in it."""
        with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
            document = json.loads(content)
            payload = base64.b64decode(document["payload"])
            signature = KEY.sign(signing.encoded(document["payloadType"], payload))
            document["signatures"][0]["sig"] = base64.b64encode(signature).decode()
            content = json.dumps(document).encode()
        verified(content)

    def verify(file):
        for suffix in ("-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        with Database(str(file), create=False) as database:
            History(database).verify()
            list(History(database).export())

    def journal(file):
        Journal(file).close()

    with contextlib.closing(Journal(folder / "spent.jsonl")) as started:
        for _ in range(5):
            started.spend(GaussianDpEvent(1.0))
    schema = Schema.of(table.public).to_json().encode()
    noted = json.dumps({"ledger": "a", "model": "m", "sequence": 3, "head": "b", "at_most": [5]}).encode()
    checkpoint = pack({"w": torch.ones(3)}, {"step": 1, "more": [1, 2]})
    csv = frame.to_csv(index=False).encode()
    return {
        "settings": (packed[bundles.SETTINGS], settings),
        "card": (packed[bundles.CARD], bundle(bundles.CARD, True)),
        "weights": (packed[bundles.WEIGHTS], bundle(bundles.WEIGHTS, True)),
        "changed settings": (packed[bundles.SETTINGS], bundle(bundles.SETTINGS, False)),
        "rows of numbers": (json.dumps({"inputs": [[0.1, 0.2, 0.3, 0.4]] * 2}).encode(), lambda b: image.read(b, JSON)),
        "rows by name": (json.dumps({"inputs": [row, row]}).encode(), lambda b: table.read(b, JSON)),
        "npy": (npy.read_bytes(), lambda b: image.read(b, NPY)),
        "Arrow": (arrow.getvalue().to_pybytes(), lambda b: table.read(b, ARROW)),
        "envelope": (envelope, verified),
        "signed payload": (envelope, resigned),
        "signed head": (head, lambda b: Checkpoint.read(b, KEY.public_key(), "the file")),
        "ledger": (ledger.read_bytes(), in_file("other.db", verify)),
        "binding": (noted, in_file("ledger.json", Noted.read)),
        "journal": ((folder / "spent.jsonl").read_bytes(), in_file("other.jsonl", journal)),
        "checkpoint": (checkpoint, lambda b: unpack(b, "the checkpoint")),
        "schema": (schema, in_file("schema.json", read_schema)),
        "CSV": (csv, in_file("table.csv", lambda file: table._code(read_table(file)))),
    }


def table_set(folder):
    """A small table with numbers, categories and dates."""
    file = folder / "people.csv"
    rows = [f"{20 + i % 60},{'mf'[i % 2]},19{50 + i % 40}-01-02,{['no', 'yes'][i % 3 == 0]}" for i in range(80)]
    file.write_text("\n".join(["age,sex,born,ill", *rows]))
    columns = {
        "age": {"low": 0, "high": 120},
        "sex": {"categories": ["f", "m"]},
        "born": {"low": "1900-01-01", "high": "2020-01-01", "date": "%Y-%m-%d"},
    }
    schema = folder / "people.json"
    schema.write_text(json.dumps({"target": {"name": "ill", "classes": ["no", "yes"]}, "columns": columns}))
    return load(file, schema=schema).train


PARSERS = [
    *("settings", "card", "weights", "changed settings", "rows of numbers", "rows by name", "npy", "Arrow", "envelope"),
    *("signed payload", "signed head", "ledger", "binding", "journal", "checkpoint", "schema", "CSV"),
]


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.filterwarnings("ignore")
def test_bytes_are_read_or_refused_in_one_sentence(parsers, name, capsys):
    right, parse = parsers[name]
    parse(right)
    until, tried, refused, sentences = time.monotonic() + SECONDS, 0, 0, set()
    while tried < 40 or time.monotonic() < until:
        content = mutated(random.Random(f"{name} {tried}"), right)
        tried += 1
        try:
            parse(content)
        except NoiseproofError as error:
            refused += 1
            sentences.add(str(error))
        except BaseException as error:
            raise AssertionError(f"try {tried} of {name}: {type(error).__name__}: {str(error)[:200]}") from error
    if SECONDS:
        with capsys.disabled():
            print(f"\n{name}: {tried} tried, {refused} refused")
    assert refused > 0
    assert not [sentence for sentence in sentences if "\n" in sentence]
